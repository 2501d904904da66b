"""One contract for every curve, put to runs of every kind. `contract_search` does the same for many more of them.

1,000 examples: see EXAMPLES.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lastiterate as li
from lastiterate.privacy.analyses.composition import CompositionPair
from lastiterate.privacy.analyses.max_over_steps import MaxOverSteps
from lastiterate.privacy.analyses.no_amplification import KnownParticipations
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.distributions import DiscretePair
from lastiterate.privacy.mixtures.pairs import NothingPair, OneSidedPair, TwoSidedPair
from tests.privacy.combinations import answers, combinations, correlated, documented
from tests.privacy.contract import (
    ANALYSES,
    KINDS,
    SURELY_REFUSED,
    Question,
    Random,
    draw_discrete,
    draw_question,
    violations,
)

EXAMPLES = {
    "last_iterate": 50,
    "full_batch": 10,
    "no_amplification": 14,
    "max_over_steps": 6,
}  # of each of eleven kinds
OTHERS = {"composition": 10, "discrete": 110}


@dataclass(frozen=True)
class Drawn:
    """Choices of hypothesis."""

    data: st.DataObject

    def number(self, low: float, high: float) -> float:
        return self.data.draw(st.floats(low, high))

    def integer(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))

    def choice(self, items: Sequence[Any]) -> Any:
        return items[self.data.draw(st.integers(0, len(items) - 1))]


def assert_holds(drawn):
    if drawn is None:
        return
    what, question = drawn
    try:
        found = list(violations(question))
    except ValueError as error:
        assert any(reason in str(error) for reason in SURELY_REFUSED), what  # noqa: PT017
        return
    assert not found, f"{question.curve.analysis} of {what}: {found}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("analysis", EXAMPLES)
def test_the_contract_holds(analysis, kind):
    @settings(max_examples=EXAMPLES[analysis])
    @given(st.data())
    def holds(data):
        assert_holds(draw_question(Drawn(data), kind, analysis, longest=7))

    holds()


@pytest.mark.parametrize("kind", ["constant", "schedule"])
def test_the_contract_holds_for_composition(kind):
    @settings(max_examples=OTHERS["composition"] // 2)
    @given(st.data())
    def holds(data):
        assert_holds(draw_question(Drawn(data), kind, "composition", longest=7))

    holds()


@settings(max_examples=OTHERS["discrete"])
@given(st.data())
def test_the_contract_holds_for_two_distributions_on_the_same_points(data):
    assert_holds(draw_discrete(Drawn(data)))


def test_every_kind_of_pair_is_reached():
    generator = Random(np.random.default_rng(0))
    reached = {type(draw_discrete(generator)[1].curve.pair)}
    for analysis in ANALYSES:
        for kind in KINDS:
            drawn = [draw_question(generator, kind, analysis, longest=4) for _ in range(3)]
            reached |= {type(item[1].curve.pair) for item in drawn if item is not None}
    reached.add(type(li.last_iterate(li.DPSGD(2, 0.0, 1.0)).pair))
    pairs = {NothingPair, OneSidedPair, TwoSidedPair, DiscretePair, CompositionPair, MaxOverSteps, KnownParticipations}
    assert reached == pairs


class TooLow:
    """A pair whose epsilon is a thousandth too low."""

    def __init__(self, pair):
        self.pair = pair

    def __getattr__(self, name):
        return getattr(self.pair, name)

    def epsilon(self, log_delta):
        return 0.999 * self.pair.epsilon(log_delta)

    def bracket(self, log_delta):
        return tuple(0.999 * end for end in self.pair.bracket(log_delta))


def test_an_epsilon_that_is_too_low_is_found():
    _, question = draw_question(Random(np.random.default_rng(3)), "both signs", "last_iterate")
    wrong = PrivacyCurve(TooLow(question.curve.pair), "wrong", is_guarantee=False)
    assert not list(violations(question))
    found = list(violations(Question(wrong, question.delta, 1.0, 0.1, question.truth)))
    assert any("upper end" in sentence and "too low" in sentence for sentence in found)


def test_every_combination_answers_as_the_table_of_the_docs_says():
    found = {(*row, column): answers(run)[0] for row, column, run in [*combinations(), *correlated()]}
    assert documented() == found
    assert len(found) == 5 * 4 * 3 * 4 + (4 * 5 * 3 + 5 * 2) * 4


@pytest.mark.parametrize("epsilon", [1e121, 1e200, 1e308, np.inf])
@pytest.mark.parametrize(("steps", "rate"), [(1, 0.1), (10, 1.0), (100, 0.01)])
@pytest.mark.parametrize("analysis", [li.last_iterate, li.composition, li.full_batch])
def test_delta_of_a_huge_epsilon_is_zero(analysis, steps, rate, epsilon):
    assert analysis(li.DPSGD(steps=steps, sample_rate=rate, noise_multiplier=1.0)).delta(epsilon) == 0.0
