"""One question put to all analyses: what one of them refuses is its own affair."""

from __future__ import annotations

import numpy as np
import pytest

import lastiterate as li
from lastiterate.compare_analyses import answer_fields, ask, ask_all, noise_rows, prediction_fields

RUN = li.DPSGD(100, 0.1, 1.0)


def test_a_question_that_one_analysis_refuses_is_answered_by_the_others():
    def question(curve):
        if curve.analysis == "last_iterate":
            raise ValueError("neither kernel is accurate")
        return curve.epsilon(1e-5)

    fields = answer_fields(ask_all(RUN, question))
    assert fields["last_iterate"] is None
    assert fields["last_iterate_reason"] == "neither kernel is accurate"
    assert fields["composition"] == li.composition(RUN).epsilon(1e-5)


def test_a_run_too_long_for_the_weights_of_its_optimizer_still_has_its_guarantee():
    long = li.DPSGD(2 * 10**6, 1e-3, 10.0, optimizer=li.SGD(momentum=0.9))
    answers = ask_all(long, lambda curve: curve.epsilon(1e-5), "max_over_steps")
    assert answers["composition"].value == li.composition(long.replace(optimizer=None)).epsilon(1e-5)
    for name in ("last_iterate", "full_batch", "max_over_steps"):
        assert "steps must be at most 1000000 with momentum" in answers[name].reason


def test_what_breaks_is_no_refusal():
    def question(curve):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ask(RUN, "composition", question)


@pytest.mark.parametrize(("sampling", "name"), [("poisson", "composition"), ("shuffled", "no_amplification")])
def test_the_guarantee_is_one_that_holds_for_the_sampling(sampling, name):
    run = RUN.replace(sampling=sampling)
    assert run.guarantee == name
    assert getattr(li, name)(run).is_guarantee
    assert list(ask_all(run, lambda curve: curve.epsilon(1e-5))) == list(
        dict.fromkeys([name, "last_iterate", "composition", "full_batch"])
    )


def test_what_is_no_dictionary_of_analyses_and_no_run_is_refused_by_name():
    run = li.DPSGD(steps=10, sample_rate=0.1, noise_multiplier=1.0)
    with pytest.raises(ValueError, match=r"^curves must be a dictionary of analyses"):
        noise_rows({None: run}, ["last_iterate"], 1.0, 1e-5, curves="1_000")
    with pytest.raises(ValueError, match=r"^curves must be a dictionary of analyses"):
        li.sentence(run, 1e-5, np.zeros((0, 3)))
    with pytest.raises(ValueError, match=r"^curve must be a function of a run"):
        ask(run, "convex", lambda curve: curve.epsilon(1e-5), 0.5)
    with pytest.raises(ValueError, match=r"^contraction must be"):
        li.convex(run.replace(sampling="shuffled"), contraction="much")
    for wrong in ({"a": 1}, np.zeros(4)):
        with pytest.raises(ValueError, match=r"^run must be a lastiterate.DPSGD"):
            prediction_fields(wrong)
