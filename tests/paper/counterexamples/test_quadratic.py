"""The quadratic regulariser: what the paper found, what is trained, and that the two are the same."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.stats import norm

import lastiterate as li
from lastiterate.cli.probe import STORIES
from lastiterate.paper.counterexamples import quadratic
from lastiterate.paper.counterexamples.quadratic import DEFAULTS, Regularised
from lastiterate.plot.counterexample import counterexample_chart
from lastiterate.training import train

RUN = li.DPSGD(3, 0.1, 1.0, optimizer=li.SGD(1.0))  # the paper's


@pytest.mark.parametrize(("alpha", "epsilon"), [(0.0, 2.222), (0.5, 2.274), (1.0, 2.182)])
def test_epsilons_are_those_of_the_paper(alpha, epsilon):
    assert li.last_iterate(Regularised(alpha).seen(RUN)).epsilon(1e-6) == pytest.approx(epsilon, abs=1e-3)


def test_delta_is_that_of_all_eight_ways_to_sample():
    step = np.array([0.25, 0.5, 1.0])  # what a canary in each batch leaves in the last iterate
    noise = np.sqrt(np.sum(step**2))
    y = np.linspace(-12.0, 14.0, 200_001)
    inside = sum(
        0.1 ** sum(drawn) * 0.9 ** (3 - sum(drawn)) * norm.pdf(y, step @ drawn, noise)
        for drawn in product((0, 1), repeat=3)
    )
    for epsilon in (0.5, 2.2749):
        delta = np.trapezoid(np.maximum(inside - np.exp(epsilon) * norm.pdf(y, 0.0, noise), 0.0), y)
        assert li.last_iterate(Regularised(0.5).seen(RUN)).delta(epsilon) == pytest.approx(delta, rel=1e-6)


def test_the_regulariser_is_weight_decay():
    rate, alpha = 0.5, 0.3
    run = li.DPSGD(8, 0.4, 1.0, clip_norm=2.0, optimizer=li.SGD(rate))
    armed = Regularised(alpha).arm(run, None, {})
    decayed = run.replace(optimizer=li.SGD(rate, weight_decay=alpha / rate))
    kept = {"models": 64, "present": np.arange(64) % 2 == 0, "seed": 1, "progress": False}
    regularised = train(run, armed.problem, armed.canary, **kept).flat()
    plain = replace(armed.problem, regulariser=None)
    assert regularised == pytest.approx(train(decayed, plain, armed.canary, **kept).flat(), rel=1e-5, abs=1e-6)
    assert Regularised(alpha).seen(run).weights == pytest.approx(decayed.effective_weights() / rate)


def test_probe_finds_the_violation_and_its_largest_alpha():
    found = quadratic.probe(replace(DEFAULTS, models=5_000))
    (case,) = found.cases
    assert 0.0 < case.empirical < case.exact.value == pytest.approx(2.27487, abs=1e-5)
    assert case.exact.value > 1.02 * found.predictions["max_over_steps"].value
    words = " ".join(STORIES["quadratic"].sentences(found))
    assert all(number in words for number in ("2.2749", "2.2225", "2.36% more", "0.575", "2.2781"))
    assert "predicts, it does not guarantee" in words
    drawn = str(counterexample_chart(found, "A title").to_dict())
    assert "largest: 2.2781 at alpha 0.575" in drawn
    assert "largest up to T (heuristic)" in drawn
