"""One question put to all analyses: what one of them refuses is its own affair."""

import pytest

import lastiterate as li
from lastiterate.compare_analyses import answer_fields, ask_all

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


@pytest.mark.parametrize(("sampling", "name"), [("poisson", "composition"), ("shuffled", "no_amplification")])
def test_the_guarantee_is_one_that_holds_for_the_sampling(sampling, name):
    run = RUN.replace(sampling=sampling)
    assert run.guarantee == name
    assert getattr(li, name)(run).is_guarantee
    assert list(ask_all(run, lambda curve: curve.epsilon(1e-5))) == list(
        dict.fromkeys([name, "last_iterate", "composition", "full_batch"])
    )
