"""Audits of a mechanism whose epsilon is known, looked at again and again and stopped at their best moment.

    python -m tests.tools.stopped_audits [--audits 1000] [--every 1]

prints how many of them claimed too much, by bounds that hold at any time, by those for a fixed number of models, and
by a test martingale against a claim that is true.
"""

import argparse

import numpy as np

import lastiterate as li
from lastiterate.auditing.evidence.test_martingale import ClaimedCurve, Martingale
from lastiterate.auditing.evidence.threshold import CHOOSING

GAUSSIAN = li.DPSGD(steps=1, sample_rate=1.0, noise_multiplier=1.0)
MODELS = 400


def too_much(audits: int, threshold: float | str, validity: str, confidence: float, seed: int, every: int = 16) -> int:
    """How many audits, looked at after every so many models, ever showed more than the truth.

    By the Gaussian family, which is exact here.
    """
    random = np.random.default_rng(seed)
    truth = li.composition(GAUSSIAN).epsilon(1e-5)
    count = 0
    for _ in range(audits):
        inside, outside = random.normal(1.0, 1.0, MODELS), random.normal(0.0, 1.0, MODELS)
        looks = (
            li.estimate(inside[:n], outside[:n], 1e-5, confidence, "gdp", threshold, GAUSSIAN, validity).epsilon
            for n in range(CHOOSING + every, MODELS + 1, every)
        )
        count += any(epsilon > truth for epsilon in looks)
    return count


def refuted(audits: int, distance: float, error: float, seed: int) -> int:
    """How many test martingales, looking after every model, ever refuted the claim of one Gaussian step of noise 1."""
    random = np.random.default_rng(seed)
    claimed = ClaimedCurve.of_curve(li.composition(GAUSSIAN).delta)
    return sum(
        Martingale(
            random.normal(distance, 1.0, MODELS), random.normal(0.0, 1.0, MODELS), claimed, error
        ).refuted_after()
        is not None
        for _ in range(audits)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audits", type=int, default=1000)
    parser.add_argument("--every", type=int, default=1, help="models from one look to the next")
    given = parser.parse_args()
    audits = given.audits
    for validity in ("anytime", "fixed"):
        for threshold in ("split", 0.5):
            count = too_much(audits, threshold, validity, 0.9, 5, given.every)
            print(f"{validity} bounds, threshold {threshold}: {count} of {audits} claim too much; 10% is stated")
    print(f"test martingales: {refuted(audits, 1.0, 0.1, seed=7)} of {audits} refute what is true; 10% is stated")


if __name__ == "__main__":
    main()
