"""The result of an audit: the ``AuditResult`` class, its three numbers, its waterfall of epsilons, and its table."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lastiterate.auditing.evidence.estimate import Estimate
from lastiterate.auditing.evidence.forecast import Forecast, perfect
from lastiterate.auditing.evidence.score_signal import defined_signal, sees_every_step
from lastiterate.auditing.evidence.verdict_strength import Strength
from lastiterate.common.errors import BadArgument
from lastiterate.common.system import late
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import told
from lastiterate.compare_analyses import Answer
from lastiterate.formatting import Table, caveat_of, describe, per_cent, spell, spell_down, spell_exact, spell_up
from lastiterate.labels import (
    ABOVE_HEURISTIC,
    ANALYSES,
    CONSISTENT,
    INCONCLUSIVE,
    METHODS,
    OWN_COIN,
    PROMISES,
    THRESHOLDS,
    VIOLATION,
    expected_of,
    headline_of,
    kind_of_prediction,
)
from lastiterate.run import DPSGD
from lastiterate.trainers.adam_second_moment import SecondMoment

if TYPE_CHECKING:
    from altair import VConcatChart


# Waterfall: the steps from the guarantee down to the empirical epsilon (hidden iterates, sample size, attack).

_HEADLINES = ("last-iterate", "one-run-last-iterate", "composition", "clopper-pearson", "one-run")  # by priority


@dataclass(frozen=True)
class Step:
    """One level of the waterfall: "guarantee", "heuristic", "perfect attack" or "found".

    ``words`` is a sentence on the difference from the level before.
    """

    name: str
    epsilon: float
    words: str

    @property
    def rounded(self) -> str:
        """The epsilon as text. Guarantees and predictions are rounded up, lower bounds are rounded down."""
        spell_level = spell_up if self.name in ("guarantee", "heuristic") else spell_down
        return spell_level(self.epsilon, 3) if math.isfinite(self.epsilon) else "infinite"


def waterfall_of(
    forecast: Forecast, predictions: Mapping[str, Answer], estimates: Mapping[str, Estimate]
) -> tuple[Step, ...]:
    """Return the levels from the guarantee, if there is one, down to the empirical epsilon, all for one method."""
    sees_all = sees_every_step(forecast.expected)
    names = [name for name in _HEADLINES if name in estimates and not (sees_all and name == "last-iterate")]
    found = estimates[names[0]] if names else next(iter(estimates.values()))
    steps: list[Step] = []
    name = forecast.run.guarantee
    if (guarantee := predictions[name].value) is not None:
        steps.append(Step("guarantee", guarantee, f"Guaranteed, by {ANALYSES[name].label}."))
    heuristic = None if sees_all else predictions["last_iterate"].value
    if heuristic is not None:
        steps.append(Step("heuristic", heuristic, _hidden(steps, heuristic, forecast.run)))
    median = perfect(forecast).reached(found.method, 0.5)
    what = "canaries of one run" if forecast.one_run else "models per world"
    many = f"{forecast.models:,} {what}, {METHODS[found.method].label}"
    steps.append(Step("perfect attack", median, _sample(steps, median, many)))
    steps.append(Step("found", found.epsilon, _missed(median, found.epsilon, heuristic)))
    return tuple(steps)


def _hidden(before: list[Step], heuristic: float, run: DPSGD) -> str:
    seen = "the last iterate" if run.release_count == 1 else f"the {run.release_count:,} released iterates"
    what = kind_of_prediction(run)
    if not before:
        return f"Predicted for {seen} ({what})."
    if (lost := before[-1].epsilon - heuristic) < 0.0:
        return f"The heuristic is {spell(-lost, 3)} above the guarantee, which still holds."
    return f"Hidden: {spell(lost, 3)}, because the attack sees only {seen} (predicted, {what})."


def _sample(before: list[Step], median: float, many: str) -> str:
    shows = f"half of the audits by a perfect attack find at least this ({many})"
    if not before or not math.isfinite(median):
        return f"The sample: {shows}."
    if (lost := before[-1].epsilon - median) < 0.0:
        return f"The sample size costs nothing: {shows}. A bound of low confidence is often too high."
    return f"The sample size costs {spell(lost, 3)}: {shows}."


def _missed(median: float, found: float, heuristic: float | None) -> str:
    if heuristic is not None and found > heuristic:
        return (
            f"Found: {spell(found - heuristic, 3)} more than the heuristic predicts, by chance, because losses are not "
            "as linear as the heuristic assumes, or because training is not as described."
        )
    if not math.isfinite(median) or not math.isfinite(found):
        return "Found by this attack."
    if abs(lost := median - found) < 0.0005:
        return "This attack matched the median perfect attack at this sample size."
    if lost < 0.0:
        more = f"Found: {spell(-lost, 3)} more than the median of perfect attacks"
        return f"{more}, by chance or because training is not as described."
    return f"This attack misses {spell(lost, 3)}: it sees only a part of the canary, or found less by chance."


@dataclass(frozen=True, eq=False)
class AuditResult:
    """The result of an audit, finished or not. Epsilons are at ``delta``. It prints as the table of the command line.

    Attributes:
        run: the declared run.
        attack: the attack, in one line.
        data: the model and the training data, in one line.
        caveats: sentences that a reader must know about these numbers.
        confidence: the confidence of every empirical epsilon.
        predictions: the epsilon of each analysis for the run, by the name of the analysis.
        estimates: empirical epsilons, by method.
        scores_in, scores_out: scores of the models with and without the canary. A larger score speaks for the canary.
        score_unit: unit of a score, such as "standard deviations of the noise".
        score_density: points (score, density without the canary, density with it) that the linear analysis predicts,
            an array [points, 3]. None if the linear analysis does not predict the scores.
        signal: d', the distance of the two means in standard deviations.
        ideal_signal: the d' of linear losses if only noise moves the score, or None if it is unknown.
        accuracy: the mean test accuracy of the models, or None if it was not measured.
        models: the planned number of models per world.
        store: path of the store with the scores.
        seconds: duration of training and scoring, over all sessions.
        verdict: "violation", "above heuristic", "inconclusive" or "consistent".
        reason: the reason for the verdict. If models are lacking, the reason says how many are needed.
        strength: the faults that the verdict would have caught.
        perplexity: the geometric mean of the perplexity of language models on held-out text, or None if not measured.
        perplexity_before: perplexity of the model before training.
        forecast: the bounds that an audit with this number of models reaches, if training is correct.
        second_moment: Adam's second moment, on models that are not counted, or None if it was not measured.
        claim: the claim that was judged, in words.
        name, owner, notes: what the user calls the audit, who is responsible, and remarks. Empty if not given.
    """

    run: DPSGD
    attack: str
    data: str
    caveats: tuple[str, ...]
    delta: float
    confidence: float
    predictions: dict[str, Answer]
    estimates: dict[str, Estimate]
    scores_in: FloatArray
    scores_out: FloatArray
    score_unit: str
    score_density: FloatArray | None
    signal: float
    ideal_signal: float | None
    accuracy: float | None
    models: int
    store: Path | None
    seconds: float
    verdict: str
    reason: str
    strength: Strength
    perplexity: float | None = None
    perplexity_before: float | None = None
    forecast: Forecast | None = None
    second_moment: SecondMoment | None = None
    claim: str = ""
    name: str = ""
    owner: str = ""
    notes: str = ""

    @property
    def is_one_run(self) -> bool:
        """True if the scores are those of many canaries in one model."""
        return any(METHODS[method].is_one_run for method in self.estimates)

    @property
    def headline(self) -> str:
        """The verdict in words."""
        return headline_of(self.verdict, len(self.scores_in) + len(self.scores_out), self.is_one_run)

    @cached_property
    def detectable(self) -> dict[str, float]:
        """The epsilon that each method reaches with probability 80%, if training is correct and the attack works as
        expected.
        """
        return {} if self.forecast is None else {method: self.forecast.reached(method) for method in self.estimates}

    @cached_property
    def waterfall(self) -> tuple[Step, ...]:
        """The levels of epsilon from the guarantee down to the empirical epsilon."""
        if self.forecast is None or not self.estimates:
            return ()
        return waterfall_of(self.forecast, self.predictions, self.estimates)

    @property
    def last_iterate(self) -> float | None:
        """Epsilon by the heuristic."""
        return self.predictions["last_iterate"].value

    @property
    def composition(self) -> float | None:
        """Epsilon by the standard analysis."""
        return self.predictions["composition"].value

    @property
    def full_batch(self) -> float | None:
        """Epsilon of the full-batch baseline."""
        return self.predictions["full_batch"].value

    @property
    def empirical(self) -> dict[str, float]:
        """The empirical epsilon of each method."""
        return {method: estimate.epsilon for method, estimate in self.estimates.items()}

    def __str__(self) -> str:
        return str(result_table(self))

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def plot(self) -> VConcatChart:
        """Plot scores, errors and epsilons as one altair chart, which notebooks show and ``save`` writes."""
        chart: VConcatChart = late("plot.audit_charts:audit_chart")(self)
        return chart

    def page(self, path: str | Path) -> None:
        """Write the result as one web page that needs no network. The file's name must end in .html."""
        if not isinstance(path, (str, Path)):
            raise BadArgument("path", f"must be a file name, got {told(path)}")
        late("plot.page:write_page")(self, Path(path))


