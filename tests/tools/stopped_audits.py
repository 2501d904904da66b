"""Audits of a mechanism whose epsilon is known, looked at again and again and stopped at their best moment."""

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
