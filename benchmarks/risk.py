"""Mu of Gaussian DP and the risk of an attack, ours beside gdpnum and riskcal.

Run it with `PYTHONPATH=FOLDER python benchmarks/risk.py` after `pip install --no-deps --target FOLDER gdpnum riskcal`.
The risk is also computed here from the law of the loss, without our code and without a PLD. Exit status 1 if ours
differs from it by more than 1e-7, or is outside of dp-accounting's bounds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm

import lastiterate as li
from lastiterate.privacy.gaussian_dp import gaussian_log_delta

STEPS, RATE, SIGMA, DELTA = 6000, 0.01, 1.0, 1e-5
BASELINES = [0.01, 0.1]


def timed(question: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return question(), time.perf_counter() - start


def epsilon_of(mu: float) -> float:
    """Return epsilon of the Gaussian mechanism with this mu."""
    return float(brentq(lambda epsilon: float(gaussian_log_delta(mu, epsilon)) - np.log(DELTA), 0.0, 50.0))


def direct_risks(points: int = 600, width: float = 14.0) -> list[float]:
    """Return the risk by Gil-Pelaez's inversion of the loss's characteristic function, under both worlds."""
    x = np.linspace(-14.0 * SIGMA, 14.0 * SIGMA + 1.0, 20_001)
    out = norm.pdf(x, 0.0, SIGMA) * (x[1] - x[0])
    laws = out, (1.0 - RATE) * out + RATE * norm.pdf(x, 1.0, SIGMA) * (x[1] - x[0])
    loss = np.log1p(RATE * np.expm1((x - 0.5) / SIGMA**2))

    def tail_of(law: NDArray[np.float64]) -> Callable[[float], float]:
        step = width / points / np.sqrt(STEPS * (law @ loss**2 - (law @ loss) ** 2))
        u = (np.arange(points) + 0.5) * step
        values = np.array([law @ np.exp(1j * each * loss) for each in u]) ** STEPS / u
        return lambda t: float(0.5 + step / np.pi * np.sum((values * np.exp(-1j * u * t)).imag))

    fpr, tpr = map(tail_of, laws)
    return [tpr(brentq(lambda t, rate=rate: fpr(t) - rate, -5.0, 15.0, xtol=1e-13)) for rate in BASELINES]


def bounds(pessimistic: bool) -> tuple[float, list[float]]:
    """Return dp-accounting's bound on epsilon and on the risk: each epsilon bounds the success of an attack."""
    loss = pld.from_gaussian_mechanism(
        SIGMA, sampling_prob=RATE, value_discretization_interval=1e-4, pessimistic_estimate=pessimistic
    ).self_compose(STEPS)
    epsilons = np.linspace(0.0, 6.0, 6001)
    deltas = np.asarray(loss.get_delta_for_epsilon(epsilons))
    risks = [float(np.min(deltas + np.exp(epsilons) * each)) for each in BASELINES]
    return float(loss.get_epsilon_for_delta(DELTA)), risks


def main() -> int:
    from gdpnum.dpsgd import get_mu_and_regret_for_dpsgd
    from riskcal.calibration import get_beta_for_dpsgd

    curve = li.composition(li.DPSGD(STEPS, RATE, SIGMA))
    (low, low_risks), (high, high_risks) = bounds(False), bounds(True)
    print(f"dp-accounting: epsilon in [{low:.5f}, {high:.5f}], risk in ", end="")
    print(", ".join(f"[{a:.5f}, {b:.5f}]" for a, b in zip(low_risks, high_risks, strict=True)))
    mu, seconds = timed(curve.mu)
    print(f"ours: mu {mu:.4f} (epsilon {epsilon_of(mu):.3f}), regret {curve.regret():.4f}, {seconds:.2f} s for mu")
    (peer, regret), seconds = timed(lambda: get_mu_and_regret_for_dpsgd(SIGMA, RATE, STEPS))
    print(f"gdpnum: mu {peer:.4f} (epsilon {epsilon_of(peer):.3f}), regret {regret:.4f}, {seconds:.2f} s for both")
    risks, seconds = timed(lambda: li.composition(li.DPSGD(STEPS, RATE, SIGMA)).risk(BASELINES))
    print(f"ours: risk {risks.round(5)}, {seconds:.2f} s")
    theirs, seconds = timed(lambda: 1.0 - get_beta_for_dpsgd(SIGMA, RATE, STEPS, np.array(BASELINES)))
    print(f"riskcal: risk {theirs.round(5)}, {seconds:.2f} s")
    exact = direct_risks()
    print("direct integration: risk " + ", ".join(f"{each:.9f}" for each in exact))
    loss = pld.from_gaussian_mechanism(SIGMA, sampling_prob=RATE, value_discretization_interval=1e-4)
    for name, each in ("remove", loss._pmf_remove), ("add", loss._pmf_add):
        mass = each._probs
        losses = 1e-4 * (each._lower_loss + np.arange(mass.size))
        print(f"dp-accounting's PLD of one step, {name}: E e^-loss = 1 + {mass @ np.exp(-losses) - 1.0:.1e}")
    inside = (
        np.max(np.abs(risks - exact)) < 1e-7
        and np.all(risks >= np.array(low_risks) - 1e-6)
        and np.all(risks <= np.array(high_risks) + 1e-6)
    )
    return 0 if inside and epsilon_of(mu) >= low else 1


if __name__ == "__main__":
    sys.exit(main())
