"""``lastiterate.power``: what so many models can show, and how many it takes to refute a claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lastiterate.attacks.attack import ExpectedScores, LinearScores
from lastiterate.auditing.evidence.guarantee import guarantee_of
from lastiterate.auditing.evidence.kinds import Kind
from lastiterate.auditing.evidence.outlook import CHANCE, OneRunOutlook, Outlook
from lastiterate.auditing.evidence.question import Question
from lastiterate.auditing.evidence.refuting import (
    MOST_CANARIES,
    MOST_MODELS,
    chance_to_refute,
    chances_to_refute,
)
from lastiterate.auditing.evidence.verdict import Claim
from lastiterate.privacy.analyses.calibrate import calibrate
from lastiterate.run import DPSGD, require_run
from lastiterate.values import boolean, integer, number
from lastiterate.wording import per_cent, spell

MOST_AUTO = 4096  # models a world that are chosen without being asked
_MOST_SPREAD = 1000.0
_MOST_FACTOR = 1000.0  # by which noise may be divided: less noise would be found by anybody


@dataclass(frozen=True)
class Detectable:
    """What one method will find, if a training is exactly as described.

    Attributes:
        method: of estimation.
        detectable: the epsilon that its bound reaches with probability 80%: the bound's 20% quantile.
        median: what half of the audits find at least.
    """

    method: str
    detectable: float
    median: float


@dataclass(frozen=True)
class Power:
    """What an audit can see.

    Attributes:
        run: what is trained.
        models: a world, or canaries of the one run.
        one_run: whether there is one training with many canaries.
        delta: of (epsilon, delta)-DP.
        confidence: of every bound, and of the verdict.
        validity: "fixed" or "anytime".
        signal: the share of the canary that the attack sees.
        spread: the standard deviation of its scores, in that of the noise.
        rows: what each method will find.
        claim: what is to be refuted, for people.
        leak: the training that is to be found out, for people.
        noise_multiplier: that training's largest.
        chance: the probability with which so many ``models`` refute the claim.
        needed: how many refute it with probability 80%; None: more than anybody trains.
        chances: (models, probability to refute) for several numbers of models.
        notes: what a reader must know, in sentences.
    """

    run: DPSGD
    models: int
    one_run: bool
    delta: float
    confidence: float
    validity: str
    signal: float
    spread: float
    rows: tuple[Detectable, ...]
    claim: str
    leak: str
    noise_multiplier: float
    chance: float
    needed: int | None
    chances: tuple[tuple[int, float], ...]
    notes: tuple[str, ...]


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
    """
    require_run(run)
    question = Question(delta, confidence, methods, threshold, claim_epsilon, claim_noise, validity)
    kind = Kind.ONE_MODEL if boolean("one_run", one_run) else Kind.LAST_ITERATE
    integer("models", models, 1, MOST_CANARIES if one_run else MOST_MODELS)
    expected = LinearScores(
        number("signal", signal, 0.0, 1.0, open_low=True), number("spread", spread, 1.0, _MOST_SPREAD)
    )
    if isinstance(threshold, str) and threshold != "a-priori":
        raise ValueError(f"threshold must be a-priori or a number, got {threshold!r}: others are chosen by scores")
    if one_run and threshold != "a-priori":
        raise ValueError(f"threshold must be a-priori with one_run, got {threshold!r}")
    question.check(run, kind)
    claim = question.claim(run)
    factor = _factor(run, claim, delta, leaks_epsilon, leaks_noise)
    outlook = outlook_of(run, models, question, expected, one_run=one_run)
    rows = tuple(
        Detectable(method, outlook.reached(method), outlook.reached(method, 0.5))
        for method in question.methods_for(run, kind)
    )
    chance = chance_to_refute(outlook, claim, factor)
    needed, chances = chances_to_refute(outlook, claim, factor)
    leak = run.replace(noise_multiplier=run.noise_multiplier / factor)
    noise = float(np.max(leak.noise_multiplier))
    allows = guarantee_of(leak)(leak).epsilon(delta)
    return Power(
        run=run,
        models=models,
        one_run=one_run,
        delta=delta,
        confidence=confidence,
        validity=validity,
        signal=float(signal),
        spread=float(spread),
        rows=rows,
        claim=claim.words,
        leak=f"noise multiplier {spell(noise)}, whose guarantee is epsilon {spell(allows)}",
        noise_multiplier=noise,
        chance=chance,
        needed=needed,
        chances=tuple(sorted({**chances, models: chance}.items())),
        notes=_notes(kind, validity, confidence),
    )


