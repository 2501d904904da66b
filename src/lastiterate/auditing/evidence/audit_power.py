"""``lastiterate.power``: the epsilon that an audit can show, and the number of models that refute a claim."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.attacks.attack import ExpectedScores, LikelihoodRatio, LinearScores
from lastiterate.auditing.evidence.claims import Claim
from lastiterate.auditing.evidence.estimates import Question
from lastiterate.auditing.evidence.forecast import CHANCE, OneRunOutlook, Outlook
from lastiterate.auditing.evidence.score_signal import Kind, guarantee_of
from lastiterate.auditing.evidence.threshold import deciding
from lastiterate.auditing.evidence.verdict_strength import (
    HALF,
    MOST_CANARIES,
    MOST_MODELS,
    chance_to_refute,
    chances_to_refute,
    is_simulated,
)
from lastiterate.common.errors import MissingExtra
from lastiterate.common.system import late
from lastiterate.common.validation import boolean, integer, number, one_of
from lastiterate.formatting import ADAM_CAVEAT, Table, describe, per_cent, spell, spell_down, spell_exact, spell_up
from lastiterate.optimizer import is_adam
from lastiterate.privacy.analyses.calibrate import calibrate
from lastiterate.registry import METHODS
from lastiterate.run import DPSGD, LINEAR, require_basic

if TYPE_CHECKING:
    from altair import LayerChart


@dataclass(frozen=True)
class Detectable:
    """The power of one estimation method, if training is exactly as described.

    Attributes:
        method: name of the estimation method.
        detectable: the epsilon that the bound reaches with probability 80%: the bound's 20% quantile.
        median: the epsilon that the bound reaches with probability 50%.
    """

    method: str
    detectable: float
    median: float


@dataclass(frozen=True)
class Power:
    """The power of an audit. It prints as the table of the command line.

    Attributes:
        run: the run that is trained.
        models: number of models a world, or of canaries of the one run.
        one_run: True for one training with many canaries.
        delta: of (epsilon, delta)-DP.
        confidence: of every bound, and of the verdict.
        validity: "fixed" or "anytime".
        signal: the share of the canary that the attack sees.
        spread: the standard deviation of scores without the canary, in units of the noise's.
        rows: the power of each method.
        claim: the claim to refute, in words.
        leak: the faulty training, in words.
        noise_multiplier: the largest noise multiplier of the faulty training.
        chance: the probability that ``models`` models refute the claim.
        needed: the number of models that refutes the claim with probability 80%. None: more than were considered.
        chances: (models, probability to refute) for several numbers of models.
        notes: sentences that a reader must know.
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

    def table(self) -> Table:
        """Return the table of the methods, with notes on the claim and the number of models that refutes it."""
        held = " at every moment" if self.validity == "anytime" else ""
        attack = "a perfect attack"
        if (self.signal, self.spread) != (1.0, 1.0):
            attack = f"an attack of signal {spell(self.signal)} and spread {spell(self.spread)}"
        title = (
            f"{describe(self.run)}; delta {spell_exact(self.delta)}\n"
            f"{self.counted()}, {attack}, {per_cent(self.confidence)} confidence{held}"
        )
        rows = [
            (
                METHODS[each.method].label,
                spell_down(each.detectable),
                spell_down(each.median),
                METHODS[each.method].assumes,
            )
            for each in self.rows
        ]
        header = ("", "detectable", "median", "what it assumes")
        return Table(title, header, rows, {1, 2}, [_MEANING, *self.sentences(), *self.notes])

    def counted(self) -> str:
        """Return the number of models or canaries in words."""
        return f"{self.models:,} {'canaries of one run' if self.one_run else 'models a world'}"

    def sentences(self) -> list[str]:
        """Return sentences on the claim and on the number of models that refutes it."""
        what = "canaries" if self.one_run else "models a world"
        takes = f"more than {self.chances[-1][0]:,}" if self.needed is None else f"{self.needed:,}"
        return [
            f"To be refuted: {self.claim}. In truth: {self.leak}.",
            f"{self.counted()} refute it with probability {_rounded(self.chance)}; for 80% it takes {takes} {what}.",
        ]

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        """Return the table as HTML for notebooks."""
        return f"<pre>{html.escape(str(self))}</pre>"

    def plot(self) -> LayerChart:
        """Plot the probability to refute over the number of models, as an altair chart."""
        if sentence := late("plot.chart_file:missing_libraries")():
            raise MissingExtra(sentence)
        chart: LayerChart = late("plot.run_charts:power_chart")(self)
        return chart


