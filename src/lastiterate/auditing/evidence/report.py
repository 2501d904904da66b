"""The report of an audit: predictions, estimates and verdict, computed from stored scores without training."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lastiterate.attacks.attack import ExpectedScores, LikelihoodRatio, LinearScores, Unknown, Words
from lastiterate.auditing.design import Design, OpenEnded, Paired, Quality
from lastiterate.auditing.evidence.audit_result import AuditResult
from lastiterate.auditing.evidence.estimate import Estimate
from lastiterate.auditing.evidence.estimates import Estimates, Question, likelihood_ratios, predictions_of
from lastiterate.auditing.evidence.forecast import OneRunOutlook, Outlook
from lastiterate.auditing.evidence.score_signal import (
    Kind,
    density_without,
    expected_signal,
    kind_of,
    score_density,
    signal_of,
)
from lastiterate.auditing.evidence.threshold import CHOOSING, deciding
from lastiterate.auditing.evidence.verdict import verdict_on
from lastiterate.common.types import BoolArray, FloatArray
from lastiterate.compare_analyses import Answer, ask
from lastiterate.formatting import per_cent, spell, spell_down, spell_up
from lastiterate.optimizer import is_adam
from lastiterate.registry import CONVEX, METHODS, THRESHOLDS
from lastiterate.run import DPSGD
from lastiterate.trainers.adam_second_moment import SecondMoment

# Adam's second moment: sentences on whether it is as the prediction supposes.

_DOMINATES = 0.5  # the smallest noise share of the second moment at which noise dominates
_GROWS = 1.05  # the smallest growth of later steps that is reported


def second_moment_sentences(run: DPSGD, moment: SecondMoment | None, delta: float) -> list[str]:
    """Return sentences on the share of noise in Adam's second moment, and on the growth of later steps if they grow."""
    if not is_adam(run.optimizer):
        return []
    if moment is None:
        return ["How far noise makes up Adam's second moment, as the prediction supposes, was not measured."]
    return [_dominance(moment), *_growth(run, moment, delta)]


def _dominance(moment: SecondMoment) -> str:
    all_, busy = (per_cent(round(min(share, 1.0), 2)) for share in (moment.noise_share, moment.busy_noise_share))
    shares = f"{all_} of it at least, and {busy} in the tenth of the parameters where it is largest"
    if moment.noise_share < _DOMINATES:
        return (
            f"Noise does not dominate Adam's second moment, as the prediction supposes: it makes up {shares}. Steps "
            "are smaller there than supposed, and not of one size: the prediction is less to be trusted."
        )
    if moment.busy_noise_share < _DOMINATES:
        return (
            f"Noise dominates Adam's second moment, as the prediction supposes, but not everywhere: it makes up "
            f"{shares}."
        )
    return f"Noise dominates Adam's second moment, as the prediction supposes: it makes up {shares}."


def _growth(run: DPSGD, moment: SecondMoment, delta: float) -> list[str]:
    if moment.growth < _GROWS + moment.uncertainty:
        return []
    found = [ask(each, "last_iterate", lambda curve: curve.epsilon(delta)).value for each in moment.as_measured(run)]
    predicted = ask(run, "last_iterate", lambda curve: curve.epsilon(delta)).value
    known = [value for value in found if value is not None]
    words = ""
    if known and predicted is not None:
        measured, supposed = spell_up(max(known), 4), spell_up(predicted, 4)
        words = f": with steps of these sizes the prediction would be {measured} instead of {supposed}"
    return [
        "Adam's second moment shrinks while training goes on, and later steps grow, by "
        f"{spell(moment.growth, 3)} more than the prediction supposes{words}."
    ]


@dataclass(frozen=True, eq=False)
class Evidence:
    """The scores of an audit, and all else that its result is computed from.

    Attributes:
        run: the run that was trained, or is claimed to have been.
        design: the planned trials.
        expected: the law of the scores by the linear analysis.
        words: the attack in words.
        data: the model and the training data in words.
        scores: scores of the finished trials.
        present: for each score, whether the canary was in.
        prefix: number of scores, from the first on, before which no model is missing.
        quality: the quality that ``qualities`` measures. None: not measured.
        qualities: quality of the models, one for each score; NaN if not measured.
        quality_before: quality of the model before training.
        seconds: duration of training and scoring.
        store: path of the store with the scores.
        second_moment: Adam's second moment, if it was measured.
    """

    run: DPSGD
    design: Design
    expected: ExpectedScores
    words: Words
    data: str
    scores: FloatArray
    present: BoolArray
    prefix: int
    quality: Quality | None
    qualities: FloatArray
    quality_before: float | None
    seconds: float
    store: Path
    second_moment: SecondMoment | None = None

    def worlds(self, validity: str = "fixed") -> tuple[FloatArray, FloatArray]:
        """Return the scores with the canary, and those without.

        With validity "anytime", models after a missing model are left out: quick models must not displace slow ones.
        """
        counted = slice(self.prefix) if validity == "anytime" else slice(None)
        scores, present = self.scores[counted], self.present[counted]
        inside, outside = scores[present], scores[~present]
        if not len(inside) or not len(outside):
            raise ValueError(
                f"the store {str(self.store)!r} has no trial in one of the worlds yet: finish its audit first"
            )
        return inside, outside

    def quality_of(self, name: str) -> float | None:
        """Return the quality of all models together; None if this quality was not measured."""
        if self.quality is None or self.quality.name != name:
            return None
        return self.quality.of_all(self.qualities.tolist())


