"""Composition of random runs against dp-accounting's optimistic and pessimistic bounds: value, bracket and time.

    python -m tests.tools.random_compositions --runs 500 --seed 1

draws runs with 2 to 1e9 steps, sample rates from 1e-6 to 0.9, noise from 0.3 to 20 and delta from 1e-14 to 0.1. Where
privacy loss distributions cannot be had (many steps, large losses, a delta below the error of their transforms), the
value must lie between the proved ends and these must be close. About a second a run, most of it dp-accounting's.
"""

import argparse
import math
import sys
import time
from dataclasses import dataclass

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld

import lastiterate as li

MOST_STEPS = 10**5
POINTS = 3e5  # of one step's distribution
FFT_ERROR = 1e-15  # of delta, for each step at most; see `test_value_lies_within_the_bracket_of_...`


@dataclass(frozen=True)
class Checked:
    """One run: its value, its proved ends, dp-accounting's bounds (or None), and the seconds of processor time."""

    run: li.DPSGD
    delta: float
    value: float
    lower: float
    upper: float
    peer: tuple[float, float] | None
    seconds: float

    @property
    def faults(self) -> list[str]:
        found = []
        slack = 1e-9 * max(1.0, self.value)
        if not self.lower - slack <= self.value <= self.upper + slack:
            found.append("outside of the proved ends")
        if self.peer is not None and not self.peer[0] - slack <= self.value <= self.peer[1] + slack:
            found.append("outside of dp-accounting's bounds")
        if self.peer is not None and self.upper < self.peer[0] - slack:
            found.append("proved upper end below dp-accounting's lower bound")
        if self.upper - self.lower > 1e-3 * max(1.0, self.upper):
            found.append("wide")
        return found


def random_run(random: np.random.Generator) -> tuple[li.DPSGD, float]:
    """A run and a delta, all of them log-uniform."""
    steps, rate, sigma, delta = (
        10.0 ** random.uniform(math.log10(low), math.log10(high))
        for low, high in ((2.0, 1e9), (1e-6, 0.9), (0.3, 20.0), (1e-14, 0.1))
    )
    return li.DPSGD(steps=int(steps), sample_rate=rate, noise_multiplier=sigma), delta


def peer_bounds(run: li.DPSGD, delta: float, near: float) -> tuple[float, float] | None:
    """dp-accounting's optimistic and pessimistic epsilon, or None where they cannot be had, or say nothing."""
    rate, sigma = float(run.sample_rate), float(run.noise_multiplier)
    error = FFT_ERROR * (10.0 + run.steps)
    largest = (0.5 / sigma + 9.0) / sigma
    interval = max(3e-4 * max(near, 1e-3), 3.0 * max(largest, near) / POINTS)
    if run.steps > MOST_STEPS or near > 100.0 or delta < 3.0 * error or interval > 0.02 * near:
        return None
    bounds = []
    for pessimistic in (False, True):
        step = pld.from_gaussian_mechanism(
            sigma,
            sampling_prob=rate,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=interval,
            log_mass_truncation_bound=-60.0,
            use_connect_dots=pessimistic,
        )
        total = step.self_compose(run.steps, tail_mass_truncation=min(1e-18, 1e-6 * delta))
        bounds.append(float(total.get_epsilon_for_delta(delta + (-error if pessimistic else error))))
    return bounds[0], bounds[1]


def checked(run: li.DPSGD, delta: float) -> Checked:
    curve = li.composition(run)
    start = time.process_time()
    value = curve.epsilon(delta)
    seconds = time.process_time() - start
    lower, upper = curve.bracket(delta)
    try:
        peer = peer_bounds(run, delta, value)
    except (OverflowError, ValueError, MemoryError):
        peer = None
    return Checked(run, delta, value, lower, upper, peer, seconds)


def main(runs: int, seed: int) -> int:
    random = np.random.default_rng(seed)
    results = [checked(*random_run(random)) for _ in range(runs)]
    for result in results:
        if result.faults:
            print(f"{result}: {', '.join(result.faults)}", flush=True)
    seconds = np.array([result.seconds for result in results])
    compared = sum(result.peer is not None for result in results)
    print(
        f"{runs} runs, {compared} of them compared, {sum(bool(result.faults) for result in results)} with faults; "
        f"processor time of epsilon: median {np.median(seconds) * 1e3:.1f} ms, largest {seconds.max() * 1e3:.1f} ms"
    )
    return int(any(result.faults for result in results))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    sys.exit(main(**vars(parser.parse_args())))
