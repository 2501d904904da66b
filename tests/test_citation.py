"""The sentence in which an epsilon may be quoted says all that makes it true, and rounds to the safe side."""

import re

import pytest

import lastiterate as li
from lastiterate.citation import risk_sentences
from lastiterate.compare_analyses import Answer
from lastiterate.labels import ANALYSES

RUN = li.DPSGD(steps=1000, sample_rate=0.01, noise_multiplier=1.0)


def guaranteed(words):
    (epsilon,) = re.findall(r"It is \(([^,]+), 1e-5\)-DP", words)
    return float(epsilon)


def test_the_sentence_has_run_unit_neighbours_sampling_release_guarantee_and_prediction():
    assert li.sentence(RUN, 1e-5) == (
        "Training was DP-SGD: 1,000 steps, sample rate 0.01, noise multiplier 1, Poisson sampling. It is "
        "(1.829, 1e-5)-DP under adding or removing one example, for all iterates (composition). For the final model "
        "alone, the last-iterate heuristic (Steinke et al. 2025) predicts epsilon 1.278 at the same delta for the same "
        "neighbours; this is not a guarantee. An attacker who accepts 1% false alarms (people outside the data) finds "
        "at most 2.92% of the people in the data (predicted: at most 2.28%). An attacker who guesses a person's secret "
        "with probability 10% from a model trained without that person guesses it with probability at most 19.5% "
        "from this one (predicted: at most 16.9%). Both sentences are for people with one example in the data. These "
        "numbers are for one training: choosing hyperparameters on the same data costs extra privacy."
    )


@pytest.mark.parametrize("sampling", ["shuffled", "fixed"])
def test_without_poisson_sampling_the_guarantee_is_the_one_that_holds(sampling):
    run = RUN.replace(sampling=sampling)
    said = li.sentence(run, 1e-5)
    assert guaranteed(said) >= li.no_amplification(run).epsilon(1e-5)
    assert "even if it is known which batches an example is in (no amplification)" in said
    assert "composition" not in said
    assert "-DP under replacing one example by one without gradient (zero-out)" in said
    assert "adding or removing" not in said


def test_what_the_heuristic_refuses_it_does_not_predict():
    said = li.sentence(RUN.replace(releases=5, optimizer=li.SGD(momentum=0.9)), 1e-5)
    assert guaranteed(said) == 1.829
    assert "predicts nothing: releases must be None, or all 1000 steps, with momentum" in said


@pytest.mark.parametrize(
    ("changes", "first", "second"),
    [
        ({}, "finds at most 2.92% of the people in the data (predicted: at most 2.28%)", "one example"),
        ({"noise_multiplier": 0.1}, "may find 100% of the people in the data (predicted: at", "one example"),
        ({"group_size": 4}, "finds at most", "for people with at most 4 examples in the data"),
        ({"sampling": "shuffled"}, "finds at most", "guesses it with probability at most"),
        ({"optimizer": li.Adam(0.1)}, "(predicted by an approximation of a heuristic: at most", "one example"),
        ({"neighbours": "replace"}, "finds at most", "from a model trained on someone else instead of that person"),
        ({"releases": 10}, "finds at most", "from the released ones (predicted"),
        ({"releases": 5, "optimizer": li.SGD(momentum=0.9)}, "in the data (no prediction).", "(no prediction)"),
    ],
)
def test_the_sentences_on_risk_have_the_guarantee_first_and_are_rounded_up(changes, first, second):
    run = RUN.replace(**changes)
    member, secret = risk_sentences(run)
    assert first in member
    assert second in secret
    analyses = [ANALYSES[run.guarantee].curve, *([] if "no prediction" in member else [li.last_iterate])]
    for words, baseline in ((member, 0.01), (secret, 0.1)):
        shown = [float(each) / 100.0 for each in re.findall(r"at most ([\d.]+)%", words)]
        exact = [analysis(run).risk(baseline) for analysis in analyses]
        for one, risk in zip(shown, exact[-len(shown) :], strict=True):
            assert risk < one <= 1.011 * risk + 1e-5


def test_without_a_guarantee_the_sentences_on_risk_say_so(monkeypatch):
    monkeypatch.setattr("lastiterate.citation._by_guarantee", lambda run, question: ("", Answer(None, "none")))
    member, secret = risk_sentences(RUN)
    assert "is predicted to find at most 2.28% of the people in the data; nothing is guaranteed." in member
    assert "is predicted to guess it with probability at most 16.9% from this one; nothing is guaranteed." in secret