def report(evidence: Evidence, question: Question = Question()) -> AuditResult:  # noqa: B008 - it is frozen
    """Compute the result of an audit from its scores."""
    run, expected, words = evidence.run, evidence.expected, evidence.words
    kind = kind_of(evidence.design, expected)
    horizon = evidence.design.models
    if isinstance(evidence.design, OpenEnded):  # the number of models was not fixed in advance
        question, horizon = replace(question, validity="anytime"), evidence.design.horizon
    question.check_validity(kind)
    question.check_contraction(run, kind)
    methods = question.methods_for(run, kind)
    scores_in, scores_out = evidence.worlds(question.validity)
    estimates = Estimates(run, expected, scores_in, scores_out, question, horizon)
    found = {method: estimates(method, question.confidence) for method in methods}
    predictions = dict(predictions_of(run, question.delta, question.contraction))
    verdict, reason, strength = verdict_on(question.claim(run), kind, estimates)
    heuristic = None if kind is Kind.ALL_ITERATES else predictions["last_iterate"].value
    limits = [sentence for sentence in _limits(found, heuristic) if sentence != reason]
    is_text = evidence.quality == Quality("perplexity")
    return AuditResult(
        run=run,
        attack=words.attack,
        data=evidence.data,
        caveats=(
            *words.caveats,
            *_remarks(evidence, question),
            *limits,
            *_above_convex(predictions, found),
            *_usefulness(evidence),
        ),
        delta=question.delta,
        confidence=question.confidence,
        predictions=predictions,
        estimates=found,
        scores_in=scores_in,
        scores_out=scores_out,
        score_unit=words.unit,
        score_density=_density(run, expected, scores_in, scores_out),
        signal=signal_of(scores_in, scores_out),
        ideal_signal=_ideal_signal(run, expected),
        accuracy=evidence.quality_of("accuracy"),
        models=evidence.design.models,
        store=evidence.store,
        seconds=evidence.seconds,
        verdict=verdict,
        reason=reason,
        strength=strength,
        perplexity=evidence.quality_of("perplexity"),
        perplexity_before=evidence.quality_before if is_text else None,
        outlook=_outlook(run, expected, kind, question, (len(scores_in), len(scores_out)), horizon),
        second_moment=evidence.second_moment,
    )


def _ideal_signal(run: DPSGD, expected: ExpectedScores) -> float | None:
    """Return the signal of an attack that sees all of the canary; None if the linear analysis does not know it."""
    match expected:
        case LinearScores():
            return expected_signal(run)
        case LikelihoodRatio(True):
            drawn = likelihood_ratios(run, LikelihoodRatio(released=True))
            return signal_of(drawn.inside, drawn.outside)
    return None


def _outlook(
    run: DPSGD, expected: ExpectedScores, kind: Kind, question: Question, sizes: tuple[int, int], horizon: int
) -> Outlook | OneRunOutlook:
    """Return the forecast of an audit with this number of scores and this threshold rule.

    If the law of the scores is unknown, the forecast is that of a perfect attack.
    """
    threshold: float | str | None = deciding(question.threshold)
    asked = run, question.delta, question.confidence, expected
    if kind is Kind.ONE_MODEL:
        rule = {"split": "corrected", "a-priori": None}.get(str(threshold), threshold)
        return OneRunOutlook(asked[0], sum(sizes), *asked[1:], threshold=rule)
    if isinstance(expected, Unknown) and threshold != "corrected":
        threshold = "split"  # the unit of the scores is unknown, so no other rule can be forecast
    return Outlook(
        asked[0],
        min(sizes),
        *asked[1:],
        validity=question.validity,
        threshold=None if threshold == "a-priori" else threshold,
        horizon=horizon if question.validity == "anytime" else None,
    )