# The three numbers of every screen, in this order: the guarantee, the prediction, and what the attack found.


@dataclass(frozen=True)
class KeyNumber:
    """One of the three numbers: its kind, its epsilon (None if there is none), its text, and its meaning in words."""

    kind: Literal["guarantee", "prediction", "found"]
    epsilon: float | None
    text: str
    words: str

    @property
    def title(self) -> str:
        """The name of the number, as in "predicted"."""
        return {"guarantee": "guaranteed", "prediction": "predicted", "found": "found"}[self.kind]


def key_numbers(run: DPSGD, predictions: Mapping[str, Answer]) -> tuple[KeyNumber, KeyNumber]:
    """Return the guarantee and the prediction of a run, from the answers of its analyses."""
    unknown = Answer(None, "not computed")
    guarantee, prediction = (predictions.get(name, unknown) for name in (run.guarantee, "last_iterate"))
    return (
        _key_number("guarantee", guarantee, PROMISES[run.guarantee]),
        _key_number("prediction", prediction, expected_of(run)),
    )


def _key_number(kind: Literal["guarantee", "prediction"], answer: Answer, words: str) -> KeyNumber:
    if answer.value is None:
        return KeyNumber(kind, None, "none", answer.reason)
    return KeyNumber(kind, answer.value, spell_up(answer.value, 3), words)


