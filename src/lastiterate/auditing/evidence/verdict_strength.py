"""The strength of a verdict: the probability that an audit refutes a faulty training, and the models this takes.

The strength is computed for the audit as it was run: its number of models, its threshold rule, its tests, and a 95%
lower confidence bound on the signal of its scores. The default fault is a training with half the declared noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from lastiterate.attacks.attack import ExpectedScores, LikelihoodRatio, LinearScores, Unknown
from lastiterate.auditing.evidence.claims import Claim, Test
from lastiterate.auditing.evidence.error_rates import ErrorCounts, both
from lastiterate.auditing.evidence.estimates import likelihood_ratios
from lastiterate.auditing.evidence.forecast import CHANCE, IDEAL, OneRunOutlook, Outlook, allowed_fnr
from lastiterate.auditing.evidence.score_signal import Kind, share_of, signal_bound, signal_of, spread_of, standardised
from lastiterate.auditing.evidence.simulated_audits import quantile_curve
from lastiterate.common.types import FloatArray, IntArray
from lastiterate.formatting import per_cent, spell, spell_down, spell_up
from lastiterate.privacy.analyses.calibrate import calibrate
from lastiterate.privacy.analyses.last_iterate import last_iterate
from lastiterate.run import DPSGD

# Power: the probability of refuting a claim about a training with less noise.

FEWEST = 8  # models a world, or canaries, that are tried first
MOST_MODELS = 2**16  # a world, the largest number considered
MOST_CANARIES = 10_000
MOST_SIMULATED, MOST_ANYTIME = 2**12, 2**10  # models a world, if audits are simulated
_NEARLY_SURE = 0.99  # the probability at which a picture may end
_NUMERICS = 1e-9  # of a rate: tolerance for numerical error of the guarantee, as in a verdict


def leaking(expected: ExpectedScores, factor: float) -> LinearScores | LikelihoodRatio:
    """Return the law of the scores if the noise is divided by this factor, in units of the declared noise."""
    if isinstance(expected, LikelihoodRatio):
        return replace(expected, noise=1.0 / factor)
    linear = expected if isinstance(expected, LinearScores) else IDEAL
    return replace(linear, spread=math.sqrt(max(linear.spread**2 - 1.0, 0.0) + factor**-2.0))


def chance_to_refute(outlook: Outlook | OneRunOutlook, claim: Claim, factor: float) -> float:
    """Return the probability that a verdict refutes the claim if the noise is the run's divided by this factor.

    The two tests of a verdict look at the same scores at two thresholds. If the thresholds are fixed in advance, the
    probability is a sum. Otherwise audits are simulated. Simulations of "anytime" bounds include the wager against the
    claim.
    """
    scores = leaking(outlook.scores or outlook.expected, factor)
    if is_simulated(outlook):
        return outlook.procedure().chance(claim, scores)
    assert isinstance(outlook, Outlook)
    tests = claim.tests(outlook.kind, outlook.confidence)
    placed = sorted((outlook.threshold_for(test.method, test.confidence), index) for index, test in enumerate(tests))
    seen = []
    for threshold, index in placed:
        errors = outlook.errors_at(threshold, scores)
        seen.append((errors, _refuting(tests[index], outlook, errors)))
    if len(seen) == 1:
        (outs, ins), fitting = seen[0]
        return float(outs.masses @ ins.at_most[fitting])
    return 1.0 - _neither(seen[0], seen[1])


def is_simulated(outlook: Outlook | OneRunOutlook) -> bool:
    """Return whether the probability to refute comes from simulated audits. Otherwise it is exact."""
    return isinstance(outlook, OneRunOutlook) or isinstance(outlook.threshold, str) or outlook.validity == "anytime"


def most_models(outlook: Outlook | OneRunOutlook) -> int:
    """Return the largest number of models a world, or canaries, that is considered."""
    if isinstance(outlook, OneRunOutlook):
        return MOST_CANARIES
    if outlook.validity == "anytime":
        return MOST_ANYTIME
    return MOST_SIMULATED if is_simulated(outlook) else MOST_MODELS


def _refuting(test: Test, outlook: Outlook, errors: tuple[ErrorCounts, ErrorCounts]) -> IntArray:
    """Return for each number of false positives how many of the numbers of false negatives refute."""
    fpr, fnr = outlook.upper_bounds(errors, test.confidence)
    if test.run is None:
        limit = allowed_fnr(test.guarantee, fpr, outlook.delta)
    else:
        limit = quantile_curve(test.run)(fpr) - _NUMERICS
    return np.searchsorted(fnr, limit, side="left")


Seen = tuple[tuple[ErrorCounts, ErrorCounts], IntArray]


def _neither(low: Seen, high: Seen) -> float:
    """Return the probability that neither the test at the lower threshold nor the test at the higher one refutes.

    Both tests use the same models. The lower threshold has more false positives and fewer false negatives.
    """
    (outs_low, ins_low), refuted_low = low
    (outs_high, ins_high), refuted_high = high
    # tails[i, j]: the probability of at least the i-th number of false negatives at the lower threshold and at least
    # the j-th number at the higher threshold.
    tails = np.zeros((ins_low.counts.size + 1, ins_high.counts.size + 1))
    tails[:-1, :-1] = both(ins_low, ins_high)[::-1, ::-1].cumsum(0).cumsum(1)[::-1, ::-1]
    pairs = both(outs_high, outs_low)
    return float(np.clip(np.sum(pairs * tails[refuted_low[None, :], refuted_high[:, None]]), 0.0, 1.0))


def chances_to_refute(
    outlook: Outlook | OneRunOutlook, claim: Claim, factor: float, chance: float = CHANCE, most: int | None = None
) -> tuple[int | None, dict[int, float]]:
    """Find the number of models a world (or canaries) that refutes the claim with probability ``chance``.

    Also return the probabilities for all numbers that were tried. The number is None if more than ``most`` are needed.
    The probability does not always rise with the number of models, because thresholds are predicted for each number
    and errors are whole numbers. The number found reaches ``chance``. A slightly larger number may miss ``chance``, and
    a slightly smaller number may reach it.
    """
    most = most_models(outlook) if most is None else most
    tried: dict[int, float] = {}

    def enough(models: int) -> bool:
        tried[models] = chance_to_refute(replace(outlook, models=models), claim, factor)
        return tried[models] >= chance

    low, high = 0, min(FEWEST, most)
    while not enough(high):
        if high == most:
            return None, tried
        low, high = high, min(2 * high, most)
    simulated = is_simulated(outlook)
    while high - low > max(1, low // (10 if simulated else 64)):  # to within 10% or 2%
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    larger = high
    while tried[larger] < _NEARLY_SURE and larger < most:  # larger numbers, for a picture
        larger = min(larger + max(1, larger // (1 if simulated else 4)), most)
        enough(larger)
    return high, dict(sorted(tried.items()))


# Strength: the faults that the audit would have caught, and the number of models that it lacks.

HALF = 0.5  # of the declared noise: the fault that a verdict must be able to catch
_LEAST = 0.02  # of the declared noise: the smallest share that is tried
_NEAR, _NEAR_ANYTIME, _ABOUT = 1.06, 1.15, 1.25  # ratios of noise, and of numbers of models, at which a search ends
_FEW_VALUES = 8  # different scores: with so few, their response to noise is unknown
_LEAST_DELTA = 1e-12  # of the Gaussian mechanism that stands for an unknown run


@dataclass(frozen=True)
class Strength:
    """The strength of a verdict.

    Attributes:
        signal: a 95% lower confidence bound on the share of the canary that the scores show. None: no signal is seen.
        fault: the noise of the training that must be caught, as a share of the declared noise. Without a run, the
            faulty epsilon is the claimed epsilon divided by ``fault``.
        chance: the probability that this audit refutes the faulty training.
        caught: the largest share of the declared noise that is refuted with probability 80%. None: no share is.
        needed: the number of models a world (or canaries) that refutes the fault with probability 80%. None: this
            audit has enough, or no number up to ``most`` suffices.
        most: the largest number of models that was considered.
        words: the strength in one sentence.
        is_epsilon: True if the fault is a larger epsilon, since the run is unknown.
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
    def why_not(self) -> str:
        """The reason why ``needed`` is None."""
        if self.suffices:
            return "this audit has enough"
        return "no signal is seen" if self.signal is None else f"even {self.most:,} would not do"

    @property
    def suffices(self) -> bool:
        """True if the fault is caught with probability 80%."""
        return self.chance >= CHANCE


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
    """Compute the strength of a verdict on these scores; arguments as in ``estimate``.

    ``direction`` -1: smaller scores speak for the canary.
    """
    inside, outside = (direction * each for each in scores)
    is_own = isinstance(expected, Unknown)
    base, factor = _fault_of(claim, run, delta, fault)
    if is_own and (values := _few_values(inside, outside)):
        words = f"The strength of this audit is not known: its scores have {values} values only."
        return Strength(None, fault, 0.0, None, None, 0, words, run is None, True)
    if isinstance(expected, Unknown) and not isinstance(threshold, str):  # the unit of the scores is their spread
        threshold = standardised(direction * threshold, outside)
    models = len(inside) + len(outside) if kind is Kind.ONE_MODEL else min(len(inside), len(outside))

    def audit(count: int) -> Outlook | OneRunOutlook | None:
        """Forecast this audit with ``count`` models, at the lower confidence bound on the signal for this number."""
        law = LikelihoodRatio(released=True) if is_own and base.release_count > 1 else expected
        seen = _seen(base, law, inside, outside, None if count == models else count)
        if seen is None:
            return None
        if kind is Kind.ONE_MODEL:
            rule = {"split": "corrected", "a-priori": None}.get(str(threshold), threshold)
            return OneRunOutlook(base, count, delta or _LEAST_DELTA, confidence, expected, rule, seen)
        rule = "split" if threshold == "a-priori" and isinstance(expected, Unknown) else threshold
        rule = None if rule == "a-priori" else rule
        ends = horizon if validity == "anytime" else None
        return Outlook(base, count, delta, confidence, expected, validity, rule, ends, seen)

    now = audit(models)
    if now is None:
        words = "This audit would have caught nothing: it sees no signal."
        return Strength(None, fault, 0.0, None, None, 0, words, run is None)
    assert now.scores is not None
    chance = _chance(now, claim, factor)
    caught = _caught(now, claim, factor, fault, chance)
    most = most_models(now)
    needed = None if chance >= CHANCE else _needed(audit, models, most, claim, factor)
    share = now.scores.signal if isinstance(now.scores, (LinearScores, LikelihoodRatio)) else 1.0
    return Strength(
        share,
        fault,
        chance,
        caught,
        needed,
        most,
        _words(run is not None, is_own, base, caught, factor * fault, delta),
        run is None,
    )


