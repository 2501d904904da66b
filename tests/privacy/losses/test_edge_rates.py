"""Error rates where the best threshold lies at the edge of the loss, against sums over a grid of both steps."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate.privacy.losses.composition_values import fnr_bounds
from lastiterate.privacy.losses.loss_cumulant import loss_cumulant
from tests.privacy.brute_force import two_step_fnr

LITTLE_NOISE = [
    ((0.3, 0.05), (0.1, 0.1)),
    ((0.6, 0.1), (0.04, 0.16)),
    ((0.2, 0.2), (0.18, 0.18)),
    ((0.044, 0.044), (0.183, 0.183)),
    ((0.02, 0.5), (0.15, 0.06)),
    ((1.0, 0.3), (5.0, 0.05)),
]


@pytest.mark.parametrize(("rates", "sigmas"), LITTLE_NOISE)
@pytest.mark.parametrize("fpr", [1e-4, 0.02, 0.2, 0.6])
def test_two_steps_with_little_noise_agree_with_brute_force(rates, sigmas, fpr):
    value = li.composition(li.DPSGD(2, list(rates), list(sigmas))).fnr(fpr)
    assert value == pytest.approx(two_step_fnr(rates, sigmas, fpr), abs=2e-4)


def test_bounds_enclose_brute_force():
    random = np.random.default_rng(3)
    for _ in range(20):
        rates, sigmas = 10.0 ** random.uniform(-3.0, -0.1, 2), 10.0 ** random.uniform(-1.3, 0.5, 2)
        fpr = float(10.0 ** random.uniform(-5.0, -0.1))
        exact = two_step_fnr(rates, sigmas, fpr, cells=500)
        lower, upper = fnr_bounds(loss_cumulant(li.DPSGD(2, rates, sigmas)), fpr)
        assert lower <= exact <= upper + 2e-3  # the grid is coarse, and raises it


def test_a_rate_of_one_step_that_always_sees_the_canary_counts():
    """Little noise in a step that is rarely used, much in one that always is."""
    curve = li.composition(li.DPSGD(2, [1.0, 0.3], [0.5, 0.01]))
    gaussian = li.composition(li.DPSGD(1, 1.0, 0.5, sampling="full"))
    for fpr in (0.02, 0.2):
        assert curve.fnr(fpr) == pytest.approx(0.7 * gaussian.fnr(fpr), abs=1e-3)
