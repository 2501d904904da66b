"""In distribution, the trainer does what the theorem says and what Algorithm 1 asks for."""

import numpy as np
import pytest
from scipy import stats

import lastiterate as li
from lastiterate.data import digits
from lastiterate.training import GradientCanary, Problem, train
from lastiterate.training.problems import linear

pytestmark = pytest.mark.slow

FALSE_ALARM = 1e-4  # of each test, once; seeds are fixed
MODELS = 100_000


@pytest.fixture(scope="module")
def last_iterates():
    """Displacements along the canary, in units of the learning rate, of 100,000 models in each world."""
    run = li.DPSGD(60, 0.05, 0.6, optimizer=li.SGD(0.5))
    canary = GradientCanary(np.array([7.0, 0.0], np.float32))  # far above the clipping norm
    result = {}
    for world in (True, False):
        trained = train(run, linear(dimension=2), canary, models=MODELS, present=world, seed=3)
        result[world] = -trained.flat() / 0.5
    return run, result


def test_the_last_iterate_without_the_canary_is_gaussian(last_iterates):
    run, worlds = last_iterates
    noise = run.noise_multiplier * np.sqrt(run.steps)
    for world, coordinate in ((False, 0), (False, 1), (True, 1)):
        values = worlds[world][:, coordinate]
        assert stats.kstest(values, stats.norm(scale=noise).cdf).pvalue > FALSE_ALARM
        assert values.mean() == pytest.approx(0, abs=4 * noise / np.sqrt(MODELS))
        assert values.var() == pytest.approx(noise**2, rel=4 * np.sqrt(2 / MODELS))


def test_the_last_iterate_with_the_canary_is_binomial_plus_gaussian(last_iterates):
    run, worlds = last_iterates
    noise = run.noise_multiplier * np.sqrt(run.steps)
    counts = stats.binom(run.steps, run.sample_rate)
    support = np.arange(run.steps + 1)

    def distribution(values):
        return stats.norm.cdf(np.subtract.outer(values, support) / noise) @ counts.pmf(support)

    values = worlds[True][:, 0]
    assert stats.kstest(values, distribution).pvalue > FALSE_ALARM
    variance = counts.var() + noise**2
    fourth = noise**4 * 3 + 6 * noise**2 * counts.var() + counts.expect(lambda k: (k - counts.mean()) ** 4)
    assert values.mean() == pytest.approx(counts.mean(), abs=4 * np.sqrt(variance / MODELS))
    assert values.var() == pytest.approx(variance, abs=4 * np.sqrt((fourth - variance**2) / MODELS))


def test_the_worlds_are_told_apart_as_well_as_the_heuristic_says_and_no_better(last_iterates):
    run, worlds = last_iterates
    threshold = np.quantile(worlds[False][:, 0], 0.9)
    missed = np.mean(worlds[True][:, 0] < threshold)
    found = np.mean(worlds[False][:, 0] >= threshold)
    assert missed == pytest.approx(li.last_iterate(run).fnr(found), abs=4 * np.sqrt(2 * 0.25 / MODELS))


@pytest.fixture(scope="module")
def increments():
    """Steps of 2,000 models on digits, divided into batch size and noise. Each gradient is the first unit vector."""
    data = digits()
    run = li.DPSGD(8, 50 / 1437, 0.05, clip_norm=2.0, optimizer=li.SGD(1.0))
    first = np.zeros(40, np.float32)
    first[0] = 1.0
    examples = (data.x_train, data.y_train)
    problem = Problem(np.zeros(40, np.float32), examples, gradient=lambda p, e, m: first + 0.0 * e[0].sum())
    iterates = train(run, problem, models=2000, seed=11, release="intermediate_iterates").iterates
    steps = -np.diff(iterates.astype(np.float64), axis=1)
    sizes = np.round(steps[:, :, 0])
    steps[:, :, 0] -= sizes
    return run, sizes, steps / (run.noise_multiplier * run.clip_norm)


def test_noise_of_digits_models_is_standard_normal_in_units_of_multiplier_and_clip_norm(increments):
    _, _, noise = increments
    assert stats.kstest(noise[:, :, 1:].ravel(), "norm").pvalue > FALSE_ALARM
    assert noise[:, :, 0].std() == pytest.approx(1, rel=4 / np.sqrt(2 * 16_000))
    assert noise[:, :, 1:].std() == pytest.approx(1, rel=4 / np.sqrt(2 * 16_000 * 39))
