"""Telling the canary's batches: bounds on composition that are proved, where counts are taken in stretches too."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from lastiterate.privacy.analyses import no_amplification
from lastiterate.privacy.analyses.no_amplification import told_participations


@pytest.fixture(autouse=True)
def _as_curves_do():
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize(("steps", "rate"), [(1000, 0.3), (50_000, 0.01), (300, 0.9), (10**6, 1e-4)])
def test_masses_of_stretches_are_bounds(monkeypatch, steps, rate):
    monkeypatch.setattr(no_amplification, "_MOST_COUNTS", 60)
    middle, half = no_amplification._stretches(steps, rate)
    lower, upper = (
        np.exp(no_amplification._log_masses(middle, half, steps, rate, upper=upper)) for upper in (False, True)
    )
    exact = np.array([binom.pmf(np.arange(m - half, m + half + 1.0), steps, rate).sum() for m in middle])
    assert half >= 2.0
    assert exact.sum() == pytest.approx(1.0)
    assert np.all(lower <= exact * (1.0 + 1e-9) + 1e-300)
    assert np.all(upper >= exact * (1.0 - 1e-9))


@pytest.mark.parametrize(("steps", "rate", "sigma"), [(50_000, 0.01, 0.2), (3000, 0.9, 0.1), (400, 0.02, 0.004)])
def test_stretches_bound_what_single_counts_tell(monkeypatch, steps, rate, sigma):
    single = [told_participations(steps, rate, sigma, upper=upper) for upper in (False, True)]
    monkeypatch.setattr(no_amplification, "_MOST_COUNTS", 300)
    stretches = [told_participations(steps, rate, sigma, upper=upper) for upper in (False, True)]
    assert stretches[0].count.size < single[0].count.size
    for log_delta in map(math.log, (1e-9, 1e-3, 0.2)):
        ends = [pair.proved_end(log_delta, upper=upper) for pair, upper in zip(stretches, (False, True), strict=True)]
        close = [pair.proved_end(log_delta, upper=upper) for pair, upper in zip(single, (False, True), strict=True)]
        assert ends[0] <= close[0] <= close[1] <= ends[1]


def test_proved_ends_are_on_their_sides_of_the_value():
    for upper in (False, True):
        pair = told_participations(20, 0.1, 0.2, upper=upper)
        for log_delta in (-30.0, -5.0, -0.5):
            value, end = float(pair.epsilon(np.float64(log_delta))), pair.proved_end(log_delta, upper=upper)
            assert end == pytest.approx(value, rel=1e-8)
            assert float(pair.log_delta(np.float64(end))) * (1.0 if upper else -1.0) < log_delta * (1 if upper else -1)
    assert pair.proved_end(-1e-13, upper=False) == 0.0
