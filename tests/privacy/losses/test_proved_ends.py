"""Both ends of composition's bracket are theorems: against closed forms, brute force and independent quadratures."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

import lastiterate as li
from lastiterate.privacy.losses import certified_bracket as proved_ends
from lastiterate.privacy.losses.certified_bracket import log_moment_bound, proved_epsilon, smoothed_line
from lastiterate.privacy.losses.composition_values import fnr_bounds
from lastiterate.privacy.losses.loss_cumulant import LossCumulant, loss_cumulant
from lastiterate.privacy.losses.step_loss import StepLoss
from tests.privacy.brute_force import two_step_fnr
from tests.privacy.helpers import deltas

rates = st.floats(-6.0, -0.05).map(lambda x: 10.0**x)
sigmas = st.floats(-0.52, 1.3).map(lambda x: 10.0**x)
SEED_OF_THOUSANDS = 5


def cumulant_of(steps, rate, sigma, remove=True):
    return LossCumulant(*(np.array([float(value)]) for value in (steps, rate, sigma)), remove=remove)


def delta_of_two_steps(epsilon, rate, sigma):
    """P over Q by a plain integral over the first step's x; the second step is a closed form.

    Where the first loss reaches epsilon - log(1 - q) any second one will do. The panels are fine around that x.
    """
    slope = 1.0 / sigma
    always = (math.log1p(math.expm1(epsilon - math.log1p(-rate)) / rate) + 0.5 * slope**2) / slope
    near = always + np.concatenate((-np.geomspace(14.0 + abs(always), 1e-15, 700), np.geomspace(1e-15, 14.0, 700)))
    ends = np.unique(np.clip(np.concatenate((near, np.linspace(-14.0, slope + 14.0, 100))), -14.0, slope + 14.0))
    node, weight = np.polynomial.legendre.leggauss(16)
    half, middle = 0.5 * np.diff(ends)[:, None], 0.5 * (ends[1:] + ends[:-1])[:, None]
    x, weight = (middle + half * node).ravel(), (half * weight).ravel()
    loss = np.log1p(rate * np.expm1(slope * x - 0.5 * slope**2))
    missing = epsilon - loss
    anything = missing <= math.log1p(-rate)
    growth = np.maximum(np.expm1(np.where(anything, 1.0, missing)) / rate, -1.0 + 1e-15)
    least = np.where(anything, -np.inf, (np.log1p(growth) + 0.5 * slope**2) / slope)
    without = np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    tail_q = ndtr(-least)
    tail_p = (1.0 - rate) * tail_q + rate * ndtr(slope - least)
    return float(weight @ (without * (np.exp(loss) * tail_p - math.exp(epsilon) * tail_q)))


@pytest.mark.parametrize(
    ("rate", "sigma"), [(0.01, 0.8), (0.1, 1.0), (0.001, 0.5), (0.3, 0.5), (0.5, 3.0), (1e-4, 0.6)]
)
def test_two_steps_agree_with_brute_force(rate, sigma):
    curve = li.composition(li.DPSGD(2, rate, sigma))
    for delta in (1e-8, 1e-5, 1e-3):
        epsilon, (lower, upper) = curve.epsilon(delta), curve.bracket(delta)
        if epsilon > 0.0:
            assert delta_of_two_steps(epsilon, rate, sigma) == pytest.approx(delta, rel=1e-7)
        assert delta_of_two_steps(upper, rate, sigma) < delta
        if lower > 0.0:
            assert delta_of_two_steps(lower, rate, sigma) > delta


@pytest.mark.parametrize("rate", [1e-5, 0.01, 0.5])
@pytest.mark.parametrize("sigma", [0.4, 1.0, 5.0])
def test_bounds_on_delta_enclose_brute_force(rate, sigma):
    for epsilon in (0.3 * rate, 0.1, 2.0):
        exact = delta_of_two_steps(epsilon, rate, sigma)
        if exact > 1e-13:
            upper, lower = smoothed_line(cumulant_of(2, rate, sigma), math.log(exact), epsilon).bounds(epsilon)
            assert lower < math.log(exact) < upper < lower + 1e-2


def test_ends_hold_for_thousands_of_single_steps(monkeypatch):
    """One step has a closed form, good to 1e-10. Wide smoothing makes the theorem cheap: some ten seconds."""
    monkeypatch.setattr(proved_ends, "_EXCESS", 1e-3)
    monkeypatch.setattr(proved_ends, "_EXCESS_OF_SMALL", 0.02)
    random = np.random.default_rng(SEED_OF_THOUSANDS)
    tight = 0
    for _ in range(1500):
        rate, sigma, delta = 10.0 ** random.uniform((-6.0, -0.52, -14.0), (-0.05, 1.3, -1.0))
        exact = li.last_iterate(li.DPSGD(1, rate, sigma)).epsilon(delta)
        lower, upper = proved_epsilon(cumulant_of(1, rate, sigma), math.log(delta), exact)
        slack = 1e-10 * max(1.0, exact)
        assert lower - slack <= exact <= upper + slack
        tight += upper - lower < 5e-3 * max(1.0, exact)
    assert tight > 1450


def test_ends_hold_for_hundreds_of_pairs_of_steps(monkeypatch):
    """Against brute force, whose own error is some 1e-9 of delta: some five seconds."""
    monkeypatch.setattr(proved_ends, "_EXCESS", 1e-4)
    random = np.random.default_rng(SEED_OF_THOUSANDS)
    for _ in range(300):
        rate, sigma, delta = 10.0 ** random.uniform((-5.0, -0.4, -9.0), (-0.05, 1.0, -1.0))
        lower, upper = proved_epsilon(cumulant_of(2, rate, sigma), math.log(delta), None)
        assert delta_of_two_steps(upper, rate, sigma) <= delta * (1.0 + 1e-7)
        assert lower == 0.0 or delta_of_two_steps(lower, rate, sigma) >= delta * (1.0 - 1e-7)


@settings(max_examples=150)
@given(st.floats(0.302, 8.5).map(lambda x: int(10.0**x)), rates, sigmas, deltas)
def test_values_lie_between_the_ends_and_the_last_iterate_below_the_upper_one(steps, rate, sigma, delta):
    run = li.DPSGD(steps, rate, sigma)
    curve = li.composition(run)
    lower, upper = curve.bracket(delta)
    assert curve.proved == ("lower", "upper")
    assert lower <= curve.epsilon(delta) <= upper
    assert li.last_iterate(run).bracket(delta)[0] <= upper


@settings(max_examples=60)
@given(rates, sigmas, st.booleans(), st.floats(-3.0, 8.0), st.floats(0.0, 4.0), st.floats(-60.0, -25.0))
def test_the_bound_on_quadrature_holds(rate, sigma, remove, order, frequency, log_left_out):
    """Against panels half as wide; rounding is not in this bound."""
    step = StepLoss(rate, 1.0 / sigma, remove, log_left_out)
    frequency = 10.0**frequency
    nodes, finer = step.nodes(order, frequency), step.nodes(order, frequency, 2.0)
    top = float((nodes.log_weight + order * nodes.loss).max())
    total = float(np.exp(nodes.log_weight + order * nodes.loss - top).sum())
    bound = math.exp(step.log_error(nodes, order, frequency) - top) / total
    assert bound < 1e-11
    for u in (0.0, 0.3 * frequency, frequency):
        sums = [np.exp(each.log_weight + (order + 1j * u) * each.loss - top).sum() for each in (nodes, finer)]
        rounding = 1e-14 * (10.0 + abs(order) + u * float(np.abs(nodes.loss).max()))
        assert abs(sums[0] - sums[1]) / total <= bound + rounding


@pytest.mark.parametrize(("rate", "sigma", "order"), [(0.01, 1.0, 3.0), (1e-4, 0.5, 9.0), (0.3, 4.0, -2.5)])
def test_the_bound_on_a_moment_is_above_it_and_close(rate, sigma, order):
    """Against mpmath's quadrature, to 30 digits, over the same window."""
    step = StepLoss(rate, 1.0 / sigma, order > 0.0, -60.0)
    with mpmath.workdps(30):
        slope, q = mpmath.mpf(step.slope), mpmath.mpf(rate)
        moment = mpmath.quad(
            lambda x: (1 - q + q * mpmath.exp(slope * x - slope**2 / 2)) ** order * mpmath.npdf(x),
            mpmath.linspace(*step.window, 24),
        )
        exact = mpmath.log(moment)
    assert exact < log_moment_bound(step, order) < exact + 1e-11 * (1.0 + abs(exact))


def test_losses_apart_are_an_exact_part_of_delta():
    """delta(epsilon) does not depend on where large losses are cut off and accounted for apart."""
    cumulant, epsilon, log_delta = cumulant_of(3, 0.001, 0.5), 0.4, math.log(1e-5)
    bounds = []
    for factor in (1.05, 1.5, 4.0, 50.0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(proved_ends, "_CAP", factor)
            bounds.append(smoothed_line(cumulant, log_delta, epsilon).bounds(epsilon))
    assert max(lower for _, lower in bounds) < min(upper for upper, _ in bounds)
    assert max(upper for upper, _ in bounds) - min(lower for _, lower in bounds) < 1e-4


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