def _fault_of(claim: Claim, run: DPSGD | None, delta: float, fault: float) -> tuple[DPSGD, float]:
    """Return the run whose law the scores have, and the factor by which the faulty training divides its noise.

    A Gaussian mechanism with the claimed epsilon stands for an unknown run.
    """
    if run is not None:
        declared = run if claim.run is None else claim.run
        noises = (float(np.max(each.noise_multiplier)) for each in (run, declared))
        return run, next(noises) / (fault * next(noises))
    base = DPSGD(1, 1.0, 1.0, sampling="full")
    found = []
    for epsilon in (claim.guarantee, claim.guarantee / fault):
        try:
            found.append(calibrate(base, epsilon=epsilon, delta=max(delta, _LEAST_DELTA), analysis=last_iterate))
        except ValueError:  # an epsilon that no noise of the allowed range has
            return base, 1.0 / fault
    return found[0], float(found[0].noise_multiplier) / float(found[1].noise_multiplier)


def _seen(
    run: DPSGD, expected: ExpectedScores, inside: FloatArray, outside: FloatArray, models: int | None
) -> LinearScores | LikelihoodRatio | None:
    """Return the law of the scores at the lower confidence bound on the signal; None if this bound is not positive."""
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


def _needed(
    audit: Callable[[int], Outlook | OneRunOutlook | None], models: int, most: int, claim: Claim, factor: float
) -> int | None:
    """Return roughly the number of models that catches the fault with probability 80%; None if above ``most``."""

    def enough(count: int) -> bool:
        later = audit(count)
        return later is not None and _chance(later, claim, factor) >= CHANCE

    low, high = models, models
    while not enough(high):
        if high >= most:
            return None
        low, high = high, min(4 * high, most)
    while high / low > _ABOUT:
        middle = round(math.sqrt(low * high))
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@lru_cache(maxsize=256)
def _chance(audit: Outlook | OneRunOutlook, claim: Claim, factor: float) -> float:
    return chance_to_refute(audit, claim, factor)