def outlook_of(
    run: DPSGD, models: int, question: Question, expected: ExpectedScores, *, one_run: bool = False
) -> Outlook | OneRunOutlook:
    """How an audit of so many models, or canaries, is expected to turn out."""
    if one_run:
        return OneRunOutlook(run, models, question.delta, question.confidence, expected)
    given = None if isinstance(question.threshold, str) else float(question.threshold)
    return Outlook(run, models, question.delta, question.confidence, expected, question.validity, given)


def models_for(run: DPSGD, question: Question, *, share: float = 1.0) -> tuple[int, str]:
    """The least number of models a world that finds half of the claimed noise, and a sentence that says so.

    ``share`` of the models is counted: where nothing is known of the scores, others choose the threshold.
    """
    claim = question.claim(run)
    factor = _factor(run, claim, question.delta, None, None)
    question = replace(question, threshold="a-priori") if isinstance(question.threshold, str) else question
    most = int(MOST_AUTO * share)
    needed, chances = chances_to_refute(outlook_of(run, most, question, LinearScores()), claim, factor, most=most)
    goal = f"a training with half of the claimed noise is refuted with probability {per_cent(CHANCE)}"
    if needed is None:
        return MOST_AUTO, (
            f"models: {MOST_AUTO:,} a world, the most that are chosen so; it would take more until {goal} (with these: "
            f"{spell(chances[most], 2)}, if the attack is perfect and losses are linear, a heuristic)"
        )
    models = int(np.ceil(needed / share))
    return models, f"models: {models:,} a world, so that {goal} (if the attack is perfect and losses are linear)"


def _factor(run: DPSGD, claim: Claim, delta: float, epsilon: float | None, noise: float | None) -> float:
    """By what the noise of the training that is to be found out is less than the run's."""
    own = float(np.max(run.noise_multiplier))
    if epsilon is not None and noise is not None:
        raise ValueError("leaks_epsilon and leaks_noise were both given: give one")
    if epsilon is not None:
        goal = number("leaks_epsilon", epsilon, 0.0, open_low=True)
        try:
            leak = calibrate(run, epsilon=goal, delta=delta, analysis=guarantee_of(run))
        except ValueError as error:
            raise ValueError(f"leaks_epsilon must be one that the run can have, got {goal!r}: {error}") from None
        name, given, noise = "leaks_epsilon", goal, float(np.max(leak.noise_multiplier))
    elif noise is not None:
        name, given = "leaks_noise", number("leaks_noise", noise, 0.0, open_low=True)
        noise = given
    else:
        claimed = run if claim.run is None else claim.run
        name, given, noise = "the claim", claim.guarantee, 0.5 * float(np.max(claimed.noise_multiplier))
    factor = own / noise
    if not 1.0 / _MOST_FACTOR <= factor <= _MOST_FACTOR:
        raise ValueError(
            f"{name} must mean noise between a thousandth and a thousand times the run's, {spell(own)}, got {given!r}"
        )
    return factor


def _notes(kind: Kind, validity: str, confidence: float) -> tuple[str, ...]:
    notes = [
        "Scores are taken to be as linear losses make them (a heuristic); if they are not, the audit's bounds are "
        "weak, and still bounds.",
    ]
    if kind is Kind.ONE_MODEL:
        notes.append("A claim is judged by two tests that share the error; the chance is that of the better one alone.")
    elif validity == "anytime":
        notes.append(
            "The chance is that of one look at the end, without the wager against the claim: who looks often, or bets, "
            "refutes sooner."
        )
    else:
        notes.append(
            f"The chance is exact for a verdict with {per_cent(confidence)} confidence, whose tests share the error."
        )
    return tuple(notes)
