"""Why the number found is below the guarantee: what is hidden, what the sample costs, and what the attack misses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lastiterate.answers import Answer
from lastiterate.auditing.evidence.estimate import Estimate
from lastiterate.auditing.evidence.kinds import sees_every_step
from lastiterate.auditing.evidence.outlook import OneRunOutlook, Outlook, perfect
from lastiterate.run import DPSGD
from lastiterate.vocabulary import ANALYSES, METHODS, kind_of_prediction
from lastiterate.wording import spell, spell_down, spell_up

_HEADLINES = ("last-iterate", "one-run-last-iterate", "composition", "clopper-pearson", "one-run")  # the first there is


@dataclass(frozen=True)
class Step:
    """One level on the way from the guarantee down to what was found.

    Attributes:
        name: "guarantee", "heuristic", "perfect attack" or "found".
        epsilon: at this level.
        words: what lies between it and the level before, in a sentence.
    """

    name: str
    epsilon: float
    words: str

    @property
    def rounded(self) -> str:
        """The epsilon for people: guarantee and prediction rounded up, lower bounds rounded down."""
        spell_level = spell_up if self.name in ("guarantee", "heuristic") else spell_down
        return spell_level(self.epsilon, 3) if math.isfinite(self.epsilon) else "infinite"


def headline(estimates: Mapping[str, Estimate], sees_all: bool) -> Estimate:
    """The estimate that is split: of the last-iterate family, or of composition's where all iterates are seen."""
    names = [name for name in _HEADLINES if name in estimates and not (sees_all and name == "last-iterate")]
    return estimates[names[0]] if names else next(iter(estimates.values()))


def waterfall_of(
    outlook: Outlook | OneRunOutlook, predictions: Mapping[str, Answer], estimates: Mapping[str, Estimate]
) -> tuple[Step, ...]:
    """The levels from the guarantee that there is down to the epsilon that was found, of one method throughout."""
    sees_all = sees_every_step(outlook.expected)
    found = headline(estimates, sees_all)
    steps: list[Step] = []
    known = ((name, predictions[name].value) for name in ("composition", "no_amplification") if name in predictions)
    guarantee = next(((name, value) for name, value in known if value is not None), None)
    if guarantee is not None:
        steps.append(Step("guarantee", guarantee[1], f"Guaranteed, by {ANALYSES[guarantee[0]].label}."))
    heuristic = predictions["last_iterate"].value
    if heuristic is not None and not sees_all:
        steps.append(Step("heuristic", heuristic, _hidden(steps, heuristic, outlook.run)))
    median = perfect(outlook).reached(found.method, 0.5)
    what = "canaries of one run" if isinstance(outlook, OneRunOutlook) else "models a world"
    many = f"{outlook.models:,} {what}, {METHODS[found.method].label}"
    steps.append(Step("perfect attack", median, _sample(steps, median, many)))
    above = None if heuristic is None or sees_all else heuristic
    steps.append(Step("found", found.epsilon, _missed(median, found.epsilon, above)))
    return tuple(steps)


def _hidden(before: list[Step], heuristic: float, run: DPSGD) -> str:
    seen = "the last iterate" if run.release_count == 1 else f"the {run.release_count:,} released iterates"
    verb = "is" if run.release_count == 1 else "are"
    what = kind_of_prediction(run)
    if not before:
        return f"Predicted for {seen} ({what})."
    if (lost := before[-1].epsilon - heuristic) < 0.0:
        return f"The heuristic is {spell(-lost, 3)} above the guarantee, which holds all the same."
    return f"Hidden: {spell(lost, 3)}, as only {seen} {verb} seen (predicted, {what})."


def _sample(before: list[Step], median: float, many: str) -> str:
    shows = f"half of the audits by a perfect attack find at least this ({many})"
    if not before or not math.isfinite(median):
        return f"The sample: {shows}."
    if (lost := before[-1].epsilon - median) < 0.0:
        return f"The sample costs nothing: {shows}, as a bound of so little confidence is often too high."
    return f"The sample costs {spell(lost, 3)}: {shows}."


def _missed(median: float, found: float, heuristic: float | None) -> str:
    if heuristic is not None and found > heuristic:
        return (
            f"Found: {spell(found - heuristic, 3)} more than the heuristic predicts. The bound was lucky, losses are "
            "not as linear as it assumes, or training is not as described."
        )
    if not math.isfinite(median) or not math.isfinite(found):
        return "Found by this attack."
    if abs(lost := median - found) < 0.0005:
        return "This attack misses nothing: it finds what half of the perfect attacks find at least."
    if lost < 0.0:
        more = f"Found: {spell(-lost, 3)} more than half of the perfect attacks find"
        return f"{more}, by luck or because training is not as described."
    return f"This attack misses {spell(lost, 3)}, by what it does not see of the canary, or by bad luck."
