"""Audits of language models that release checkpoints, protect people, or replace one text. About 20 seconds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import lastiterate as li
from lastiterate.auditing.evidence.score_signal import signal_of
from lastiterate.lm import OneRunTokens, TextProblem, UnseenTokens
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


def test_what_replaces_a_canary_is_in_its_place_and_drawn_with_it(problem):
    """Model 3 of world "out" with a replacement is the same model with that as a canary, but for its draws' address."""
    run = RUN.replace(noise_multiplier=1e-6, sample_rate=1.0, sampling="full")
    other = [UNSEEN + 1] * 4
    _, replaced = released_of(run, problem, Model(3, (False,)), replacements=[other])
    ((_, trained, _),) = train_models(run, problem, [other], [Model(3, (True,))], 0, lambda _, last: last)
    assert all(torch.allclose(replaced[name], value, atol=1e-5) for name, value in trained.items())
    _, without = released_of(run, problem, Model(3, (False,)))
    assert not all(torch.allclose(without[name], value, atol=1e-5) for name, value in trained.items())


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
    expected = result.outlook.expected
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


def test_what_cannot_be_audited_is_refused_in_a_sentence_before_anything_is_trained(problem):
    for run, attack, message in (
        (
            RUN.replace(releases=2),
            UnseenTokens("loss"),
            "releases must be None for the score 'loss', got 2 of them: use score='gradient' or 'rows'",
        ),
        (RUN.replace(neighbours="replace"), UnseenTokens("loss"), "for the score 'loss', got 'replace'"),
        (RUN.replace(releases=2), OneRunTokens(), "releases must be None for the attack OneRunTokens, got 2 of them"),
        (RUN.replace(group_size=2), OneRunTokens(), "group_size must be 1 for the attack OneRunTokens, got 2"),
        (
            RUN.replace(releases=2, optimizer=li.SGD(0.02, momentum=0.9)),
            UnseenTokens(),
            "releases must be None, or all 6 steps, with momentum",
        ),
        (
            RUN.replace(releases=6, optimizer=li.SGD(0.02, averaging="uniform")),
            UnseenTokens(),
            "averaging must be None for attacks on several releases",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            li.audit(run, problem, attack, models=2, progress=False)