def _remarks(evidence: Evidence, question: Question) -> list[str]:
    """Return sentences on an odd claim, on missing trials, and on Adam's second moment."""
    remark = question.remark(evidence.run)
    sentences = [] if remark is None else [remark]
    done, planned = len(evidence.scores), evidence.design.trials
    if question.validity == "anytime":
        sentences.append(
            f"{evidence.prefix // 2:,} of {evidence.design.models:,} models a world count so far. These bounds hold at "
            "every moment: look, stop or go on as you like."
        )
    elif done < planned:
        sentences.append(
            f"Only {done} of {planned} trials are done: who stops when it looks good has no confidence left."
        )
    return [*sentences, *second_moment_sentences(evidence.run, evidence.second_moment, question.delta)]


def _usefulness(evidence: Evidence) -> list[str]:
    """Return a sentence if training made the models worse on held-out text."""
    after, before = evidence.quality_of("perplexity"), evidence.quality_before
    if before is None or after is None or after <= before:
        return []
    return [
        f"The models are worse on held-out text than before training (perplexity {spell(after)}, {spell(before)} "
        "before): more texts, a smaller learning rate or less noise would make them useful."
    ]


def _limits(found: dict[str, Estimate], predicted: float | None) -> list[str]:
    """Return sentences on the limits of these estimates."""
    sentences = []
    for method, each in found.items():
        most = each.largest if METHODS[method].is_assumption_free else None
        if most is not None and predicted is not None and most < predicted:
            sentences.append(
                f"{each.models_in:,} and {each.models_out:,} scores show at most epsilon {spell_up(most, 4)} for any "
                f"mechanism, which is below the heuristic's {spell_up(predicted, 4)}: they cannot refute it that way."
            )
        if each.threshold_choice == "split":
            sentences.append(
                f"The first {CHOOSING} models a world chose the threshold, and only the others are counted."
                if each.validity == "anytime"
                else "Half of the models chose the threshold, and only the other half is counted."
            )
        if each.threshold_choice == "uncorrected":
            sentences.append(
                f"{METHODS[method].label}: the threshold is the best of all, uncorrected for that choice: not a valid "
                "bound."
            )
        sentences += [caveat for caveat in each.caveats if caveat not in each.assumptions]  # the table has them
    return list(dict.fromkeys(sentences))


def _above_convex(predictions: dict[str, Answer], found: dict[str, Estimate]) -> list[str]:
    """Return a sentence if a bound exceeds the guarantee for convex losses: a condition of the proof is not met."""
    proved = predictions[CONVEX.name].value if CONVEX.name in predictions else None
    free = [
        each.epsilon
        for method, each in found.items()
        if METHODS[method].is_assumption_free and THRESHOLDS[each.threshold_choice].is_valid
    ]
    if proved is None or not free or max(free) <= proved:
        return []
    return [
        f"Epsilon {spell_down(max(free), 4)} was found, more than the {spell_up(proved, 4)} that is guaranteed for "
        "convex losses: steps do not contract as stated, or training is not as described."
    ]


def _density(run: DPSGD, expected: ExpectedScores, scores_in: FloatArray, scores_out: FloatArray) -> FloatArray | None:
    """Return the densities that the linear analysis predicts over the range of the scores."""
    finite = np.concatenate([scores_in, scores_out])
    finite = finite[np.isfinite(finite)]
    if not isinstance(expected, LinearScores) or not finite.size:
        return None
    low, high = min(finite.min(), -3.5 * expected.spread), max(finite.max(), 3.5 * expected.spread)
    at = np.linspace(low, high, 160)
    law = {"spread": expected.spread, "signal": expected.signal}
    return np.stack([at, density_without(run, at, **law), score_density(run, at, **law)], axis=1)


# Growth: the "anytime" bound as a function of the number of models.

_POINTS = 28
_FIRST = 4  # models a world: fewer show nothing


def growth_of(evidence: Evidence, question: Question) -> list[tuple[int, float]]:
    """Return (models a world, "anytime" bound by the first method); empty if the audit has no such bound."""
    design = evidence.design
    if not isinstance(design, Paired) or evidence.prefix < 2 * _FIRST:
        return []
    method = question.methods_for(evidence.run, kind_of(design, evidence.expected))[0]
    anytime = replace(question, validity="anytime", threshold="a-priori", methods=None)
    inside, outside = evidence.worlds("anytime")
    most = min(len(inside), len(outside))
    horizon = design.horizon if isinstance(design, OpenEnded) else design.models
    counts = np.unique(np.rint(np.geomspace(_FIRST, most, _POINTS)).astype(np.int64)).tolist()
    points = []
    for count in counts:
        estimates = Estimates(evidence.run, evidence.expected, inside[:count], outside[:count], anytime, horizon)
        try:
            epsilon = estimates(method, question.confidence).epsilon
        except ValueError:  # too few models to choose a threshold by
            continue
        if math.isfinite(epsilon):
            points.append((count, epsilon))
    return points
