"""The trade-off function and the advantage, for every analysis."""

import math

import numpy as np
import pytest
from hypothesis import given

import lastiterate as li
from tests.privacy.helpers import weighted_runs

FPR = np.array([1e-6, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95])


def assert_is_tradeoff_function(fpr, fnr):
    assert np.all(fnr <= 1.0 - fpr + 1e-12)
    assert np.all(np.diff(fnr) <= 1e-12)
    slopes = np.diff(fnr) / np.diff(fpr)
    assert np.all(np.diff(slopes) >= -1e-9 * np.abs(slopes[1:]) - 1e-9)


def assert_dual(curve, fpr, fnr, tolerance=1e-9):
    """delta(epsilon) is the best that any point of the trade-off curve gives, in either direction."""
    for epsilon in (0.0, 0.3, 1.0, 3.0):
        remove = 1.0 - fnr - math.exp(epsilon) * fpr
        add = 1.0 - fpr - math.exp(epsilon) * fnr
        assert curve.delta(epsilon) >= max(remove.max(), add.max()) - tolerance


@given(weighted_runs(longest=20))
def test_heuristic_tradeoff_of_schedules_is_convex_decreasing_and_dual_to_delta(run):
    curve = li.last_iterate(run)
    fnr = curve.fnr(FPR)
    assert_is_tradeoff_function(FPR, fnr)
    assert_dual(curve, FPR, fnr)


@pytest.mark.parametrize(
    ("steps", "rate", "sigma"), [(1000, 0.01, 1.0), (100, 0.2, 2.0), (10_000, 0.001, 0.8), (100, 0.01, 0.5)]
)
def test_composition_tradeoff_is_convex_decreasing_and_dual_to_delta(steps, rate, sigma):
    curve = li.composition(li.DPSGD(steps=steps, sample_rate=rate, noise_multiplier=sigma))
    fnr = curve.fnr(FPR)
    assert_is_tradeoff_function(FPR, fnr)
    assert_dual(curve, FPR, fnr)


def test_heuristic_tradeoff_agrees_with_simulation():
    run = li.DPSGD(steps=200, sample_rate=0.05, noise_multiplier=1.0)
    rng = np.random.default_rng(0)
    noise = math.sqrt(200.0)
    trials = 400_000
    present = rng.binomial(200, 0.05, trials) + rng.normal(0.0, noise, trials)
    absent = rng.normal(0.0, noise, trials)
    for fpr in (0.01, 0.1, 0.5):
        missed = np.mean(present < np.quantile(absent, 1.0 - fpr))
        error = 5.0 * math.sqrt(0.25 / trials) * 2.0
        assert li.last_iterate(run).fnr(fpr) == pytest.approx(missed, abs=error)


def test_composition_tradeoff_agrees_with_simulation():
    steps, rate, sigma = 50, 0.1, 1.2
    curve = li.composition(li.DPSGD(steps=steps, sample_rate=rate, noise_multiplier=sigma))
    rng = np.random.default_rng(1)
    trials = 200_000

    def losses(canary):
        total = np.zeros(trials)
        for _ in range(steps):
            x = rng.normal(0.0, sigma, trials) + canary * (rng.random(trials) < rate)
            total += np.log1p(rate * np.expm1((2.0 * x - 1.0) / (2.0 * sigma**2)))
        return total

    absent, present = losses(0.0), losses(1.0)
    for fpr in (0.01, 0.1, 0.5):
        missed = np.mean(present < np.quantile(absent, 1.0 - fpr))
        assert curve.fnr(fpr) == pytest.approx(missed, abs=10.0 * math.sqrt(0.25 / trials))
