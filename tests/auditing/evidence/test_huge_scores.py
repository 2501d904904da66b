"""Scores at the ends of what floats can hold, and beyond: answered, drawn and written as any others."""

import json

import numpy as np
import pytest

import lastiterate as li
from lastiterate.auditing.evidence.score_signal import signal_of
from lastiterate.cli.report import result_fields

RUN = li.DPSGD(30, 0.1, 1.0)
MOST = np.finfo(float).max
KINDS = {
    "1e308": lambda z, canary: (1.0 if canary else -1.0) * 1e308 * (1 + 1e-3 * z),
    "the largest": lambda z, canary: MOST if canary else -MOST,
    "some huge": lambda z, canary: 1e308 if canary and z > 0 else z,
    "all equal": lambda z, canary: 1e308,
    "infinite": lambda z, canary: np.inf if canary else -np.inf,
    "some infinite": lambda z, canary: np.inf if canary and z > 0 else z,
    "tiny": lambda z, canary: 5e-324 * round(abs(z) + canary),
}


@pytest.mark.parametrize("threshold", ["a-priori", "split", "corrected", "uncorrected", 0.5])
@pytest.mark.parametrize("kind", KINDS)
def test_huge_scores_are_answered_without_a_warning(kind, threshold):
    result = li.audit(
        RUN, lambda seed, canary: KINDS[kind]((seed % 1001 - 500) / 200, canary), models=30, threshold=threshold
    )
    assert all(estimate.epsilon >= 0.0 for estimate in result.estimates.values())
    assert np.isfinite(result.signal)
    json.dumps(result_fields(result), allow_nan=False)
    if kind in ("1e308", "the largest", "infinite"):  # no error at all
        assert result.empirical["clopper-pearson"] > 1.0


def test_the_signal_does_not_depend_on_the_scale():
    scores = np.random.default_rng(1).normal([[1.0], [0.0]], 1.0, (2, 40))
    usual = signal_of(*scores)
    for power in (1000, 600, -600, -1000):
        assert signal_of(*np.ldexp(scores, power)) == usual
