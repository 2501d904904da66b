"""Correct trainings of different kinds are not accused: a tenth of ``python -m tests.checking.many 1000``."""

from __future__ import annotations

from dataclasses import replace

import pytest

import lastiterate as li
from tests.checking.many import accused
from tests.checking.zoo.correct import correct


@pytest.mark.slow
@pytest.mark.parametrize("tenth", range(10))
def test_correct_trainings_raise_no_more_faults_than_the_stated_error(tenth):
    words, ends = accused(range(10 * tenth, 10 * tenth + 10))
    assert words == []  # 0.01 are expected of ten, and what is drawn is always the same
    assert ends["passed"] >= 3  # without random numbers that worlds share, clipping cannot be told


@pytest.mark.parametrize("number", [7, 10, 21, 28, 44, 58])
def test_worlds_that_share_noise_but_not_batches_are_not_accused(number):
    """Noise hides that other examples were in the batches, and what those did must not be taken for the canary's."""
    each = correct(number)
    result = li.check(each.run, replace(each.train, pairing="noise"), seed=number, initial=each.initial)
    assert result.faults == ()
