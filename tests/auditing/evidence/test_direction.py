"""Scores with the wrong sign: a split finds the direction, and every other threshold says that it is wrong."""

import math

import numpy as np
import pytest

import lastiterate as li
from lastiterate.auditing.evidence.threshold import Worlds, separates_the_other_way


def normal(seed, shift, size):
    return np.random.default_rng(seed).normal(shift, 1.0, size)


def backwards(scores_in, scores_out):
    return separates_the_other_way(Worlds(np.sort(scores_in), np.sort(scores_out)))


@pytest.mark.slow
@pytest.mark.parametrize("confidence", [0.6, 0.8])
def test_choosing_the_direction_costs_no_confidence(confidence):
    """A Gaussian mechanism of known epsilon with scores of either sign: 1,000 audits each, about two seconds."""
    truth = li.last_iterate(li.DPSGD(1, 1.0, 1 / 1.5)).epsilon(1e-2)
    generator = np.random.default_rng(3)
    above = 0
    for audit in range(1000):
        sign = 1 if audit % 2 else -1
        scores = sign * generator.normal(1.5, 1.0, 40), generator.normal(size=30)
        above += li.estimate(*scores, 1e-2, confidence, "gdp").epsilon > truth + 1e-9
    assert above / 1000 <= 1.0 - confidence + 3.0 * math.sqrt(confidence * (1.0 - confidence) / 1000)


@pytest.mark.slow
def test_noise_seldom_separates_the_other_way():
    """6,000 audits of noise, half of them with ties, of 1 to 60 models: 0.6 are expected at most. Four seconds."""
    generator = np.random.default_rng(5)
    found = 0
    for audit in range(6_000):
        sizes = generator.integers(1, 60, 2)
        draw = generator.normal if audit % 2 else lambda size: generator.integers(0, 4, size).astype(float)
        found += backwards(draw(size=sizes[0]), draw(size=sizes[1]))
    assert found <= 4  # of Poisson(0.6), with probability 0.9996