def three_numbers(result: AuditResult) -> tuple[KeyNumber, KeyNumber, KeyNumber]:
    """Return the guarantee, the prediction and what the attack found.

    What was found is by the first method, or by the first method that exceeds what the verdict says was exceeded.
    """
    numbers = key_numbers(result.run, result.predictions)
    if not result.estimates:
        return (*numbers, KeyNumber("found", None, "none", "nothing has been estimated yet"))
    level = {VIOLATION: numbers[0].epsilon, ABOVE_HEURISTIC: numbers[1].epsilon}.get(result.verdict)
    above = [name for name, each in result.estimates.items() if level is not None and each.epsilon > level]
    method = next(iter([*above, *result.estimates]))
    first = result.estimates[method]
    words = f"by this attack at least, with {per_cent(first.confidence)} confidence"
    if METHODS[method].mechanism:
        words += f" ({METHODS[method].label})"
    if METHODS[method].is_one_run:
        words += f", if {OWN_COIN}"
    elif len(result.scores_in) < result.models:
        words += f"; {len(result.scores_in):,} of {result.models:,} models per world so far"
    sign = "≥ "
    if not THRESHOLDS[first.threshold_choice].is_valid:
        sign, words = "", "by this attack; the threshold is uncorrected, so this is no bound"
    if above and result.verdict == VIOLATION:
        numbers = (replace(numbers[0], words=f"{numbers[0].words}; this audit refutes it"), numbers[1])
    is_finite = math.isfinite(first.epsilon)
    text = f"{sign}{spell_down(first.epsilon, 3)}" if is_finite else "infinite"
    found = KeyNumber("found", first.epsilon if is_finite else None, text, words)
    return (*numbers, found)


def advice_on(result: AuditResult) -> str:
    """Return the answer to "May I sign?"."""
    guarantee, prediction, _ = three_numbers(result)
    if result.verdict == VIOLATION:
        return (
            "Do not sign. This training leaks more than was claimed: first find the fault in its clipping, its noise "
            "or its sampling of batches."
        )
    if guarantee.epsilon is None:
        return f"There is no guarantee to sign: {guarantee.words}."
    promise = f"epsilon {guarantee.text} at delta {spell_exact(result.delta)}"
    if result.verdict == INCONCLUSIVE:
        return (
            f"Not because of this audit: it was too weak to notice a fault. The guarantee ({promise}) rests on the "
            "training code alone."
        )
    if result.verdict == CONSISTENT:
        return (
            f"You may sign the guarantee: {promise}, if training is as described. Sign neither the prediction nor what "
            "was found: a better attack may find more."
        )
    return (
        f"Sign only the guarantee ({promise}), not the prediction of {prediction.text}: this attack found more than "
        "predicted."
    )


_JUDGED = {
    VIOLATION: "refuted",
    ABOVE_HEURISTIC: "exceeded the prediction, but did not refute",
    INCONCLUSIVE: "was too weak to judge",
    CONSISTENT: "did not refute",
}


def quote_of(result: AuditResult) -> str:
    """Return one sentence about the audit that can be quoted."""
    guarantee, prediction, found = three_numbers(result)
    what = "canaries of one run" if result.is_one_run else "models"
    confidence = per_cent(result.confidence)
    least = f"epsilon {found.text} with {confidence} confidence"
    strength = result.strength.words.removesuffix(".").replace("This audit", "it", 1)
    return (
        f"An audit with {len(result.scores_in):,} {what} with a canary and {len(result.scores_out):,} without "
        f"{_JUDGED[result.verdict]} the claim ({result.claim or 'the run as described'}): it found {least} at delta "
        f"{spell_exact(result.delta)}, where the guarantee is {guarantee.text} and the last-iterate heuristic predicts "
        f"{prediction.text}; {strength}."
    )


