"""``lastiterate.power``: what so many models can show, and how many it takes to refute a claim."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lastiterate.attacks.attack import ExpectedScores, LikelihoodRatio, LinearScores
from lastiterate.auditing.evidence.guarantee import guarantee_of
from lastiterate.auditing.evidence.kinds import Kind
from lastiterate.auditing.evidence.outlook import CHANCE, OneRunOutlook, Outlook
from lastiterate.auditing.evidence.question import Question
from lastiterate.auditing.evidence.reach import Detectable, Power
from lastiterate.auditing.evidence.refuting import (
    MOST_CANARIES,
    MOST_MODELS,
    chance_to_refute,
    chances_to_refute,
)
from lastiterate.auditing.evidence.threshold import CHOOSING
from lastiterate.auditing.evidence.verdict import Claim
from lastiterate.optimizer import Adam
from lastiterate.privacy.analyses.calibrate import calibrate
from lastiterate.run import DPSGD, LINEAR, require_basic
from lastiterate.values import boolean, integer, number
from lastiterate.wording import ADAM_CAVEAT, per_cent, spell

MOST_AUTO = 4096  # models a world that are chosen without being asked
_MOST_SPREAD = 1000.0
_MOST_FACTOR = 1000.0  # by which noise may be divided: less noise would be found by anybody


def power(
    run: DPSGD,
    models: int = 512,
    delta: float = 1e-5,
    confidence: float = 0.95,
    *,
    signal: float = 1.0,
    spread: float = 1.0,
    methods: Sequence[str] | None = None,
    threshold: float | str = "a-priori",
    validity: str = "fixed",
    claim_epsilon: float | None = None,
    claim_noise: float | None = None,
    leaks_epsilon: float | None = None,
    leaks_noise: float | None = None,
    one_run: bool = False,
) -> Power:
    """How much can an audit see? Before anything is trained, by the law of the scores of linear losses (a heuristic).

    Args:
        run: what is trained.
        models: in each of the two worlds; with ``one_run``, how many canaries.
        delta: of (epsilon, delta)-DP.
        confidence: of the bounds, and of a verdict on a claim.
        signal: the share of the canary that the attack sees, in (0, 1].
        spread: the standard deviation of scores without the canary, in that of the noise: 1 where nothing but noise
            moves them.
        methods: of estimation. None: all that apply.
        threshold: "a-priori", or a number in standard deviations of the noise. One run takes the first only.
        validity: "fixed" or "anytime", as in ``estimate``.
        claim_epsilon: the claim to refute, instead of what the run says.
        claim_noise: the claim to refute, as a noise multiplier.
        leaks_epsilon: the training that is to be found out, by the epsilon that its guarantee would be.
        leaks_noise: the same by its noise multiplier. None: half of the noise that is claimed.
        one_run: one training with many canaries.

    Returns:
        A ``Power``, which prints as a table; ``rows`` has what each method finds, ``needed`` how many models refute.
    """
    kind = Kind.ONE_MODEL if boolean("one_run", one_run) else Kind.LAST_ITERATE
    knows = ("noise_filter", "min_separation") if one_run else ("releases", *LINEAR)
    require_basic(run, "power of one run", knows=knows)
    question = Question(delta, confidence, methods, threshold, claim_epsilon, claim_noise, validity)
    integer("models", models, 1, MOST_CANARIES if one_run else MOST_MODELS)
    linear = LinearScores(
        number("signal", signal, 0.0, 1.0, open_low=True), number("spread", spread, 1.0, _MOST_SPREAD)
    )
    if run.release_count > 1 and linear.spread > 1.0:
        raise ValueError(f"spread must be 1 where a run has {run.release_count} releases, got {spread!r}")
    expected = _expected(run, linear)
    if isinstance(threshold, str) and threshold != "a-priori":
        raise ValueError(f"threshold must be a-priori or a number, got {threshold!r}: others are chosen by scores")
    if one_run and threshold != "a-priori":
        raise ValueError(f"threshold must be a-priori with one_run, got {threshold!r}")
    question.check(run, kind)
    claim = question.claim(run)
    factor = _factor(run, claim, question, leaks_epsilon, leaks_noise)
    outlook = outlook_of(run, models, question, expected, one_run=one_run)
    rows = tuple(
        Detectable(method, outlook.reached(method), outlook.reached(method, 0.5))
        for method in question.methods_for(run, kind)
    )
    chance = chance_to_refute(outlook, claim, factor)
    needed, chances = chances_to_refute(outlook, claim, factor)
    leak = run.replace(noise_multiplier=run.noise_multiplier / factor)
    noise = float(np.max(leak.noise_multiplier))
    allows = guarantee_of(leak)(leak).epsilon(question.delta)
    return Power(
        run=run,
        models=models,
        one_run=one_run,
        delta=question.delta,
        confidence=question.confidence,
        validity=validity,
        signal=float(signal),
        spread=float(spread),
        rows=rows,
        claim=claim.words,
        leak=f"noise multiplier {spell(noise)}, epsilon {spell(allows)}",
        noise_multiplier=noise,
        chance=chance,
        needed=needed,
        chances=tuple(sorted({**chances, models: chance}.items())),
        notes=_notes(run, kind, validity),
    )


def outlook_of(
    run: DPSGD, models: int, question: Question, expected: ExpectedScores, *, one_run: bool = False
) -> Outlook | OneRunOutlook:
    """How an audit of so many models, or canaries, is expected to turn out."""
    if one_run:
        return OneRunOutlook(run, models, question.delta, question.confidence, expected)
    given = None if isinstance(question.threshold, str) else float(question.threshold)
    return Outlook(run, models, question.delta, question.confidence, expected, question.validity, given)


def models_for(run: DPSGD, question: Question, *, is_known: bool = True) -> tuple[int, str]:
    """The least number of models a world that finds half of the claimed noise, and a sentence that says so.

    ``is_known``: whether anything is expected of the scores; if not, some of the models choose the threshold.
    """
    if question.threshold in ("corrected", "uncorrected"):
        raise ValueError(
            f"models must be a number where the threshold is {question.threshold}, got 'auto': it is planned for one "
            "that is fixed in advance, or split"
        )
    claim = question.claim(run)
    factor = _factor(run, claim, question, None, None)
    most = counted(MOST_AUTO, question, is_known=is_known)
    outlook = outlook_of(run, most, question, _expected(run, LinearScores()))
    needed, chances = chances_to_refute(outlook, claim, factor, most=most)
    goal = f"a training with half of the claimed noise is refuted with probability {per_cent(CHANCE)}"
    if needed is None:
        return MOST_AUTO, (
            f"models: {MOST_AUTO:,} a world, the most that are chosen so; it would take more until {goal} (with these: "
            f"{spell(chances[most], 2)}, if the attack is perfect and losses are linear, a heuristic)"
        )
    models = needed
    if _splits(question, is_known):
        models = needed + CHOOSING if question.validity == "anytime" else 2 * needed
    return models, (
        f"models: {models:,} a world, so that {goal} (if the attack is perfect and losses are linear, a heuristic)"
    )


def _expected(run: DPSGD, linear: LinearScores) -> LinearScores | LikelihoodRatio:
    """What is expected of the scores: where several iterates are released, of their likelihood ratio."""
    return linear if run.release_count == 1 else LikelihoodRatio(released=True, signal=linear.signal)


def counted(models: int, question: Question, *, is_known: bool = True) -> int:
    """How many of so many models a world count, where others choose the threshold; arguments as in ``models_for``."""
    if not _splits(question, is_known):
        return models
    return max(models - CHOOSING if question.validity == "anytime" else models // 2, 1)


def _splits(question: Question, is_known: bool) -> bool:
    return question.threshold == "split" or (question.threshold == "a-priori" and not is_known)


def _factor(run: DPSGD, claim: Claim, question: Question, epsilon: float | None, noise: float | None) -> float:
    """By what the noise of the training that is to be found out is less than the run's."""
    own = float(np.max(run.noise_multiplier))
    if epsilon is not None and noise is not None:
        raise ValueError("leaks_epsilon and leaks_noise were both given: give one")
    if epsilon is not None:
        goal = number("leaks_epsilon", epsilon, 0.0, open_low=True)
        try:
            leak = calibrate(run, epsilon=goal, delta=question.delta, analysis=guarantee_of(run))
        except ValueError as error:
            raise ValueError(f"leaks_epsilon must be one that the run can have, got {goal!r}: {error}") from None
        name, given, noise = "leaks_epsilon", goal, float(np.max(leak.noise_multiplier))
    elif noise is not None:
        name, given = "leaks_noise", number("leaks_noise", noise, 0.0, open_low=True)
        noise = given
    else:
        claimed = run if claim.run is None else claim.run
        name, given = "claim_epsilon", question.claim_epsilon or 0.0
        if question.claim_noise is not None:
            name, given = "claim_noise", question.claim_noise
        noise = 0.5 * float(np.max(claimed.noise_multiplier))
    factor = own / noise
    if not 1.0 / _MOST_FACTOR <= factor <= _MOST_FACTOR:
        raise ValueError(
            f"{name} must mean noise between a thousandth and a thousand times the run's, {spell(own)}, got {given!r}"
        )
    return factor


def _notes(run: DPSGD, kind: Kind, validity: str) -> tuple[str, ...]:
    notes = [
        "All of it supposes scores as linear losses make them (a heuristic). Where they are not, an audit finds less "
        "or more; its bounds hold all the same.",
    ]
    if isinstance(run.optimizer, Adam):
        notes.append(ADAM_CAVEAT)
    if kind is Kind.ONE_MODEL:
        notes.append("Two tests judge a claim; the probability is that of the better one alone, so a little low.")
    elif validity == "anytime":
        notes.append(
            "The probability is that of one look at the end and without the wager against the claim, so too low: who "
            "looks often refutes sooner."
        )
    return tuple(notes)
