import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

import lastiterate as li
from lastiterate.paper.counterexamples.worst import worst

DELTA = 1e-6
RUN = li.DPSGD(5, 0.09, 0.9)


@pytest.fixture(scope="module")
def found():
    return {violation.family: violation for violation in worst(RUN, DELTA)}


def epsilon(weights):
    return li.last_iterate(li.DPSGD(len(weights), RUN.sample_rate, RUN.noise_multiplier, weights=weights)).epsilon(
        DELTA
    )


def test_what_is_found_is_exact_for_its_weights(found):
    largest = max(li.last_iterate(RUN.prefix(steps)).epsilon(DELTA) for steps in range(1, 6))
    for violation in found.values():
        assert violation.epsilon == pytest.approx(epsilon(violation.weights), rel=1e-9)
        assert violation.ratio == pytest.approx(violation.epsilon / largest, rel=1e-9)


def test_parameters_give_the_weights(found):
    decay, momentum, levels = (found[name] for name in ("decay", "momentum and decay", "two levels"))
    np.testing.assert_allclose(decay.weights, (1 - decay.parameters["alpha"]) ** np.arange(5)[::-1])
    np.testing.assert_allclose(momentum.weights, li.SGD(1.0, **momentum.parameters).weights(5), atol=1e-12)
    heavy, light = levels.parameters["heavy_steps"], levels.parameters["light_weight"]
    assert sorted(levels.weights) == pytest.approx([light] * (5 - heavy) + [1.0] * heavy)


def test_no_momentum_of_a_dense_scan_is_worse(found):
    scan = [
        li.SGD(1.0, momentum=beta, weight_decay=share * (1 - math.sqrt(beta)) ** 2).weights(5)
        for beta in np.linspace(0.0, 0.98, 16)
        for share in np.linspace(0.01, 1.0, 16)
    ]
    assert all(np.min(weights) >= -1e-12 for weights in scan)
    assert max(epsilon(np.maximum(weights, 0.0)) for weights in scan) <= found["momentum and decay"].epsilon * (
        1 + 1e-7
    )


def test_no_two_levels_of_a_dense_scan_are_worse(found):
    scan = [epsilon([1.0] * k + [x] * (5 - k)) for k in range(1, 5) for x in np.linspace(0.0, 1.0, 101)]
    assert max(scan) <= found["two levels"].epsilon * (1 + 1e-7)


def test_random_schedules_are_not_worse_than_any_schedule(found):
    generator = np.random.default_rng(0)
    scan = [epsilon(generator.uniform(size=5) ** generator.uniform(0.2, 4.0)) for _ in range(200)]
    assert max(scan) <= found["any schedule"].epsilon * (1 + 1e-7)


@settings(max_examples=3)
@given(st.integers(1, 3), st.floats(0.01, 0.5), st.floats(0.4, 3.0))
def test_stopping_early_is_a_schedule_and_every_family_one_of_any(steps, rate, noise):
    found = {violation.family: violation.ratio for violation in worst(li.DPSGD(steps, rate, noise), DELTA)}
    assert found["two levels"] >= 1 - 1e-9
    assert found["any schedule"] >= max(found.values()) - 1e-12


def test_one_heavy_step_among_light_ones_exceeds_the_heuristic_by_an_eighth():
    steps, rate, noise, light = 185, 0.0115, 0.8005, 0.0219
    run = li.DPSGD(steps, rate, noise)
    claimed = 1.125 * li.max_over_steps(run).epsilon(DELTA)
    assert li.last_iterate(run.replace(weights=[light] * (steps - 1) + [1.0])).epsilon(DELTA) > claimed
    # By hand: the mixture's mass above a threshold, less e^epsilon times the noise's.
    deviation = noise * math.sqrt(1 + (steps - 1) * light**2)
    counts = np.arange(40.0)
    chances = np.array([math.comb(steps - 1, int(k)) * rate**k * (1 - rate) ** (steps - 1 - k) for k in counts])
    sums = np.concatenate((light * counts, 1 + light * counts))
    masses = np.concatenate(((1 - rate) * chances, rate * chances))
    thresholds = np.linspace(2.0, 6.0, 2001)[:, None]
    excess = ndtr((sums - thresholds) / deviation) @ masses - math.exp(claimed) * ndtr(-thresholds[:, 0] / deviation)
    assert excess.max() > DELTA


@pytest.mark.parametrize(
    "change", [{"sample_rate": [0.1] * 5}, {"noise_multiplier": [1.0] * 5}, {"sampling": "shuffled"}]
)
def test_steps_must_be_interchangeable(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        worst(RUN.replace(**change), DELTA)