_MOST_LINES = 12  # of the short text
_RUN_LINES = 2


def short_text(result: AuditResult, width: int, files: str = "") -> list[str]:
    """Return the result in 12 lines: the run, the three numbers, the verdict with its strength, the files.

    More lines are returned only if the names of the files are long.
    """
    name = result.name or result.data or "your trainer"
    what = f"{result.owner}: {describe(result.run)}" if result.name and result.owner else describe(result.run)
    top = textwrap.wrap(f"{name}: {what}", width, max_lines=_RUN_LINES, placeholder=" ...")
    numbers = three_numbers(result)
    most = max(len(each.text) for each in numbers)
    rows = []
    for each in numbers:
        left = f"{each.title:10}  {each.text:>{most}}  "
        words = textwrap.wrap(each.words, max(width - len(left), 16), max_lines=1, placeholder=" ...")
        rows.append(left + "".join(words))
    below = textwrap.wrap(files, width, break_on_hyphens=False, break_long_words=False)  # names of files are never cut
    space = max(_MOST_LINES - len(top) - 1 - len(rows) - len(below), 2)
    verdict = result.strength.words if result.verdict == CONSISTENT else result.reason
    judged = textwrap.wrap(f"{result.headline} {verdict}", width, max_lines=space, placeholder=" ...")
    gaps = space - len(judged)
    lines = [*top, *([""] if gaps > 0 else []), f"Epsilon at delta {spell_exact(result.delta)}", *rows]
    return [*lines, *([""] if gaps > 1 else []), *judged, *below]


# Table: the result as text, for ``print`` and the command line.


def result_table(result: AuditResult) -> Table:
    """Return a table of all analyses and estimates. The first note is the verdict."""
    rows, run = [], result.run
    for name, answer in result.predictions.items():
        value = "none" if answer.value is None else spell_up(answer.value, 3)
        analysis = ANALYSES[name]
        rows.append((analysis.label_of(run), value, "", "", answer.reason or analysis.assumed_of(run)))
    for name, estimate in result.estimates.items():
        share = per_cent(estimate.confidence)
        most = "-" if estimate.largest is None else spell_up(estimate.largest, 3)
        rows.append((METHODS[name].label, spell_down(estimate.epsilon, 3), share, most, METHODS[name].assumes))
    verdict = [f"{result.headline} {result.reason}", result.strength.words]
    notes = [*verdict, *_about(result), *result.caveats, caveat_of(run)]
    if result.store:
        notes.append(f"Scores: {result.store}")
    title = (
        f"{result.data or 'your trainer'}: {describe(result.run)}; delta {spell_exact(result.delta)}\n{result.attack}"
    )
    return Table(title, ("", "epsilon", "confidence", "limit", "what it assumes"), rows, {1, 2, 3}, notes)


def _about(result: AuditResult) -> list[str]:
    choices = {estimate.threshold_choice for estimate in result.estimates.values()}
    one = next(iter(result.estimates.values()))
    joint = "" if METHODS[one.method].is_one_run else ", for both error rates together"
    words = [
        f"Empirical epsilons are lower bounds for this attack: {one.models_in:,} + {one.models_out:,} scores, "
        f"threshold {' or '.join(sorted(choices))}; confidence for each method alone{joint}. "
        "Limit: the largest epsilon this many models can show."
    ]
    if result.accuracy is not None:
        words.append(f"Accuracy of the models: {100 * result.accuracy:.1f}%.")
    if result.perplexity is not None:
        before = "" if result.perplexity_before is None else f", {spell(result.perplexity_before)} before training"
        words.append(f"Perplexity of the models on held-out text: {spell(result.perplexity)}{before}.")
    error = math.sqrt(1 / len(result.scores_in) + 1 / len(result.scores_out))  # standard error of d', about
    signal = f"Signal d' {spell(result.signal, 3)} (plus or minus {spell(error, 1)})"
    if defined_signal(result.scores_in, result.scores_out) is None:
        signal = "Signal d': not defined for these scores"
    if result.ideal_signal:
        share = result.signal / result.ideal_signal
        signal += f": {100 * share:.0f}% of {spell(result.ideal_signal, 3)}, the ideal of linear losses"
    words.append(f"{signal}.")
    if result.detectable:
        seen = ", ".join(f"{spell_down(value, 3)} ({method})" for method, value in result.detectable.items())
        words.append(
            "Power: if training is correct, 80% of audits by a perfect attack with this many models find at "
            f"least {seen}."
        )
    if result.waterfall:
        levels = " -> ".join(f"{step.rounded} {step.name}" for step in result.waterfall)
        words.append(f"Why not more? {levels}. {' '.join(step.words for step in result.waterfall[1:])}")
    return words
