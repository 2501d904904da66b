"""What the sentences of the counterexamples share."""

from __future__ import annotations

from lastiterate.answers import Answer
from lastiterate.counterexamples.probe import Case
from lastiterate.wording import spell

_EQUAL = 1e-6  # relative: what differs less is told as equal


def known(answer: Answer) -> float:
    """The value of an answer that sentences and pictures cannot do without."""
    if answer.value is None:
        raise ValueError(f"this counterexample has no numbers to show: {answer.reason}")
    return answer.value


def compare(epsilon: float, predicted: float) -> str:
    """What an example leaks against what was predicted for it, in words."""
    if epsilon <= predicted * (1.0 + _EQUAL):
        return "the example does not leak more"
    if predicted == 0.0:
        return "the example leaks something"
    ratio = epsilon / predicted
    if ratio < 2.0:
        return f"the example leaks {100.0 * (ratio - 1.0):.3g}% more"
    return f"the example leaks {spell(ratio, 3) if ratio < 1000.0 else f'{ratio:,.0f}'} times as much"


def tell_steps(steps: int) -> str:
    """A number of steps, in words."""
    return f"{steps:,} step{'' if steps == 1 else 's'}"


def tell_found(case: Case) -> str:
    """What the attack found, in words."""
    return f"the attack found at least {spell(case.empirical)}" if case.empirical > 0.0 else "the attack found nothing"
