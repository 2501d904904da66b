"""``lastiterate.power``: the epsilon that an audit can show, and the number of models needed to refute a claim."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.attacks.attack import ExpectedScores, LikelihoodRatio, LinearScores
from lastiterate.auditing.evidence.claims import Claim
from lastiterate.auditing.evidence.estimates import Question
from lastiterate.auditing.evidence.forecast import CHANCE, Forecast
from lastiterate.auditing.evidence.score_signal import Kind, guarantee_of
from lastiterate.auditing.evidence.threshold import deciding
from lastiterate.auditing.evidence.verdict_strength import (
    HALF,
    MOST_CANARIES,
    MOST_MODELS,
    chance_to_refute,
    chances_to_refute,
)
from lastiterate.common.errors import BadArgument
from lastiterate.common.system import late
from lastiterate.common.validation import boolean, integer, number, one_of
from lastiterate.formatting import Table, describe, notes_on, per_cent, spell, spell_down, spell_exact, spell_up
from lastiterate.labels import METHODS
from lastiterate.privacy.analyses.calibrate import calibrate
from lastiterate.run import DPSGD
from lastiterate.supported_runs import (
    BALLS_IN_BINS,
    BASIC,
    COMBINATIONS,
    CORRELATED_NOISE,
    LINEAR,
    RELEASES,
    SEPARATION,
    Support,
    require_supported,
)

if TYPE_CHECKING:
    from altair import LayerChart


@dataclass(frozen=True)
class Detectable:
    """The epsilons that a method's bound reaches with probability 80% and 50%, if training is correct."""

    method: str
    detectable: float
    median: float


@dataclass(frozen=True)
class Power:
    """The power of an audit. It prints as the table of the command line.

    Attributes as in ``power``, and:
        models: number of models per world, or number of canaries of the one run.
        rows: the power of each method.
        claim: the claim to refute, in words.
        leak: the faulty training, in words.
        noise_multiplier: the largest noise multiplier of the faulty training.
        chance: the probability that ``models`` models refute the claim.
        needed: the number of models that refutes the claim with probability 80%, or None if no number tried does.
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
            attack = f"an attack with signal {spell(self.signal)} and spread {spell(self.spread)}"
        title = (
            f"{describe(self.run)}; delta {spell_exact(self.delta)}\n"
            f"{self.counted()}, {attack}, {per_cent(self.confidence)} confidence{held}"
        )
        rows = []
        for each in self.rows:
            method, levels = METHODS[each.method], (spell_down(each.detectable), spell_down(each.median))
            rows.append((method.label, *levels, method.assumes))
        header = ("", "detectable", "median", "what it assumes")
        meaning = (
            "Detectable: if training is correct, 80% of such audits find at least this epsilon. Median: 50% "
            "of them find at least this epsilon."
        )
        return Table(title, header, rows, {1, 2}, [meaning, *self.sentences(), *self.notes])

    def counted(self) -> str:
        """Return the number of models or canaries in words."""
        return f"{self.models:,} {'canaries of one run' if self.one_run else 'models per world'}"

    def sentences(self) -> list[str]:
        """Return sentences on the claim and on the number of models that refutes it."""
        what = "canaries" if self.one_run else "models per world"
        takes = f"more than {self.chances[-1][0]:,}" if self.needed is None else f"{self.needed:,}"
        return [
            f"Claim to refute: {self.claim}. Faulty training: {self.leak}.",
            (
                f"{self.counted()} refute the claim with probability {_rounded(self.chance)}; a probability of "
                f"80% needs {takes} {what}."
            ),
        ]

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def plot(self) -> LayerChart:
        """Plot the probability to refute over the number of models, as an altair chart."""
        chart: LayerChart = late("plot.run_charts:power_chart")(self)
        return chart


def _rounded(chance: float) -> str:
    if chance < 0.0005:
        return "below 0.1%"
    return "above 99.9%" if chance > 0.9995 else per_cent(round(chance, 3))


MOST_AUTO = 4096  # the largest number of models per world that is chosen automatically
_MOST_SPREAD = 1000.0
_MOST_FACTOR = 1000.0  # largest factor by which noise may be divided or multiplied


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

    Args:
        models: number of models in each of the two worlds, or number of canaries if ``one_run`` is True.
        confidence: the confidence of the bounds and of a verdict on a claim.
        signal: the share of the canary that the attack sees, in (0, 1].
        spread: standard deviation of scores without the canary, in units of the noise. It is 1 if only noise counts.
        methods: names of estimation methods. The default is all methods that apply.
        threshold: "a-priori", "split", "corrected", or a number in standard deviations of the noise.
        validity: "fixed" or "anytime", as in ``estimate``.
        claim_epsilon: the claim to refute, as an epsilon. The default claim is the run as described.
        claim_noise: the claim to refute, as a noise multiplier.
        leaks_epsilon: the guaranteed epsilon of the faulty training.
        leaks_noise: the noise multiplier of the faulty training. The default is half of the claimed noise.
        one_run: audit one training run with many canaries.
        scores: "known": the linear analysis predicts the scores, as for the attacks of this package. "own": the scores
            come from a user's trainer or attack, and the threshold "a-priori" means "split". "all-iterates": the attack
            sees every step.
    """
    kind = Kind.ONE_MODEL if boolean("one_run", one_run) else Kind.LAST_ITERATE
    if one_of("scores", scores, ("known", "own", "all-iterates")) == "all-iterates":
        if one_run:
            raise BadArgument("scores", "must be 'known' or 'own' if one_run is True, got 'all-iterates'")
        kind = Kind.ALL_ITERATES
    one_model = BASIC | {BALLS_IN_BINS, CORRELATED_NOISE, SEPARATION} | COMBINATIONS
    features = {Kind.ONE_MODEL: one_model, Kind.ALL_ITERATES: BASIC}.get(kind, LINEAR | {RELEASES} | COMBINATIONS)
    require_supported(run, Support("power of one run" if one_run else "power of this audit", features))
    question = Question(delta, confidence, methods, threshold, claim_epsilon, claim_noise, validity)
    integer("models", models, 1, MOST_CANARIES if one_run else MOST_MODELS)
    share = number("signal", signal, 0.0, 1.0, open_low=True)
    linear = LinearScores(share, number("spread", spread, 1.0, _MOST_SPREAD))
    if (run.release_count > 1 or kind is Kind.ALL_ITERATES) and linear.spread > 1.0:
        raise BadArgument("spread", f"must be 1 if the attack sees several iterates, got {spread!r}")
    claim = question.check(run, kind)
    expected = _expected(run, linear, kind)
    forecast = forecast_of(run, models, question, expected, one_run=one_run, is_known=scores != "own")
    factor = _factor(run, claim, question, leaks_epsilon, leaks_noise)
    methods_used = question.methods_for(run, kind)
    rows = tuple(Detectable(each, forecast.reached(each), forecast.reached(each, 0.5)) for each in methods_used)
    chance = chance_to_refute(forecast, claim, factor)
    needed, chances = chances_to_refute(forecast, claim, factor)
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
        notes=_notes(run, forecast),
    )


