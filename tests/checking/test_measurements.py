"""Single measurements, on numbers whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

import lastiterate as li
from lastiterate.checking.canary_effects import UNKNOWN, effect_of, fit, is_dead, least_noise, quiet, restricted
from lastiterate.checking.clipping import others_row, ratio_row, tensor_row
from lastiterate.checking.declared import Declared
from lastiterate.checking.gradient_checks import _telling
from lastiterate.checking.noise import Spread
from lastiterate.checking.optimizer_effect import steps_row
from lastiterate.checking.participation import _range_law, participation_rows

RNG = np.random.default_rng(0)
PLAIN = Declared(li.DPSGD(10, 0.2, 1.0, optimizer=li.SGD(0.5)))


def _effect(count, bend=None, noise=0.0, size=400, rate=0.5):
    """The effect of a canary that was in so many batches, bent by a factor for each coordinate."""
    direction = RNG.choice([-1.0, 1.0], size) / np.sqrt(size)
    factors = np.ones(size) if bend is None else bend
    displacement = -2.0 * rate * count * direction * factors + noise * RNG.standard_normal(size)
    return effect_of(0, displacement, direction, 2.0, 1.0, 1e-4)


def test_the_interval_of_a_variance_is_that_of_chi_square():
    spread = Spread(np.full(10, 1.2), 7)
    measured, low, high = spread.interval(0.01)
    assert measured == pytest.approx(1.2)
    assert chi2.cdf(60 * 1.2 / low, 60) == pytest.approx(0.995)
    assert chi2.cdf(60 * 1.2 / high, 60) == pytest.approx(0.005)


def test_bounds_of_quiet_and_loud_parameters_hold_for_noise_alone():
    ratios = RNG.chisquare(6, (400, 100)) / 6
    spreads = [Spread(each, 7) for each in ratios]
    assert np.mean([each.of_the_quiet(0.01) > 1.0 for each in spreads]) <= 0.03
    assert np.mean([each.of_the_loud() for each in spreads]) == pytest.approx(1.0, abs=0.1)


def test_an_effect_is_along_its_canary_in_units_of_the_clipping_norm():
    found = _effect(3)
    assert found.along == pytest.approx(1.5)
    assert found.shared
    assert found.took_part
    assert found.spread < 1e-12


def test_effects_in_noise_are_within_their_margins():
    outside = [abs(found.along - 1.5) > found.margin for found in (_effect(3, noise=1.0) for _ in range(300))]
    assert sum(outside) <= 2
    found = _effect(3, noise=1.4)
    assert not found.shared
    assert not found.took_part


def test_coordinates_without_curvature_are_found_and_show_the_sum_itself():
    bend = np.where(np.arange(400) < 300, RNG.uniform(0.5, 0.9, 400), 1.0)
    found = _effect(2, bend)
    which = quiet(found)
    assert which.tolist() == list(range(300, 400))
    part = restricted(found, which)
    assert found.along < 0.85
    assert part.along == pytest.approx(1.0)
    assert is_dead([found], [part], 0.0)
    straight = _effect(2)
    assert not is_dead([straight], [restricted(straight, quiet(straight))], 0.0)


def test_a_fit_names_the_sum_of_weights():
    assert fit(_effect(3), PLAIN).sum == pytest.approx(1.5)
    assert fit(_effect(3), PLAIN).explained
    less = fit(_effect(2.6), PLAIN)
    assert not less.explained
    assert less.ratio == pytest.approx(2.6 / 3)
    assert fit(_effect(3), PLAIN, clip=1.5).sum == pytest.approx(1.0)


def test_contraction_that_was_seen_late_may_be_more_in_all():
    few = least_noise([_effect(0.9)], PLAIN, 1.0, 1e-4, several=False)[0]
    many = least_noise([_effect(8.9) for _ in range(8)], PLAIN, 1.0, 1e-4, several=False)[0]
    none = least_noise([_effect(3), _effect(4)], PLAIN, 1.0, 1e-4, several=False)[0]
    assert few == pytest.approx(PLAIN.last)
    assert few < many < none
    assert none == pytest.approx(1.0)
    assert least_noise([_effect(1)], PLAIN, 1.0, 1e-4, several=False)[0] <= UNKNOWN  # it may have been the last step


def test_the_law_of_the_range_is_that_of_simulation():
    law = _range_law(10, 0.2, 5)
    counts = RNG.binomial(10, 0.2, (100_000, 5))
    ranges = counts.max(axis=1) - counts.min(axis=1)
    for width in range(7):
        assert law[width] == pytest.approx(np.mean(ranges <= width), abs=0.006)


def test_a_ratio_is_a_fault_only_beyond_what_bending_explains():
    top, bottom = _effect(3), _effect(2)
    assert ratio_row("x", None, top, bottom, 1.0, 0.1).status == "fault"
    assert ratio_row("x", None, top, bottom, 1.0, 0.1, bent=0.6).status == "cannot tell"
    assert ratio_row("x", None, top, bottom, 2.0 / 3.0, 0.1).status == "ok"


def test_strong_curvature_is_no_clipping_of_others():
    """Two canaries above the clipping norm do the same, however the loss bends; clipped with others they do not."""
    bend = RNG.uniform(-1.0, 3.0, 400)
    loud = _effect(3, bend)
    assert loud.spread > 0.5
    assert others_row(loud, replace(loud), 0.0).status == "ok"
    assert others_row(loud, replace(loud, rest=1.5 * loud.rest), 0.0).status == "fault"
    assert others_row(loud, replace(loud, along=0.9 * loud.along), 0.0).status == "fault"


def test_other_canaries_are_tried_where_the_first_scaled_the_noise():
    models = RNG.standard_normal((3, 400))
    straight, bent = _effect(3), replace(_effect(1, RNG.uniform(0.0, 2.0, 400)), number=1)
    scaled = replace(bent, rest=bent.rest + 0.1 * np.linalg.norm(bent.rest) * models[1])
    assert _telling([straight, scaled], models) is scaled
    assert _telling([straight, bent], models) is straight  # a kink of the loss
    alike = _effect(3, RNG.uniform(0.5, 1.5, 400))
    assert _telling([scaled, alike], models) is alike


def test_weights_that_add_up_to_less_than_nothing_are_no_fault():
    """Decay of more than all of the parameters makes weights of both signs."""
    declared = Declared(li.DPSGD(5, 0.01, 1.0, optimizer=li.SGD(5.0, weight_decay=5.0, decoupled=True)))
    assert declared.weights.sum() < 0.0 or declared.weights[0] < 0.0 or declared.weights[1] < 0.0
    rows = participation_rows([_effect(0) for _ in range(6)], declared, 1.0, 1e-3)
    assert {row.status for row in rows} <= {"ok", "not checked"}


def test_a_tensor_of_one_number_that_others_pull_is_no_fault():
    both, one = np.array([1.0, 1.0]) / np.sqrt(2.0), np.array([1.0, 0.0])
    small = effect_of(0, -0.2 * np.array([1.0, 0.8]) / np.sqrt(2.0), both, 1.0, 1.0, 1e-4)
    alone = effect_of(0, -0.94 * one, one, 1.0, 1.0, 1e-4)
    assert small.spread > 0.1
    assert tensor_row(alone, small, "weight", 0.0).status == "ok"
    less = effect_of(0, -0.1 * one, one, 1.0, 1.0, 1e-4)
    assert tensor_row(less, small, "weight", 0.0).status == "fault"


def test_curvature_at_one_seed_explains_no_lack_of_noise():
    bent = _effect(1, 1.0 + RNG.choice([-0.5, 0.5], 400))
    least, likely = least_noise([bent, _effect(3), _effect(2), _effect(2)], PLAIN, 1.0, 1e-4, several=False)
    assert least <= 0.1  # it might have taken nearly all
    assert likely > 0.95


def test_steps_of_one_other_size_are_told_through_accidents():
    """Five steps of 1.2 times the size are six of the declared ones."""
    effects = [_effect(1.2 * count) for count in (1, 5, 2, 3, 1, 2)]
    row = steps_row(effects, PLAIN, 1.0, 1e-4, still=False, several=False)
    assert row.status == "fault"
    assert row.measured == pytest.approx(1.2)
    nearly = [_effect(1.2 * count * bend) for count, bend in ((1, 1.0), (5, 0.99), (2, 1.01), (1, 0.98))]
    assert steps_row(nearly, PLAIN, 1.0, 1e-4, still=False, several=False).status == "cannot tell"
    assert (
        steps_row([_effect(count) for count in (1, 5, 2)], PLAIN, 1.0, 1e-4, still=False, several=False).status == "ok"
    )
