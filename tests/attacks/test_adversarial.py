"""Zero gradients but the canary's: real steps and exact draws have one distribution, which is the heuristic's."""

import numpy as np
import pytest
from scipy.stats import ks_2samp, kstest

import lastiterate as li
from lastiterate.attacks import Adversarial
from lastiterate.attacks.adversarial import sample_scores
from lastiterate.privacy.mixtures.law import law_of

RUNS = {
    "plain": li.DPSGD(60, 0.1, 1.5, optimizer=li.SGD(0.3)),
    "momentum and schedule": li.DPSGD(
        40, 0.1, 1.0, clip_norm=3.0, optimizer=li.SGD(np.linspace(0.2, 0.1, 40), momentum=0.8, weight_decay=0.01)
    ),
    "correlated noise": li.DPSGD(
        40, 0.1, np.linspace(1.0, 2.0, 40), optimizer=li.SGD(0.3, momentum=0.5), noise_filter=[1.0, -0.5, -0.125, 0.3]
    ),
    "shuffled": li.DPSGD(25, 0.1, 1.0, sampling="shuffled", optimizer=li.SGD(0.1, momentum=0.9)),
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
