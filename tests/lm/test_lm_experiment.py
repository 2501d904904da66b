"""Audits of language models that release checkpoints, protect people, or replace one text. About 20 seconds."""

import numpy as np
import pytest
import torch

import lastiterate as li
from lastiterate.auditing.evidence.score_signal import signal_of
from lastiterate.lm import TextProblem, UnseenTokens
from lastiterate.lm.fine_tuning import Model, train_models
from tests.lm.conftest import SPECIAL, SPOKEN

RUN = li.DPSGD(6, 0.5, 0.6, clip_norm=0.5, optimizer=li.SGD(0.02))
QUICK = {"methods": ["clopper-pearson"], "progress": False}
UNSEEN = len(SPECIAL) + len(SPOKEN)  # the first token that nobody says


@pytest.fixture(scope="module")
def problem(tiny_llama, tiny_texts):
    return TextProblem.of(tiny_llama, tiny_texts, None)


def released_of(run, problem, model, **more):
    """What one model releases, by name and release."""
    shown = []
    look = lambda _, __, tensors: shown.append({name: value.clone() for name, value in tensors.items()})  # noqa: E731
    ((_, last, _),) = train_models(run, problem, [[UNSEEN] * 4], [model], 0, lambda _, last: last, look=look, **more)
    return shown, last


def test_releases_are_the_iterates_of_shorter_runs(problem):
    model = Model(3, (True,))
    shown, last = released_of(RUN.replace(releases=[2, 5]), problem, model)
    assert len(shown) == 3
    for steps, tensors in zip((2, 5, 6), shown, strict=True):
        _, shorter = released_of(RUN.prefix(steps), problem, model)
        assert all(torch.equal(tensors[name], value) for name, value in shorter.items())
    assert all(torch.equal(shown[-1][name], value) for name, value in last.items())


FIELDS = {
    "person": {"group_size": 3},
    "all of it": {"releases": [2], "group_size": 2, "neighbours": "replace", "optimizer": li.SGD(0.02, weight_decay=4)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIELDS)
def test_scores_have_the_signal_that_is_expected(problem, name):
    """By draws of what was crafted; 2 x 24 models, fixed seed, d' to four standard errors."""
    run = RUN.replace(**FIELDS[name])
    result = li.audit(run, problem, UnseenTokens(references=16, candidates=4, length=8), models=24, **QUICK)
    expected = result.forecast.expected
    if run.release_count > 1:
        from lastiterate.auditing.evidence.estimates import likelihood_ratios

        drawn = likelihood_ratios(run, expected)
        ideal = signal_of(drawn.inside, drawn.outside)
        assert "released iterates" in result.attack
        assert result.ideal_signal > ideal
    else:
        from lastiterate.auditing.evidence.score_signal import expected_signal

        ideal = expected_signal(run, expected.signal, expected.spread)
    assert abs(result.signal - ideal) < 4 * np.sqrt(2 / 24 + ideal**2 / 96)
    assert expected.signal > 0.3
    assert result.verdict != "violation"
    assert ("a person with up to" in result.caveats[0]) == (run.group_size > 1)
