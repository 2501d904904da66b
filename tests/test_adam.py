"""Adam's weights are what PyTorch's own does to a unit of gradient where its divisor is fixed."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastiterate import DPSGD, Adam, calibrate, composition, full_batch, last_iterate, max_over_steps

schedules = st.lists(st.floats(0.001, 1.0) | st.just(0.0), min_size=1, max_size=12).filter(any)
betas = st.just(0.0) | st.floats(0.01, 0.99)
decays = st.just(0.0) | st.floats(0.001, 0.9)


def torchs_weights(adam: Adam, rates, divisors):
    """Of torch.optim.Adam, whose divisor a huge eps fixes: learning rates are multiplied by it in turn."""
    import torch

    steps = len(rates)
    parameters = torch.zeros(steps, dtype=torch.float64, requires_grad=True)
    huge = 1e15
    kind = torch.optim.AdamW if adam.decoupled else torch.optim.Adam
    theirs = kind([parameters], lr=1.0, betas=(adam.beta1, adam.beta2), eps=huge, weight_decay=adam.weight_decay)
    for step, (rate, divisor) in enumerate(zip(rates, divisors, strict=True)):  # a coordinate is a run of its own
        group = theirs.param_groups[0]
        group["lr"] = rate * huge / divisor
        if adam.decoupled:
            group["weight_decay"] = adam.weight_decay * divisor / huge
        parameters.grad = torch.eye(steps, dtype=torch.float64)[step]
        theirs.step()
    return -parameters.detach().numpy()


def assert_same(weights, expected):
    expected = np.asarray(expected)
    size = np.abs(expected).max()
    np.testing.assert_allclose(np.broadcast_to(weights, expected.shape), expected, rtol=1e-9, atol=1e-11 * size)


@settings(max_examples=40)
@given(schedules, betas, decays, st.booleans(), st.floats(0.3, 4.0), st.floats(0.0, 1.0))
def test_weights_are_those_of_torch_with_a_divisor_that_is_fixed(rates, beta1, decay, decoupled, noise, eps):
    adam = Adam(rates, beta1, 0.9, eps, decay, decoupled)
    run = DPSGD(len(rates), 0.1, noise, clip_norm=2.0, optimizer=adam)
    assert_same(run.effective_weights(), torchs_weights(adam, rates, [2.0 * noise + eps] * len(rates)))


@settings(max_examples=20)
@given(st.lists(st.floats(0.3, 4.0), min_size=2, max_size=10), st.sampled_from([0.0, 0.5, 0.999]))
def test_where_noise_changes_the_divisor_is_the_one_that_noise_alone_gives(noise, beta2):
    steps, adam = len(noise), Adam(0.1, 0.8, beta2, 0.01)
    moments = [0.0]
    for deviation in noise:
        moments.append(beta2 * moments[-1] + (1.0 - beta2) * deviation**2)
    roots = [math.sqrt(moment / (1.0 - beta2**t)) for t, moment in enumerate(moments) if t]
    run = DPSGD(steps, 0.1, noise, optimizer=adam)
    assert_same(run.effective_weights(), torchs_weights(adam, [0.1] * steps, np.array(roots) + 0.01))


def test_the_prediction_is_that_of_its_weights_and_composition_does_not_depend_on_them():
    run = DPSGD(100, 0.1, 1.0, optimizer=Adam())
    t = np.arange(1, 101)
    weights = [np.sum(0.9 ** (t[j:] - j - 1) / -np.expm1(t[j:] * math.log(0.9))) for j in range(100)]
    same = DPSGD(100, 0.1, 1.0, weights=weights)
    for analysis in (last_iterate, full_batch):
        assert analysis(run).epsilon(1e-5) == pytest.approx(analysis(same).epsilon(1e-5), rel=1e-9)
    assert composition(run).epsilon(1e-5) == composition(DPSGD(100, 0.1, 1.0)).epsilon(1e-5)
    assert not last_iterate(run).is_guarantee
    largest = max(last_iterate(run.prefix(steps)).epsilon(1e-5) for steps in range(1, 101))
    assert max_over_steps(run).epsilon(1e-5) == pytest.approx(largest, rel=1e-6)


@pytest.mark.parametrize(("growth", "epsilon"), [(1.0, 2.56), (1.05, 2.82), (1.2, 4.62)])
def test_steps_that_grow_tell_more_than_is_predicted(growth, epsilon):
    """By a second moment that shrinks; the divisor of step t is 1 / growth^t."""
    roots = growth ** -np.arange(1.0, 21.0)
    run = DPSGD(20, 0.01, 0.3, weights=Adam(beta1=0.0, eps=0.0).weights(20, roots))
    assert last_iterate(run).epsilon(1e-5) == pytest.approx(epsilon, abs=0.005)


@pytest.mark.parametrize("decoupled", [False, True])
def test_noise_is_calibrated_with_adam(decoupled):
    run = DPSGD(50, 0.1, 1.0, optimizer=Adam(0.05, weight_decay=0.5, decoupled=decoupled), group_size=2)
    for neighbours in ("add-remove", "replace"):
        found = calibrate(run.replace(neighbours=neighbours), epsilon=3.0, delta=1e-5, analysis=last_iterate)
        assert last_iterate(found).epsilon(1e-5) == pytest.approx(3.0, abs=1e-6)
        assert last_iterate(found).epsilon(1e-5) <= 3.0


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "rate", "found", "plain"), [(100, 0.1, 0.072, 0.10208), (500, 0.05, 0.107, 0.11890)])
def test_one_coordinate_of_adam_tells_less_than_predicted(steps, rate, found, plain):
    """True positives at 1% of false ones: 100,000 trainings a world, for a standard error of about 0.002."""
    models, generator = 100_000, np.random.default_rng(0)
    scores = []
    for present in (True, False):
        mean, moment, moved = (np.zeros(models, np.float32) for _ in range(3))
        for t in range(1, steps + 1):
            gradient = generator.standard_normal(models, np.float32)
            if present:
                gradient += generator.random(models, np.float32) < rate
            mean += 0.1 * (gradient - mean)
            moment += 0.001 * (gradient**2 - moment)
            moved += mean / (1.0 - 0.9**t) / (np.sqrt(moment / (1.0 - 0.999**t)) + 1e-8)
        scores.append(moved)
    told = np.mean(scores[0] > np.quantile(scores[1], 0.99))
    assert told == pytest.approx(found, abs=0.006)
    run = DPSGD(steps, rate, 1.0, optimizer=Adam())
    predicted, unweighted = (1.0 - last_iterate(each).fnr(0.01) for each in (run, run.replace(optimizer=None)))
    assert unweighted == pytest.approx(plain, abs=1e-5)
    assert told + 0.006 < predicted < unweighted
