"""Zero gradients but the canary's: real steps and exact draws have one distribution, which is the heuristic's."""

import numpy as np
import pytest
from scipy.stats import ks_2samp, kstest

import lastiterate as li
from lastiterate.attacks import Adversarial, AllIterates
from lastiterate.attacks.adversarial import sample_scores
from lastiterate.attacks.released_iterates import recovered_gradients, sample_likelihood_ratios
from lastiterate.privacy.mixtures.law import law_of
from lastiterate.training import problems

RUNS = {
    "plain": li.DPSGD(60, 0.1, 1.5, optimizer=li.SGD(0.3)),
    "momentum and schedule": li.DPSGD(
        40, 0.1, 1.0, clip_norm=3.0, optimizer=li.SGD(np.linspace(0.2, 0.1, 40), momentum=0.8, weight_decay=0.01)
    ),
    "correlated noise": li.DPSGD(
        40, 0.1, np.linspace(1.0, 2.0, 40), optimizer=li.SGD(0.3, momentum=0.5), noise_filter=[1.0, -0.5, -0.125, 0.3]
    ),
    "shuffled": li.DPSGD(25, 0.1, 1.0, sampling="shuffled", optimizer=li.SGD(0.1, momentum=0.9)),
    "balls in bins": li.DPSGD(25, 0.1, 0.5, sampling="balls-in-bins", optimizer=li.SGD(0.1, momentum=0.5)),
    "truncated": li.DPSGD(
        *(12, 0.25, 0.5, "truncated-poisson"), max_batch_size=5, dataset_size=16, optimizer=li.SGD(0.1, momentum=0.5)
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_trained_and_drawn_scores_have_one_distribution(name):
    run = RUNS[name]
    trained, drawn = (
        li.audit(run, None, Adversarial(kind), models=4000, seed=5, methods=["gdp"]) for kind in ("trained", "exact")
    )
    for world in ("scores_in", "scores_out"):
        assert ks_2samp(getattr(trained, world), getattr(drawn, world)).pvalue > 1e-3
    assert kstest(trained.scores_out, "norm").pvalue > 1e-3


@pytest.mark.parametrize("name", RUNS)
def test_drawn_scores_have_the_errors_of_the_heuristic(name):
    run = RUNS[name]
    scores = sample_scores(run, np.arange(200_000) % 2 == 0, np.random.default_rng(1))
    inside, outside = scores[::2], scores[1::2]
    law = law_of(run)
    assert inside.mean() == pytest.approx(law.mean / law.noise, abs=4 * inside.std() / np.sqrt(inside.size))
    for threshold in (0.5, 1.5):
        fpr = np.mean(outside >= threshold)
        expected = li.last_iterate(run).fnr(fpr)
        assert np.mean(inside < threshold) == pytest.approx(expected, abs=0.008)


OPTIMIZERS = [
    li.SGD(0.3),
    li.SGD(np.array([0.1, 0.3, 0.2, 0.1]), momentum=0.7, dampening=0.2),
    li.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.05),
    li.SGD(0.1, momentum=0.5, weight_decay=0.1, decoupled=True),
]


def steps_of(sgd, gradients, start):
    """The parameters that these gradients lead through, by PyTorch's rule."""
    path, buffer = [start], 0.0
    for step, gradient in enumerate(gradients):
        rate = float(np.broadcast_to(sgd.learning_rate, len(gradients))[step])
        here = path[-1]
        if not sgd.decoupled:
            gradient = gradient + sgd.weight_decay * here
        direction = gradient
        if sgd.momentum:
            buffer = gradient if step == 0 else sgd.momentum * buffer + (1 - sgd.dampening) * gradient
            direction = gradient + sgd.momentum * buffer if sgd.nesterov else buffer
        path.append((1 - rate * sgd.weight_decay * sgd.decoupled) * here - rate * direction)
    return path


@pytest.mark.parametrize("sgd", OPTIMIZERS)
def test_gradients_are_recovered_from_iterates(sgd):
    gradients = np.random.default_rng(0).standard_normal(4)
    path = np.array([steps_of(sgd, gradients, 0.7)])
    found = recovered_gradients(li.DPSGD(4, 0.5, 1.0, optimizer=sgd), path)
    assert found[0] == pytest.approx(gradients, rel=1e-9)


@pytest.mark.parametrize("sgd", [li.SGD(0.5), li.SGD(0.5, momentum=0.9)])
def test_trained_likelihood_ratios_have_the_ideal_distribution(sgd):
    run = li.DPSGD(20, 0.2, 1.0, optimizer=sgd)
    result = li.audit(run, problems.linear(), AllIterates("zero"), models=4000, seed=2, methods=["clopper-pearson"])
    ideal = sample_likelihood_ratios(run, np.arange(40_000) % 2 == 0, np.random.default_rng(3))
    assert ks_2samp(result.scores_in, ideal[::2]).pvalue > 1e-3
    assert ks_2samp(result.scores_out, ideal[1::2]).pvalue > 1e-3


@pytest.mark.slow
def test_it_reaches_composition_and_the_last_iterate_does_not():
    run = li.calibrate(li.DPSGD(100, 0.1, 1.0, optimizer=li.SGD(0.5)), epsilon=4.0, delta=1e-5, analysis=li.composition)
    result = li.audit(run, problems.linear(), AllIterates("zero"), models=50_000, seed=1, methods=["composition"])
    found = result.empirical["composition"]
    assert 0.9 * 4.0 < found <= 4.0
    assert found > result.last_iterate
    assert result.verdict not in ("violation", "above heuristic")
