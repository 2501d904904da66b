"""What an audit found as the table that people read, in print and on the command line."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lastiterate.auditing.evidence.signal import is_defined
from lastiterate.tables import Table
from lastiterate.vocabulary import ANALYSES, METHODS
from lastiterate.wording import caveat_of, describe, per_cent, spell, spell_down, spell_exact, spell_up

if TYPE_CHECKING:
    from lastiterate.auditing.evidence.result import AuditResult


def result_table(result: AuditResult) -> Table:
    """Predictions and estimates, one below the other; the first note is the verdict."""
    rows, run = [], result.run
    for name, answer in result.predictions.items():
        value = "none" if answer.value is None else spell_up(answer.value)
        analysis = ANALYSES[name]
        rows.append((analysis.label_of(run), value, "", "", answer.reason or analysis.assumed_of(run)))
    for name, estimate in result.estimates.items():
        share = per_cent(estimate.confidence)
        most = "-" if estimate.largest is None else spell_up(estimate.largest, 4)
        rows.append((METHODS[name].label, spell_down(estimate.epsilon), share, most, METHODS[name].assumes))
    verdict = [verdict_sentence(result.verdict, result.reason), result.strength.words]
    notes = [*verdict, *_about(result), *result.caveats, caveat_of(run)]
    if result.store:
        notes.append(f"Scores: {result.store}")
    title = (
        f"{result.data or 'your trainer'}: {describe(result.run)}; delta {spell_exact(result.delta)}\n{result.attack}"
    )
    return Table(title, ("", "epsilon", "confidence", "limit", "what it assumes"), rows, {1, 2, 3}, notes)


def verdict_sentence(verdict: str, reason: str) -> str:
    """The verdict, and why."""
    return f"Verdict: {verdict}. {reason}"


def _about(result: AuditResult) -> list[str]:
    """What the empirical rows rest on, and how good the attack and the models were."""
    choices = {estimate.threshold_choice for estimate in result.estimates.values()}
    one = next(iter(result.estimates.values()))
    joint = "" if METHODS[one.method].is_one_run else ", joint over both error rates"
    words = [
        f"Empirical epsilons are lower bounds for this attack: {one.models_in:,} + {one.models_out:,} scores, "
        f"threshold {' or '.join(sorted(choices))}; confidence for each method by itself{joint}. "
        "Limit: the largest epsilon this many models can show."
    ]
    if result.accuracy is not None:
        words.append(f"Accuracy of the models: {100 * result.accuracy:.1f}%.")
    if result.perplexity is not None:
        before = "" if result.perplexity_before is None else f", {spell(result.perplexity_before)} before training"
        words.append(f"Perplexity of the models on held-out text: {spell(result.perplexity)}{before}.")
    error = math.sqrt(1 / len(result.scores_in) + 1 / len(result.scores_out))  # of d', about
    signal = f"Signal d' {spell(result.signal, 3)} (plus or minus {spell(error, 1)})"
    if not is_defined(result.scores_in, result.scores_out):
        signal = "Signal d': not defined for these scores"
    if result.ideal_signal:
        share = result.signal / result.ideal_signal
        signal += f": {100 * share:.0f}% of {spell(result.ideal_signal, 3)}, the ideal of linear losses"
    words.append(f"{signal}.")
    return words + _reach(result)


def _reach(result: AuditResult) -> list[str]:
    """What so many models could see, and where the distance to the guarantee comes from."""
    words = []
    if result.detectable:
        seen = ", ".join(f"{spell_down(value, 3)} ({method})" for method, value in result.detectable.items())
        words.append(
            f"Power: if training is correct, 80% of perfect attacks with this many models find at least {seen}."
        )
    if result.waterfall:
        levels = " -> ".join(f"{step.rounded} {step.name}" for step in result.waterfall)
        words.append(f"Why not more? {levels}. {' '.join(step.words for step in result.waterfall[1:])}")
    return words
