"""The heuristic: properties, closed forms, and the corners of its domain."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import binom

import lastiterate as li
from tests.privacy.brute_force import mixture_of
from tests.privacy.helpers import brute_force_delta, deltas, gaussian_delta, relative_error, runs, sigmas, weighted_runs


@given(weighted_runs(), deltas)
def test_delta_is_the_inverse_of_epsilon_for_schedules(run, delta):
    curve = li.last_iterate(run)
    epsilon = curve.epsilon(delta)
    assume(epsilon > 0.0)
    assert curve.delta(epsilon) == pytest.approx(delta, rel=1e-6)


@given(st.integers(1, 10**6), sigmas, st.floats(0.01, 30.0))
def test_certain_participation_is_the_gaussian_mechanism(steps, sigma, epsilon):
    run = li.DPSGD(steps=steps, sample_rate=1.0, noise_multiplier=sigma)
    expected = gaussian_delta(epsilon, math.sqrt(steps) / sigma)
    assume(expected > 1e-12)
    assert li.last_iterate(run).delta(epsilon) == pytest.approx(expected, rel=1e-8)
    assert li.full_batch(run).delta(epsilon) == pytest.approx(expected, rel=1e-8)
    assert li.composition(run).delta(epsilon) == pytest.approx(expected, rel=1e-8)


@given(weighted_runs(longest=12), deltas, st.floats(1e-3, 1e3))
def test_a_common_factor_of_the_weights_changes_nothing(run, delta, factor):
    scaled = run.replace(weights=np.asarray(run.weights) * factor)
    first, second = li.last_iterate(run).epsilon(delta), li.last_iterate(scaled).epsilon(delta)
    assert relative_error(first, second) < 1e-10


@given(st.integers(1, 25), st.floats(0.01, 0.99), st.floats(0.3, 3.0), st.floats(0.0, 4.0))
def test_delta_agrees_with_numerical_integration(steps, rate, sigma, epsilon):
    k = np.arange(steps + 1)
    expected = brute_force_delta(k, binom.pmf(k, steps, rate), sigma * math.sqrt(steps), epsilon, nodes=60_001)
    run = li.DPSGD(steps=steps, sample_rate=rate, noise_multiplier=sigma)
    assert li.last_iterate(run).delta(epsilon) == pytest.approx(expected, rel=1e-5, abs=1e-9)


CORNERS = [
    dict(steps=steps, sample_rate=rate, noise_multiplier=sigma)
    for steps in (1, 10, 1000, 10**6, 10**9)
    for rate in (0.0, 1e-9, 1e-3, 0.5, 0.9999, 1.0)
    for sigma in (1e-3, 0.05, 1.0, 1e6)
]


@pytest.mark.parametrize("corner", CORNERS, ids=str)
def test_corners_give_numbers_without_a_warning(corner):
    curve = li.last_iterate(li.DPSGD(**corner))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        epsilons = curve.epsilon(np.array([1e-300, 1e-14, 1e-5, 0.1, 0.9]))
        assert np.all(epsilons >= 0.0)
        assert np.all(np.diff(epsilons) <= 0.0)
        for epsilon, delta in zip(epsilons[1:4], (1e-14, 1e-5, 0.1), strict=True):
            if epsilon > 0.0:
                assert curve.delta(epsilon) == pytest.approx(delta, rel=1e-3)
        assert 0.0 <= curve.advantage() <= 1.0
        rates = curve.fnr(np.array([0.0, 1e-3, 0.5, 1.0]))
        assert rates[0] == 1.0
        assert rates[-1] == 0.0
        assert np.all(np.diff(rates) <= 0.0)


def test_errata_small_delta_is_not_too_low():
    run = li.DPSGD(steps=100, sample_rate=0.1, noise_multiplier=2.0)
    assert li.last_iterate(run).epsilon(1e-12) == pytest.approx(4.046, abs=1e-3)


@pytest.mark.parametrize(
    ("run", "epsilon", "delta"),
    [
        (li.DPSGD(28, 3.5e-4, 0.18), 1.441, 4.88067374e-9),
        (li.DPSGD(57, 0.0003441885904113905, 0.052994563160671845), 25.65216671074382, 7.3369264e-8),
    ],
)
def test_delta_of_a_rare_canary_with_little_noise(run, epsilon, delta):
    """The search begins far out, where the tilted binomial is all canaries: from there the view does not reach back."""
    curve = li.last_iterate(run)
    assert curve.delta(epsilon) == pytest.approx(delta, rel=1e-8)
    assert curve.delta([0.1 * epsilon, epsilon])[1] == pytest.approx(delta, rel=1e-8)


@pytest.mark.parametrize("seed", range(30))
def test_delta_of_rare_canaries_agrees_with_the_sum_over_all_counts(seed):
    generator = np.random.default_rng([17, seed])
    steps, rate, sigma = (10.0 ** generator.uniform(*ends) for ends in ((0, 2.5), (-7, -2), (-2, 0)))
    run = li.DPSGD(int(steps), rate, sigma)
    curve, truth = li.last_iterate(run), mixture_of(run)
    epsilons = curve.epsilon(np.array([1e-4, 1e-6, 1e-8, 1e-12])) * generator.uniform(0.2, 1.0, 4)
    together = curve.delta(epsilons)
    for epsilon, delta in zip(epsilons.tolist(), together.tolist(), strict=True):
        value, error = truth.delta(epsilon)
        assert delta == pytest.approx(value, rel=1e-8, abs=error + 1e-300)
        assert curve.delta(epsilon) == pytest.approx(delta, rel=1e-9)


def test_just_below_a_flat_delta_epsilon_is_where_it_falls():
    """One step, plainly seen: delta is the rate, but for what falls short of it from e^epsilon Q = 1e-11 on."""
    rate, sigma = 1.0995047645624231e-07, 0.055091272330642364
    curve = li.last_iterate(li.DPSGD(1, rate, sigma))
    below = rate * (1.0 - 1e-11)
    assert curve.epsilon(below) == pytest.approx(curve.epsilon([below, 1e-10])[0], rel=1e-4)
    assert mixture_of(li.DPSGD(1, rate, sigma)).delta(curve.epsilon(below) * 1.01)[0] < below
    assert curve.epsilon(below) > 20.0
    lower, upper = curve.bracket(rate)
    assert lower == 0.0
    assert upper > 20.0


def test_grid_equals_single_calls_and_broadcasts():
    rng = np.random.default_rng(0)
    steps = rng.integers(1, 10**6, (40, 1))
    rate = 10.0 ** rng.uniform(-5.0, 0.0, (1, 5))
    rate[0, 0], rate[0, 1] = 0.0, 1.0
    sigma = 10.0 ** rng.uniform(-2.0, 2.0, (40, 5))
    values = li.last_iterate_epsilon(steps, rate, sigma, 1e-6)
    assert values.shape == (40, 5)
    for i in range(40):
        for j in range(5):
            run = li.DPSGD(steps=int(steps[i, 0]), sample_rate=rate[0, j], noise_multiplier=sigma[i, j])
            assert values[i, j] == pytest.approx(li.last_iterate(run).epsilon(1e-6), rel=1e-10, abs=1e-10)


def test_scalars_give_a_float():
    assert isinstance(li.last_iterate_epsilon(1000, 0.01, 1.0, 1e-5), float)
    assert li.last_iterate_epsilon(1000, 0.01, 1.0, 1e-5) == pytest.approx(1.27775588779, abs=1e-11)


@given(runs(), deltas)
def test_is_the_gaussian_mechanism_with_noise_over_the_rate(run, delta):
    single = li.DPSGD(steps=run.steps, sample_rate=1.0, noise_multiplier=run.noise_multiplier / run.sample_rate)
    expected = li.last_iterate(single).epsilon(delta)
    assert li.full_batch(run).epsilon(delta) == pytest.approx(expected, rel=1e-9, abs=1e-12)
