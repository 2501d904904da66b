"""The report of an audit: predictions, estimates and verdict, computed from stored scores without training."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from lastiterate.attacks.attack import ExpectedScores, LikelihoodRatio, LinearScores, Unknown, Words
from lastiterate.auditing.design import Design, OpenEnded, Paired, Quality
from lastiterate.auditing.evidence.audit_result import AuditResult
from lastiterate.auditing.evidence.estimate import Estimate
from lastiterate.auditing.evidence.estimates import Estimates, Question, likelihood_ratios, predictions_of
from lastiterate.auditing.evidence.forecast import Forecast
from lastiterate.auditing.evidence.score_signal import (
    Kind,
    expected_signal,
    kind_of,
    score_densities,
    signal_of,
)
from lastiterate.auditing.evidence.threshold import CHOOSING, deciding
from lastiterate.auditing.evidence.verdict import verdict_on
from lastiterate.common.types import BoolArray, FloatArray
from lastiterate.compare_analyses import Answer, ask
from lastiterate.formatting import per_cent, spell, spell_down, spell_up
from lastiterate.labels import CONVEX, METHODS, THRESHOLDS
from lastiterate.run import DPSGD
from lastiterate.trainers.adam_second_moment import SecondMoment

# Adam's second moment: sentences on whether noise dominates it, as the prediction supposes.

_DOMINATES = 0.5  # the smallest noise share of the second moment at which noise dominates
_GROWS = 1.05  # a smaller growth of later steps is not reported


def second_moment_sentences(run: DPSGD, moment: SecondMoment | None, delta: float) -> list[str]:
    """Return sentences on the share of noise in Adam's second moment, and on later steps if they are larger."""
    if not run.is_adaptive:
        return []
    if moment is None:
        return ["The prediction supposes that noise dominates Adam's second moment. This was not measured."]
    all_, busy = (per_cent(round(min(share, 1.0), 2)) for share in (moment.noise_share, moment.busy_noise_share))
    shares = (
        f"noise is at least {all_} of the second moment, and at least {busy} in the 10% of parameters with the "
        "largest second moment."
    )
    dominance = f"Noise dominates Adam's second moment, as the prediction supposes: {shares}"
    if moment.noise_share < _DOMINATES:
        dominance = (
            f"Noise does not dominate Adam's second moment, although the prediction supposes this: {shares} Steps are "
            "smaller than the prediction supposes and differ in size, so the prediction is less reliable."
        )
    elif moment.busy_noise_share < _DOMINATES:
        dominance = f"Noise dominates Adam's second moment, as the prediction supposes, but not everywhere: {shares}"
    if moment.growth < _GROWS + moment.uncertainty:
        return [dominance]
    found = [ask(each, "last_iterate", lambda curve: curve.epsilon(delta)).value for each in moment.as_measured(run)]
    predicted = ask(run, "last_iterate", lambda curve: curve.epsilon(delta)).value
    known = [value for value in found if value is not None]
    words = ""
    if known and predicted is not None:
        measured, supposed = spell_up(max(known), 4), spell_up(predicted, 4)
        words = f": with steps of these sizes the prediction would be {measured} instead of {supposed}"
    return [
        dominance,
        "Adam's second moment shrinks during training, so that later steps are up to "
        f"{spell(moment.growth, 3)} times as large as the prediction supposes{words}.",
    ]


