"""The standard analysis, against dp-accounting's privacy loss distributions and closed forms."""

import math
import warnings

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import lastiterate as li
from tests.privacy.brute_force import two_step_delta
from tests.privacy.helpers import runs, weighted_runs
from tests.tools.random_compositions import checked, random_run


def pld_bracket(run, delta, interval=1e-3):
    """dp-accounting's optimistic and pessimistic epsilon, steps grouped by (rate, noise)."""
    groups = {}
    for rate, sigma in zip(
        np.broadcast_to(run.sample_rate, run.steps), np.broadcast_to(run.noise_multiplier, run.steps), strict=True
    ):
        groups[float(rate), float(sigma)] = groups.get((float(rate), float(sigma)), 0) + 1
    values = []
    for pessimistic in (False, True):
        total = None
        for (rate, sigma), count in groups.items():
            one = pld.from_gaussian_mechanism(
                sigma,
                sampling_prob=rate,
                value_discretization_interval=interval,
                pessimistic_estimate=pessimistic,
                use_connect_dots=pessimistic,
            ).self_compose(count)
            total = one if total is None else total.compose(one)
        values.append(total.get_epsilon_for_delta(delta))
    return values


# The design's examples of a grid in x that is silently too low, and two where PLD itself fails.
KNOWN = [
    (30, 0.01, 0.8, 1e-6, 1.64800588),
    (100, 0.003, 0.6, 1e-6, 2.71061273),
    (1000, 0.01, 1.0, 1e-5, 1.828236667),
    (1000, 0.01, 1.0, 1e-14, 4.543701989),
    (1000, 0.01, 1.0, 1e-18, 5.7663),
]


@pytest.mark.parametrize(("steps", "rate", "sigma", "delta", "epsilon"), KNOWN)
def test_known_values(steps, rate, sigma, delta, epsilon):
    run = li.DPSGD(steps=steps, sample_rate=rate, noise_multiplier=sigma)
    assert li.composition(run).epsilon(delta) == pytest.approx(epsilon, abs=1e-4 if delta == 1e-18 else 2e-8)


@pytest.mark.slow
def test_random_runs_lie_within_the_bounds_of_privacy_loss_distributions_and_the_proved_ends():
    """`python -m tests.tools.random_compositions` does the same with 500 runs; these take some ten seconds."""
    random = np.random.default_rng(7)
    results = [checked(*random_run(random)) for _ in range(40)]
    assert [result for result in results if result.faults] == []
    assert sum(result.peer is not None for result in results) >= 5


@settings(max_examples=25)
@given(
    runs(steps=st.integers(2, 3000), sample_rates=st.floats(0.002, 0.5), sigmas=st.floats(0.5, 4.0)),
    st.floats(-9.0, -3.0).map(lambda x: 10.0**x),
)
def test_value_lies_within_the_bracket_of_privacy_loss_distributions(run, delta):
    optimistic, pessimistic = pld_bracket(run, delta)
    assume(pessimistic < 40.0)
    value = li.composition(run).epsilon(delta)
    assert optimistic - 1e-6 <= value <= pessimistic + 1e-4


@settings(max_examples=10)
@given(weighted_runs(longest=8), st.floats(-8.0, -4.0).map(lambda x: 10.0**x))
def test_schedules_lie_within_the_bracket_of_privacy_loss_distributions(run, delta):
    optimistic, pessimistic = pld_bracket(run, delta)
    value = li.composition(run).epsilon(delta)
    assert optimistic - 1e-6 <= value <= pessimistic + 1e-3 * max(1.0, pessimistic)


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 0.5), (0.2, 1.0), (0.9, 2.0)])
def test_one_step_agrees_with_dp_accounting(rate, sigma):
    run = li.DPSGD(steps=1, sample_rate=rate, noise_multiplier=sigma)
    optimistic, pessimistic = pld_bracket(run, 1e-6, interval=1e-4)
    assert optimistic - 1e-9 <= li.last_iterate(run).epsilon(1e-6) <= pessimistic + 1e-9


CORNERS = [
    (steps, rate, sigma)
    for steps in (2, 10, 1000, 10**6, 10**9)
    for rate in (1e-9, 1e-3, 0.5, 0.9999)
    for sigma in (1e-3, 0.1, 1.0, 1e6)
]


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "rate", "sigma"), CORNERS)
def test_corners_give_ordered_numbers_without_a_warning(steps, rate, sigma):
    run = li.DPSGD(steps=steps, sample_rate=rate, noise_multiplier=sigma)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curve = li.composition(run)
        for delta in (1e-300, 1e-5, 0.3):
            lower, upper = curve.bracket(delta)
            value = curve.epsilon(delta)
            assert 0.0 <= lower <= value <= upper
            assert li.last_iterate(run).bracket(delta)[0] <= upper * (1.0 + 1e-9) + 1e-9
            if delta == 1e-5 and rate >= 1e-3:
                assert upper - lower <= 1e-3 * max(1.0, upper)