def _caught(audit: Outlook | OneRunOutlook, claim: Claim, factor: float, fault: float, chance: float) -> float | None:
    """Return the largest share of the declared noise that is refuted with probability 80%."""

    def enough(share: float) -> bool:
        return _chance(audit, claim, factor * fault / share) >= CHANCE

    low, high = (fault, 1.0) if chance >= CHANCE else (min(_LEAST, 0.5 * fault), fault)
    if chance < CHANCE and not enough(low):
        return None
    near = _NEAR_ANYTIME if isinstance(audit, Outlook) and audit.validity == "anytime" else _NEAR
    while high / low > near:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low


def _words(is_run: bool, is_own: bool, base: DPSGD, caught: float | None, units: float, delta: float) -> str:
    """Describe the strength in one sentence. ``units`` is the noise of ``base`` over the declared noise."""
    sure = f"({per_cent(CHANCE)}"
    condition = ", if the training's noise moves the scores as linear losses predict" if is_own and is_run else ""
    if is_run:
        if caught is None:
            return f"This audit would not have caught even {spell(_LEAST)} of the declared noise {sure}){condition}."
        return f"This audit would have caught noise below {spell_down(caught, 2)} of the declared {sure}){condition}."
    delta = max(delta, _LEAST_DELTA)
    share = _LEAST if caught is None else caught
    leak = base.replace(noise_multiplier=base.noise_multiplier * share / units)
    shown = spell_up(last_iterate(leak).epsilon(delta), 2)
    mechanism = f"{sure}, for a Gaussian mechanism at delta {spell(delta)})"
    if caught is None:
        return f"This audit would not have caught even an epsilon of {shown} {mechanism}."
    return f"This audit would have caught an epsilon above {shown} {mechanism}."


def _few_values(inside: FloatArray, outside: FloatArray) -> int:
    """Return the number of different scores if their response to noise is unknown because they are few; otherwise 0."""
    values = len(np.unique(np.concatenate((inside, outside))))
    return values if 1 < values <= _FEW_VALUES < min(len(inside), len(outside)) else 0
