"""``lastiterate.power``: the epsilon that an audit can show, and the number of models that refute a claim."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lastiterate.attacks.attack import ExpectedScores, LikelihoodRatio, LinearScores
from lastiterate.auditing.evidence.claims import Claim
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
    is_simulated,
)
from lastiterate.auditing.evidence.strength import HALF
from lastiterate.auditing.evidence.threshold import deciding
from lastiterate.optimizer import Adam
from lastiterate.privacy.analyses.calibrate import calibrate
from lastiterate.run import DPSGD, LINEAR, require_basic
from lastiterate.values import boolean, integer, number, one_of
from lastiterate.wording import ADAM_CAVEAT, per_cent, spell, spell_up

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
    scores: str = "known",
) -> Power:
    """Compute the power of an audit before anything is trained, for scores of linear losses (a heuristic).

    The audit is judged as ``audit`` and ``estimate`` judge it, with the same threshold rule and validity.

    Args:
        run: what is trained.
        models: in each of the two worlds; with ``one_run``, how many canaries.
        delta: of (epsilon, delta)-DP.
        confidence: of the bounds, and of a verdict on a claim.
        signal: the share of the canary that the attack sees, in (0, 1].
        spread: the standard deviation of scores without the canary, in that of the noise: 1 where nothing but noise
            moves them.
        methods: of estimation. None: all that apply.
        threshold: "a-priori", "split", "corrected", or a number in standard deviations of the noise.
        validity: "fixed" or "anytime", as in ``estimate``.
        claim_epsilon: the claim to refute, instead of what the run says.
        claim_noise: the claim to refute, as a noise multiplier.
        leaks_epsilon: the training that is to be found out, by the epsilon that its guarantee would be.
        leaks_noise: the same by its noise multiplier. None: half of the noise that is claimed.
        one_run: one training with many canaries.
        scores: "known", if the linear analysis predicts them, as for the attacks of this package; "own", those of a
            user's trainer or attack, whose threshold "a-priori" is "split"; "all-iterates", if every step is seen.

    Returns:
        A ``Power``, which prints as a table; ``rows`` has what each method finds, ``needed`` how many models refute.
    """
    kind = Kind.ONE_MODEL if boolean("one_run", one_run) else Kind.LAST_ITERATE
    if one_of("scores", scores, ("known", "own", "all-iterates")) == "all-iterates":
        if one_run:
            raise ValueError("scores must be 'known' or 'own' with one_run, got 'all-iterates'")
        kind = Kind.ALL_ITERATES
    knows = {Kind.ONE_MODEL: ("noise_filter", "min_separation"), Kind.ALL_ITERATES: ()}.get(kind, ("releases", *LINEAR))
    require_basic(run, "power of one run" if one_run else "power of this audit", knows=knows)
    question = Question(delta, confidence, methods, threshold, claim_epsilon, claim_noise, validity)
    integer("models", models, 1, MOST_CANARIES if one_run else MOST_MODELS)
    linear = LinearScores(
        number("signal", signal, 0.0, 1.0, open_low=True), number("spread", spread, 1.0, _MOST_SPREAD)
    )
    if (run.release_count > 1 or kind is Kind.ALL_ITERATES) and linear.spread > 1.0:
        raise ValueError(f"spread must be 1 where several iterates are seen, got {spread!r}")
    question.check(run, kind)
    expected = _expected(run, linear, kind)
    outlook = outlook_of(run, models, question, expected, one_run=one_run, is_known=scores != "own")
    claim = question.claim(run)
    factor = _factor(run, claim, question, leaks_epsilon, leaks_noise)
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
        leak=f"noise multiplier {spell(noise)}, epsilon {spell_up(allows, 4)}",
        noise_multiplier=noise,
        chance=chance,
        needed=needed,
        chances=tuple(sorted({**chances, models: chance}.items())),
        notes=_notes(run, outlook),
    )


def outlook_of(
    run: DPSGD,
    models: int,
    question: Question,
    expected: ExpectedScores,
    *,
    one_run: bool = False,
    is_known: bool = True,
) -> Outlook | OneRunOutlook:
    """The forecast of an audit with this number of models, or canaries.

    ``is_known``: whether the attack's scores can be predicted; if not, the scores choose the threshold.
    """
    rule: float | str | None = deciding(question.threshold)
    if one_run:
        rule = {"split": "corrected", "a-priori": None}.get(str(rule), rule)
        return OneRunOutlook(run, models, question.delta, question.confidence, expected, rule)
    if rule == "a-priori":
        rule = None if is_known else "split"
    return Outlook(run, models, question.delta, question.confidence, expected, question.validity, rule)


def models_for(run: DPSGD, question: Question, *, is_known: bool = True) -> tuple[int, str]:
    """The least number of models a world that finds the fault of the question, and a sentence that says so.

    ``is_known``: as in ``outlook_of``.
    """
    claim = question.claim(run)
    factor = _factor(run, claim, question, None, None)
    expected = _expected(run, LinearScores(), Kind.LAST_ITERATE)
    outlook = outlook_of(run, MOST_AUTO, question, expected, is_known=is_known)
    needed, chances = chances_to_refute(outlook, claim, factor, most=MOST_AUTO)
    noise = "half of" if question.fault == HALF else f"{spell(question.fault)} of"
    goal = f"a training with {noise} the claimed noise is refuted with probability {per_cent(CHANCE)}"
    supposed = "if the attack is perfect and losses are linear, a heuristic"
    if needed is None:
        return MOST_AUTO, (
            f"models: {MOST_AUTO:,} a world, the largest number that is chosen automatically; more are needed until "
            f"{goal} (with these: {spell(chances[MOST_AUTO], 2)}, {supposed})"
        )
    return needed, f"models: {needed:,} a world, so that {goal} ({supposed})"


def _expected(run: DPSGD, linear: LinearScores, kind: Kind) -> LinearScores | LikelihoodRatio:
    """What is expected of the scores: a likelihood ratio, if several iterates are seen."""
    if kind is Kind.ALL_ITERATES:
        return LikelihoodRatio(signal=linear.signal)
    return linear if run.release_count == 1 else LikelihoodRatio(released=True, signal=linear.signal)


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
        noise = question.fault * float(np.max(claimed.noise_multiplier))
    factor = own / noise
    if not 1.0 / _MOST_FACTOR <= factor <= _MOST_FACTOR:
        raise ValueError(
            f"{name} must mean noise between a thousandth and a thousand times the run's, {spell(own)}, got {given!r}"
        )
    return factor


def _notes(run: DPSGD, outlook: Outlook | OneRunOutlook) -> tuple[str, ...]:
    notes = [
        "All numbers suppose scores as linear losses make them (a heuristic). Otherwise an audit finds less or more. "
        "Bounds that assume nothing about the mechanism hold all the same; those of a family need not.",
    ]
    if isinstance(run.optimizer, Adam):
        notes.append(ADAM_CAVEAT)
    if is_simulated(outlook):
        audits = outlook.procedure().audits()
        error = 50.0 / audits**0.5
        notes.append(
            f"Probabilities are from {audits:,} simulated audits: their standard error is at most {error:.1f}%."
        )
    return tuple(notes)
