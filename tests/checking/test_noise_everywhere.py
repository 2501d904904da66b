"""Noise that is right on the whole and missing somewhere, on numbers whose law is known."""

from __future__ import annotations

import numpy as np
import pytest

from lastiterate.checking.canary_effects import effect_of
from lastiterate.checking.declared import Declared
from lastiterate.checking.noise_tests import closest_row, without_row
from lastiterate.run import DPSGD

DECLARED = Declared(DPSGD(4, 0.5, 1.0))
DEVIATION = 2.0  # of four steps
ERROR = 1e-4


def models_of(seed, count=10, size=200):
    return DEVIATION * np.random.default_rng(seed).normal(size=(count, size))


def seen(size, untouched=0):
    direction = np.full(size, 1.0 / np.sqrt(size))
    displacement = -3.0 * direction
    displacement[:untouched] = 0.0
    return [effect_of(0, displacement, direction, 1.0, DEVIATION**2, ERROR)]


def test_independent_noise_raises_no_fault():
    for seed in range(300):
        models = models_of(seed)
        models += np.random.default_rng([seed, 1]).normal(size=(10, 1)) * np.linspace(0, 9, 200)  # sampling adds
        assert closest_row(models, DECLARED, 1.0, ERROR).status == "ok"
        assert without_row(models, seen(200), DECLARED, ERROR).status == "ok"


def test_one_draw_for_all_parameters_brings_models_close():
    models = np.repeat(models_of(0, size=1), 200, axis=1)
    row = closest_row(models, DECLARED, 1.0, ERROR)
    assert row.status == "fault"
    assert "one draw is used for many parameters" in row.advice


def test_the_interval_holds_what_curvature_leaves():
    row = closest_row(0.8 * models_of(0), DECLARED, 0.64, ERROR)
    assert row.status == "ok"
    assert row.low < 0.64 < row.high
    assert closest_row(0.5 * models_of(0), DECLARED, 0.64, ERROR).status == "fault"


@pytest.mark.parametrize(("effects", "status"), [(seen(200), "fault"), ([], "cannot tell"), (seen(200, 9), "ok")])
def test_parameters_without_noise_are_a_fault_if_a_canary_moves_them(effects, status):
    models = models_of(0)
    models[:, :9] = 1.0
    row = without_row(models, effects, DECLARED, ERROR)
    assert row.status == status
    assert row.measured == (0.0 if status == "ok" else 9.0)