_MEANING = "Detectable: if training is correct, 80% of such audits find at least this epsilon. Median: 50% of them do."


def _rounded(chance: float) -> str:
    """Return a probability as text that never says 0% or 100%."""
    if chance < 0.0005:
        return "below 0.1%"
    return "above 99.9%" if chance > 0.9995 else per_cent(round(chance, 3))


MOST_AUTO = 4096  # models a world, the largest number that is chosen automatically
_MOST_SPREAD = 1000.0
_MOST_FACTOR = 1000.0  # by which noise may be divided: any audit finds a training with less noise


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
        run: the run that is trained.
        models: number of models in each of the two worlds; with ``one_run``, of canaries.
        delta: of (epsilon, delta)-DP.
        confidence: of the bounds, and of a verdict on a claim.
        signal: the share of the canary that the attack sees, in (0, 1].
        spread: the standard deviation of scores without the canary, in units of the noise's. It is 1 if nothing but
            noise moves the scores.
        methods: names of estimation methods. None: all that apply.
        threshold: "a-priori", "split", "corrected", or a number in standard deviations of the noise.
        validity: "fixed" or "anytime", as in ``estimate``.
        claim_epsilon: the claim to refute, instead of the run's own.
        claim_noise: the claim to refute, as a noise multiplier.
        leaks_epsilon: the guaranteed epsilon of the faulty training.
        leaks_noise: the noise multiplier of the faulty training. None: half of the claimed noise.
        one_run: True for one training with many canaries.
        scores: "known": the linear analysis predicts the scores, as for the attacks of this package. "own": the scores
            come from a user's trainer or attack, and the threshold "a-priori" means "split". "all-iterates": the attack
            sees every step.

    Returns:
        A ``Power``, which prints as a table. ``rows`` has the power of each method, ``needed`` the number of models
        that refutes the claim.
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
    """Return the forecast of an audit with this number of models or canaries.

    ``is_known``: True if the attack's scores can be predicted. Otherwise the scores choose the threshold.
    """
    rule: float | str | None = deciding(question.threshold)
    if one_run:
        rule = {"split": "corrected", "a-priori": None}.get(str(rule), rule)
        return OneRunOutlook(run, models, question.delta, question.confidence, expected, rule)
    if rule == "a-priori":
        rule = None if is_known else "split"
    return Outlook(run, models, question.delta, question.confidence, expected, question.validity, rule)


def models_for(run: DPSGD, question: Question, *, is_known: bool = True) -> tuple[int, str]:
    """Return about the smallest number of models a world that refutes the fault of the question, and a sentence on it.

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
    """Return the expected law of the scores: a likelihood ratio if several iterates are seen, otherwise linear."""
    if kind is Kind.ALL_ITERATES:
        return LikelihoodRatio(signal=linear.signal)
    return linear if run.release_count == 1 else LikelihoodRatio(released=True, signal=linear.signal)


def _factor(run: DPSGD, claim: Claim, question: Question, epsilon: float | None, noise: float | None) -> float:
    """Return the run's noise divided by the noise of the faulty training."""
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
    if is_adam(run.optimizer):
        notes.append(ADAM_CAVEAT)
    if is_simulated(outlook):
        audits = outlook.procedure().audits()
        error = 50.0 / audits**0.5
        notes.append(
            f"Probabilities are from {audits:,} simulated audits: their standard error is at most {error:.1f}%."
        )
    return tuple(notes)