@pytest.mark.parametrize(
    ("rates", "sigmas"),
    [(0.01, np.linspace(1.0, 2.0, 100)), (np.geomspace(0.003, 0.03, 120), 0.9)],
    ids=["noise", "rates"],
)
def test_long_schedules_lie_between_those_with_few_levels(rates, sigmas):
    size = max(np.size(rates), np.size(sigmas))
    bounds = []
    for worse in (False, True):
        q, sigma = (_few_levels(values, up=up) for values, up in ((rates, worse), (sigmas, not worse)))
        bounds.append(li.composition(li.DPSGD(size, q, sigma)).bracket(1e-6)[1 if worse else 0])
    lower, upper = li.composition(li.DPSGD(size, rates, sigmas)).bracket(1e-6)
    assert bounds[0] < lower <= upper < bounds[1]
    assert upper - lower < 2e-6
    assert bounds[1] - bounds[0] < 0.3 * upper  # ten levels bracket it loosely


def _few_levels(values, up, levels=10):
    if np.ndim(values) == 0:
        return values
    grid = np.geomspace(values.min() * (1 - 1e-12), values.max() * (1 + 1e-12), levels)
    return grid[np.searchsorted(grid, values) - (0 if up else 1)]


@pytest.mark.parametrize("sampling", ["shuffled", "fixed"])
def test_sampling_without_a_proof_of_amplification_is_refused(sampling):
    run = li.DPSGD(steps=100, sample_rate=0.1, noise_multiplier=1.0, sampling=sampling)
    with pytest.raises(ValueError, match=r"for composition, got .*no_amplification"):
        li.composition(run)
    assert li.no_amplification(run).epsilon(1e-5) > li.last_iterate(run).epsilon(1e-5)


def test_full_batches_compose_like_one_gaussian():
    run = li.DPSGD(steps=9, sample_rate=1.0, noise_multiplier=3.0, sampling="full")
    single = li.DPSGD(steps=1, sample_rate=1.0, noise_multiplier=1.0)
    assert li.composition(run).epsilon(1e-5) == pytest.approx(li.last_iterate(single).epsilon(1e-5), rel=1e-12)
    assert math.isfinite(li.composition(run).epsilon(1e-300))


FEW = [((0.143, 0.0055), (0.0322, 0.0365)), ((0.0814, 0.00645), (0.0121, 0.0108)), ((0.233, 0.0468), (0.0279, 0.13))]


@pytest.mark.parametrize(("rates", "sigmas"), FEW)
def test_delta_of_two_steps_with_little_noise_falls_and_is_exact(rates, sigmas):
    curve = li.composition(li.DPSGD(2, rates, sigmas))
    epsilons = [0.0, 1e-6, 0.3, 0.4 / max(sigmas) ** 2]
    found = np.array([curve.delta(epsilon) for epsilon in epsilons])
    truth = np.array([two_step_delta(rates, sigmas, epsilon)[0] for epsilon in epsilons])
    assert found == pytest.approx(truth, rel=1e-7)
    assert np.all(np.diff(found) <= 1e-8 * found[:-1])


@settings(max_examples=4, deadline=None)
@given(st.data())
def test_delta_of_few_steps_falls_with_epsilon_and_is_never_too_low(data):
    steps = data.draw(st.integers(2, 3))
    rates = [data.draw(st.floats(-3.0, -0.05).map(lambda x: 10.0**x)) for _ in range(steps)]
    sigmas = [data.draw(st.floats(-2.0, 0.0).map(lambda x: 10.0**x)) for _ in range(steps)]
    curve = li.composition(li.DPSGD(steps, rates, sigmas))
    epsilons = [0.0, 0.3, 5.0, data.draw(st.floats(5.0, 1.0 / min(sigmas) ** 2 + 5.0))]
    found = np.array([curve.delta(epsilon) for epsilon in epsilons])
    assert np.all(np.diff(found) <= 1e-6 * found[:-1])
    two = np.array([two_step_delta(rates[:2], sigmas[:2], epsilon)[0] for epsilon in epsilons])  # of all steps
    assert np.all(found >= (1.0 - 1e-6) * two - 1e-13)