@dataclass(frozen=True, eq=False)
class Evidence:
    """The scores of an audit, and everything else that its result is computed from.

    Attributes:
        expected: the distribution of the scores that the linear analysis predicts.
        data: the model and the training data in words.
        scores: scores of the finished trials.
        present: for each score, whether the model was trained with the canary.
        prefix: number of scores at the start of the plan without a gap.
        quality: the kind of quality in ``qualities``, or None if none was measured.
        qualities: the quality of the model of each score. NaN if it was not measured.
        quality_before: quality of the model before training.
        seconds: duration of training and scoring.
        store: path of the store with the scores, or None if there is no store.
        second_moment: Adam's second moment, or None if it was not measured.
        about: the user's name, owner and notes for the audit, if given.
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
    store: Path | None
    second_moment: SecondMoment | None = None
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def horizon(self) -> int:
        """The number of models per world planned at the start. Thresholds are predicted for this number."""
        return self.design.horizon if isinstance(self.design, OpenEnded) else self.design.models

    def worlds(self, validity: str = "fixed") -> tuple[FloatArray, FloatArray]:
        """Return the scores with and without the canary. With "anytime" validity, models after a gap are left out."""
        counted = slice(self.prefix) if validity == "anytime" else slice(None)
        scores, present = self.scores[counted], self.present[counted]
        inside, outside = scores[present], scores[~present]
        if not len(inside) or not len(outside):
            where = f"the store {str(self.store)!r}" if self.store else "the audit"
            raise ValueError(f"{where} does not have models of both worlds yet: finish the audit first")
        return inside, outside

    def quality_of(self, name: str) -> float | None:
        """Return the quality of all models together, or None if this kind of quality was not measured."""
        if self.quality is None or self.quality.name != name:
            return None
        return self.quality.of_all(self.qualities.tolist())


def report(evidence: Evidence, question: Question = Question()) -> AuditResult:  # noqa: B008 - it is frozen
    """Compute the result of an audit from its scores."""
    run, expected, words = evidence.run, evidence.expected, evidence.words
    kind = kind_of(evidence.design, expected)
    if isinstance(evidence.design, OpenEnded):  # the number of models was not fixed in advance
        question = replace(question, validity="anytime")
    claim = question.check(run, kind)
    scores_in, scores_out = evidence.worlds(question.validity)
    estimates = Estimates(run, expected, scores_in, scores_out, question, evidence.horizon)
    found = {method: estimates(method, question.confidence) for method in question.methods_for(run, kind)}
    predictions = dict(predictions_of(run, question.delta, question.contraction))
    verdict, reason, strength = verdict_on(claim, kind, estimates)
    heuristic = None if kind is Kind.ALL_ITERATES else predictions["last_iterate"].value
    limits = [sentence for sentence in _limits(found, heuristic, predictions) if sentence != reason]
    ideal_signal = expected_signal(run) if isinstance(expected, LinearScores) else None
    if isinstance(expected, LikelihoodRatio) and expected.released:
        drawn = likelihood_ratios(run, LikelihoodRatio(released=True))
        ideal_signal = signal_of(drawn.inside, drawn.outside)
    sizes, one_run = (len(scores_in), len(scores_out)), kind is Kind.ONE_MODEL
    threshold = deciding(question.threshold)
    if isinstance(expected, Unknown) and not one_run and threshold != "corrected":
        threshold = "split"  # the unit of the scores is unknown, so no other rule can be forecast
    models = sum(sizes) if one_run else min(sizes)
    asked = question.delta, question.confidence, expected, question.validity, threshold, evidence.horizon
    after, before, worse = evidence.quality_of("perplexity"), evidence.quality_before, []
    if before is not None and after is not None and after > before:
        worse.append(
            f"The models are worse on held-out text than before training (perplexity {spell(after)}, {spell(before)} "
            "before): try more texts, a smaller learning rate or less noise."
        )
    return AuditResult(
        run=run,
        attack=words.attack,
        data=evidence.data,
        caveats=(*words.caveats, *_remarks(evidence, question), *limits, *worse),
        delta=question.delta,
        confidence=question.confidence,
        predictions=predictions,
        estimates=found,
        scores_in=scores_in,
        scores_out=scores_out,
        score_unit=words.unit,
        score_density=_density(run, expected, scores_in, scores_out),
        signal=signal_of(scores_in, scores_out),
        ideal_signal=ideal_signal,
        accuracy=evidence.quality_of("accuracy"),
        models=evidence.design.models,
        store=evidence.store,
        seconds=evidence.seconds,
        verdict=verdict,
        reason=reason,
        strength=strength,
        perplexity=after,
        perplexity_before=evidence.quality_before if evidence.quality == Quality("perplexity") else None,
        forecast=Forecast(run, models, *asked, one_run=one_run),
        second_moment=evidence.second_moment,
        claim=claim.words,
        **evidence.about,
    )


def _remarks(evidence: Evidence, question: Question) -> list[str]:
    sentences = [remark] if (remark := question.remark(evidence.run)) is not None else []
    done, planned, models = len(evidence.scores), evidence.design.trials, evidence.design.models
    if question.is_anytime:
        sentences.append(
            f"{evidence.prefix // 2:,} of {models:,} models per world count so far. These bounds hold at every time: "
            "you may look, stop or continue."
        )
    elif done < planned:
        early = "Stopping early because of the result invalidates the confidence."
        sentences.append(f"Only {done} of {planned} trials are done. {early}")
    return [*sentences, *second_moment_sentences(evidence.run, evidence.second_moment, question.delta)]


def _limits(found: dict[str, Estimate], heuristic: float | None, predictions: dict[str, Answer]) -> list[str]:
    sentences, proved = [], predictions[CONVEX.name].value if CONVEX.name in predictions else None
    for method, each in found.items():
        most = each.largest if METHODS[method].is_assumption_free else None
        if most is not None and heuristic is not None and most < heuristic:
            sentences.append(
                f"{each.models_in:,} and {each.models_out:,} scores show at most epsilon {spell_up(most, 3)} for any "
                f"mechanism. This is below the heuristic's {spell_up(heuristic, 4)}, so this bound cannot refute the "
                "heuristic."
            )
        if each.threshold_choice == "split":
            sentences.append(
                f"The first {CHOOSING} models per world chose the threshold, and only the others are counted."
                if each.validity == "anytime"
                else "Half of the models chose the threshold, and only the other half is counted."
            )
        if each.threshold_choice == "uncorrected":
            why = (
                "the threshold is the best one for these scores, without a correction for this choice: not a "
                "valid bound"
            )
            sentences.append(f"{METHODS[method].label}: {why}.")
        sentences += [
            caveat for caveat in each.caveats if caveat not in each.assumptions
        ]  # the table shows these already
    free = [
        each.epsilon
        for method, each in found.items()
        if METHODS[method].is_assumption_free and THRESHOLDS[each.threshold_choice].is_valid
    ]
    if proved is not None and free and max(free) > proved:
        sentences.append(
            f"Epsilon {spell_down(max(free), 4)} was found, more than the guarantee of {spell_up(proved, 4)} for "
            "convex losses: steps do not contract as declared, or training differs from the run."
        )
    return list(dict.fromkeys(sentences))


def _density(run: DPSGD, expected: ExpectedScores, scores_in: FloatArray, scores_out: FloatArray) -> FloatArray | None:
    finite = np.concatenate([scores_in, scores_out])
    finite = finite[np.isfinite(finite)]
    if not isinstance(expected, LinearScores) or not finite.size:
        return None
    low, high = min(finite.min(), -3.5 * expected.spread), max(finite.max(), 3.5 * expected.spread)
    at = np.linspace(low, high, 160)
    return np.stack([at, *score_densities(run, at, expected)], axis=1)


# Growth: the "anytime" bound as a function of the number of models.

_POINTS = 28
_FIRST = 4  # models per world: fewer show nothing


def growth_of(evidence: Evidence, question: Question) -> list[tuple[int, float]]:
    """Return pairs (models per world, "anytime" bound by the first method), or an empty list if there is no bound."""
    design = evidence.design
    if not isinstance(design, Paired) or evidence.prefix < 2 * _FIRST:
        return []
    method = question.methods_for(evidence.run, kind_of(design, evidence.expected))[0]
    anytime = replace(question, validity="anytime", threshold="a-priori", methods=None)
    inside, outside = evidence.worlds("anytime")
    most = min(len(inside), len(outside))
    counts = np.unique(np.rint(np.geomspace(_FIRST, most, _POINTS)).astype(np.int64)).tolist()
    points = []
    for count in counts:
        estimates = Estimates(
            evidence.run, evidence.expected, inside[:count], outside[:count], anytime, evidence.horizon
        )
        try:
            epsilon = estimates(method, question.confidence).epsilon
        except ValueError:  # too few models to choose a threshold
            continue
        if math.isfinite(epsilon):
            points.append((count, epsilon))
    return points