def forecast_of(
    run: DPSGD, models: int, question: Question, expected: ExpectedScores, *, is_known: bool, one_run: bool = False
) -> Forecast:
    """Return the forecast of an audit. If ``is_known`` is False, the scores choose an "a-priori" threshold."""
    rule = deciding(question.threshold)
    if rule == "a-priori" and not is_known and not one_run:
        rule = "split"
    options = question.delta, question.confidence, expected, question.validity, rule
    return Forecast(run, models, *options, one_run=one_run)


def models_for(run: DPSGD, question: Question, *, is_known: bool = True) -> tuple[int, str]:
    """Return about the smallest number of models per world that refutes the question's fault, and a sentence on it."""
    claim = question.claim(run)
    factor = _factor(run, claim, question, None, None)
    expected = _expected(run, LinearScores(), Kind.LAST_ITERATE)
    forecast = forecast_of(run, MOST_AUTO, question, expected, is_known=is_known)
    needed, chances = chances_to_refute(forecast, claim, factor, most=MOST_AUTO)
    noise = "half of" if question.fault == HALF else f"{spell(question.fault)} of"
    goal = f"a training with {noise} the claimed noise is refuted with probability {per_cent(CHANCE)}"
    supposed = "if the attack is perfect and losses are linear, a heuristic"
    if needed is not None:
        return needed, f"models: {needed:,} per world, so that {goal} ({supposed})"
    return MOST_AUTO, (
        f"models: {MOST_AUTO:,} per world, the largest number that is chosen automatically; more models are needed so "
        f"that {goal} (this number: probability {spell(chances[MOST_AUTO], 2)}, {supposed})"
    )


def _expected(run: DPSGD, linear: LinearScores, kind: Kind) -> LinearScores | LikelihoodRatio:
    if kind is Kind.ALL_ITERATES:
        return LikelihoodRatio(signal=linear.signal)
    return linear if run.release_count == 1 else LikelihoodRatio(released=True, signal=linear.signal)


def _factor(run: DPSGD, claim: Claim, question: Question, epsilon: float | None, noise: float | None) -> float:
    """Return the run's noise divided by the noise of the faulty training."""
    own = float(np.max(run.noise_multiplier))
    if epsilon is not None and noise is not None:
        raise ValueError("leaks_epsilon and leaks_noise were both given: give one")
    if epsilon is not None:
        name, given = "leaks_epsilon", number("leaks_epsilon", epsilon, 0.0, open_low=True)
        try:
            leak = calibrate(run, epsilon=given, delta=question.delta, analysis=guarantee_of(run))
        except ValueError as error:
            raise BadArgument(
                "leaks_epsilon", f"must be an epsilon that the run can have, got {given!r}: {error}"
            ) from None
        noise = float(np.max(leak.noise_multiplier))
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
            f"{name} must correspond to noise between 0.001 and 1,000 times the run's noise of {spell(own)}, "
            f"got {given!r}"
        )
    return factor


def _notes(run: DPSGD, forecast: Forecast) -> tuple[str, ...]:
    notes = [
        "All numbers assume linear losses (a heuristic). With other losses an audit finds less or more. Bounds for "
        "any mechanism still hold then, but bounds of a family may be wrong."
    ]
    notes += notes_on(run)
    if forecast.is_simulated:
        audits = forecast.audits()
        error = f"at most {50.0 / audits**0.5:.1f}%"  # of a probability of 50%
        notes.append(f"Probabilities are from {audits:,} simulated audits: their standard error is {error}.")
    return tuple(notes)
