"""The strength of a verdict: the probability that an audit refutes a faulty training, and the models it needs.

The strength is computed for the audit as it was run, at a 95% lower confidence bound on the signal of its scores. The
default fault is a training with half the declared noise.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from lastiterate.attacks.attack import ExpectedScores, LikelihoodRatio, LinearScores, Unknown
from lastiterate.auditing.evidence.claims import Claim
from lastiterate.auditing.evidence.error_rates import both
from lastiterate.auditing.evidence.estimates import likelihood_ratios
from lastiterate.auditing.evidence.forecast import (
    CHANCE,
    ErrorLaws,
    Forecast,
    allowed_fnr,
    chance_within,
    guaranteed_fnr,
    leaking,
)
from lastiterate.auditing.evidence.score_signal import Kind, share_of, signal_bound, signal_of, spread_of, standardised
from lastiterate.common.search import bisect
from lastiterate.common.types import FloatArray, IntArray
from lastiterate.formatting import per_cent, spell, spell_down, spell_up
from lastiterate.privacy.analyses.calibrate import calibrate
from lastiterate.privacy.analyses.last_iterate import last_iterate
from lastiterate.run import DPSGD

# Power: the probability of refuting a claim about a training with less noise.

FEWEST = 8  # models per world, or canaries: the first number that is tried
MOST_MODELS = 2**16  # models per world: the largest number that is considered
MOST_CANARIES = 10_000
MOST_SIMULATED, MOST_ANYTIME = 2**12, 2**10  # the largest number for simulated audits and "anytime" validity
_NEARLY_SURE = 0.99  # a chart of probabilities may end at this probability


def chance_to_refute(forecast: Forecast, claim: Claim, factor: float) -> float:
    """Return the probability that a verdict refutes the claim if training uses the run's noise divided by ``factor``.

    The two tests of a verdict look at the same scores at two thresholds. If the thresholds are fixed in advance, the
    probability is computed exactly. Otherwise audits are simulated.
    """
    scores = leaking(forecast.scores or forecast.expected, factor)
    if forecast.is_simulated:
        return forecast.simulated_chance(claim, scores)
    tests = claim.tests(forecast.kind, forecast.confidence)
    placed = sorted((forecast.threshold_for(test.method, test.confidence), index) for index, test in enumerate(tests))
    seen: list[Seen] = []
    for threshold, index in placed:
        test, errors = tests[index], forecast.errors_at(threshold, scores)
        fpr, fnr = forecast.upper_bounds(errors, test.confidence)
        run, epsilon = test.run, test.guarantee
        limit = guaranteed_fnr(run, fpr) if run is not None else allowed_fnr(epsilon, fpr, forecast.delta)
        seen.append((errors, np.searchsorted(fnr, limit, side="left")))
    return chance_within(*seen[0]) if len(seen) == 1 else 1.0 - _neither(*seen)


def most_models(forecast: Forecast) -> int:
    """Return the largest number of models per world, or canaries, that is considered."""
    if forecast.one_run:
        return MOST_CANARIES
    if forecast.is_anytime:
        return MOST_ANYTIME
    return MOST_SIMULATED if forecast.is_simulated else MOST_MODELS


Seen = tuple[ErrorLaws, IntArray]  # for each false positive count, how many false negative counts refute


def _neither(low: Seen, high: Seen) -> float:
    (outs_low, ins_low), refuted_low = low
    (outs_high, ins_high), refuted_high = high
    # tails[i, j]: the probability of at least the i-th number of false negatives at the lower threshold and at least
    # the j-th number at the higher threshold.
    tails = np.zeros((ins_low.counts.size + 1, ins_high.counts.size + 1))
    tails[:-1, :-1] = both(ins_low, ins_high)[::-1, ::-1].cumsum(0).cumsum(1)[::-1, ::-1]
    pairs = both(outs_high, outs_low)
    return float(np.clip(np.sum(pairs * tails[refuted_low[None, :], refuted_high[:, None]]), 0.0, 1.0))


def chances_to_refute(
    forecast: Forecast, claim: Claim, factor: float, most: int | None = None
) -> tuple[int | None, dict[int, float]]:
    """Return about the smallest number of models per world (or canaries) that refutes the claim with probability 80%.

    The number is None if it exceeds ``most``. Also return the probability for each number that was tried. Probabilities
    do not always rise with the number of models, because errors are whole numbers.
    """
    most = most_models(forecast) if most is None else most
    tried: dict[int, float] = {}

    def enough(models: int) -> bool:
        tried[models] = chance_to_refute(replace(forecast, models=models), claim, factor)
        return tried[models] >= CHANCE

    low, high = 0, min(FEWEST, most)
    while not enough(high):
        if high == most:
            return None, tried
        low, high = high, min(2 * high, most)
    part, growth = (10, 1) if forecast.is_simulated else (64, 4)  # to within 10% or 2%
    _, high = bisect(
        enough, low, high, lambda low, high: high - low <= max(1, low // part), lambda low, high: (low + high) // 2
    )
    larger = high
    while tried[larger] < _NEARLY_SURE and larger < most:  # try larger numbers for the chart
        larger = min(larger + max(1, larger // growth), most)
        enough(larger)
    return high, dict(sorted(tried.items()))


_chance = lru_cache(maxsize=256)(chance_to_refute)


# Strength: the faults that the audit would have caught, and the number of models that it lacks.

HALF = 0.5  # the default fault that an audit must be able to catch: training with half of the declared noise
_LEAST = 0.02  # the smallest share of the declared noise that is tried
_NEAR, _NEAR_ANYTIME, _ABOUT = 1.06, 1.15, 1.25  # ratios of noise, and of numbers of models, at which a search ends
_FEW_VALUES = 8  # if there are at most this many different scores, their response to noise is unknown
_LEAST_DELTA = 1e-12  # the smallest delta for a Gaussian mechanism in place of an unknown run


@dataclass(frozen=True)
class Strength:
    """The strength of a verdict.

    Attributes:
        signal: a 95% lower confidence bound on the share of the canary that the scores show, or None without a signal.
        fault: the noise of the training that must be caught, as a share of the declared noise. If the run is
            unknown, the faulty epsilon is the claimed epsilon divided by ``fault``.
        chance: the probability that this audit refutes the faulty training.
        caught: the largest share of the declared noise that is refuted with probability 80%, or None if none is.
        needed: the number of models per world (or canaries) that refutes the fault with probability 80%. It is None if
            this audit has enough, or if no number up to ``most`` is enough.
        words: the strength in one sentence.
        is_epsilon: True if the run is unknown, so that the fault is a larger epsilon.
        is_unknown: True if the scores take too few values to compute a strength.
    """

    signal: float | None
    fault: float
    chance: float
    caught: float | None
    needed: int | None
    most: int
    words: str
    is_epsilon: bool = False
    is_unknown: bool = False

    @property
    def suffices(self) -> bool:
        """True if the fault is caught with probability 80%."""
        return self.chance >= CHANCE

    @property
    def why_not(self) -> str:
        """The reason why ``needed`` is None."""
        if self.suffices:
            return "this audit has enough"
        return "no signal was observed" if self.signal is None else f"even {self.most:,} are not enough"


def strength_of(
    claim: Claim,
    kind: Kind,
    run: DPSGD | None,
    expected: ExpectedScores,
    scores: tuple[FloatArray, FloatArray],
    *,
    delta: float,
    confidence: float,
    threshold: float | str,
    validity: str = "fixed",
    horizon: int | None = None,
    direction: int = 1,
    fault: float = HALF,
) -> Strength:
    """Compute the strength of a verdict. If ``direction`` is -1, smaller scores mean "in". See also ``estimate``."""
    inside, outside = (direction * each for each in scores)
    is_own = isinstance(expected, Unknown)
    base, factor = _fault_of(claim, run, delta, fault)
    values = len(np.unique(np.concatenate((inside, outside))))
    if is_own and 1 < values <= _FEW_VALUES < min(len(inside), len(outside)):
        words = f"The strength of this audit is unknown: its scores have only {values} different values."
        return Strength(None, fault, 0.0, None, None, 0, words, run is None, True)
    if isinstance(expected, Unknown) and not isinstance(threshold, str):  # the unit of the scores is their spread
        threshold = standardised(direction * threshold, outside)
    one_run = kind is Kind.ONE_MODEL
    models = len(inside) + len(outside) if one_run else min(len(inside), len(outside))
    law = LikelihoodRatio(released=True) if is_own and base.release_count > 1 else expected
    rule = "split" if threshold == "a-priori" and is_own and not one_run else threshold
    least = _LEAST_DELTA if one_run else 0.0

    def audit(count: int) -> Forecast | None:
        seen = _seen(base, law, inside, outside, None if count == models else count)
        options = delta or least, confidence, expected, validity, rule, horizon, seen, one_run
        return None if seen is None else Forecast(base, count, *options)

    now = audit(models)
    if now is None:
        words = "This audit would have caught no fault: its scores show no signal."
        return Strength(None, fault, 0.0, None, None, 0, words, run is None)
    chance = _chance(now, claim, factor)
    caught = _caught(now, claim, factor, fault, chance)
    most = most_models(now)
    needed = None if chance >= CHANCE else _needed(audit, models, most, claim, factor)
    share = now.scores.signal if isinstance(now.scores, (LinearScores, LikelihoodRatio)) else 1.0
    words = _words(run is not None, is_own, base, caught, factor * fault, delta)
    return Strength(share, fault, chance, caught, needed, most, words, run is None)


def _fault_of(claim: Claim, run: DPSGD | None, delta: float, fault: float) -> tuple[DPSGD, float]:
    # The run that predicts the scores (a Gaussian mechanism if unknown), and its noise divided by the faulty noise.
    if run is not None:
        declared = run if claim.run is None else claim.run
        noises = (float(np.max(each.noise_multiplier)) for each in (run, declared))
        return run, next(noises) / (fault * next(noises))
    base = DPSGD(1, 1.0, 1.0, sampling="full")
    found = []
    for epsilon in (claim.guarantee, claim.guarantee / fault):
        try:
            found.append(calibrate(base, epsilon=epsilon, delta=max(delta, _LEAST_DELTA), analysis=last_iterate))
        except ValueError:  # no noise in the allowed range has this epsilon
            return base, 1.0 / fault
    return found[0], float(found[0].noise_multiplier) / float(found[1].noise_multiplier)


def _seen(
    run: DPSGD, expected: ExpectedScores, inside: FloatArray, outside: FloatArray, models: int | None
) -> LinearScores | LikelihoodRatio | None:
    bound = signal_bound(inside, outside, models)
    if bound is None or bound <= 0.0:
        return None
    if isinstance(expected, LikelihoodRatio):
        drawn = likelihood_ratios(run, expected)
        share = min(bound / max(signal_of(drawn.inside, drawn.outside), 1e-9), 1.0)
        return replace(expected, signal=max(math.floor(1000 * share * expected.signal) / 1000, 0.001))
    spread = 1.0
    if isinstance(expected, LinearScores) and np.all(np.isfinite(outside)):
        spread = max(math.ceil(100 * float(np.std(outside, ddof=1))) / 100, 1.0)
    elif (found := signal_of(inside, outside)) > 0.0:  # a lower signal than ideal: more than noise moves the scores
        spread = max(math.ceil(100 * spread_of(run, found)) / 100, 1.0)
    share = share_of(run, bound, spread) if math.isfinite(bound) else 1.0
    return LinearScores(max(math.floor(1000 * share) / 1000, 0.001), spread)


def _needed(audit: Callable[[int], Forecast | None], models: int, most: int, claim: Claim, factor: float) -> int | None:
    """Return roughly the number of models that catches the fault with probability 80%, or None if above ``most``."""

    def enough(count: int) -> bool:
        later = audit(count)
        return later is not None and _chance(later, claim, factor) >= CHANCE

    low, high = models, models
    while not enough(high):
        if high >= most:
            return None
        low, high = high, min(4 * high, most)
    return bisect(
        enough, low, high, lambda low, high: high / low <= _ABOUT, lambda low, high: round(math.sqrt(low * high))
    )[1]


def _caught(audit: Forecast, claim: Claim, factor: float, fault: float, chance: float) -> float | None:
    def too_much(share: float) -> bool:
        return not _chance(audit, claim, factor * fault / share) >= CHANCE

    low, high = (fault, 1.0) if chance >= CHANCE else (min(_LEAST, 0.5 * fault), fault)
    if chance < CHANCE and too_much(low):
        return None
    near = _NEAR_ANYTIME if audit.is_anytime else _NEAR
    return bisect(too_much, low, high, lambda low, high: high / low <= near, lambda low, high: math.sqrt(low * high))[0]


def _words(is_run: bool, is_own: bool, base: DPSGD, caught: float | None, units: float, delta: float) -> str:
    sure = f"with probability {per_cent(CHANCE)}"
    verb = "would not have caught even" if caught is None else "would have caught"
    if is_run:
        condition = ", if the noise of training moves the scores as linear losses predict" if is_own else ""
        noise = f"{spell(_LEAST)} of the declared noise"
        if caught is not None:
            noise = f"noise below {spell_down(caught, 2)} of what is declared"
        return f"This audit {verb} {noise}, {sure}{condition}."
    delta = max(delta, _LEAST_DELTA)
    leak = base.replace(noise_multiplier=base.noise_multiplier * (_LEAST if caught is None else caught) / units)
    shown = f"{'of' if caught is None else 'above'} {spell_up(last_iterate(leak).epsilon(delta), 2)}"
    return f"This audit {verb} an epsilon {shown}, {sure}, for a Gaussian mechanism at delta {spell(delta)}."
