"""How probable it is that an audit refutes a claim about a training that leaks more, and how many models that takes."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.special import ndtr, ndtri

from lastiterate.arrays import FloatArray, IntArray
from lastiterate.attacks.attack import ExpectedScores, LikelihoodRatio, LinearScores
from lastiterate.auditing.evidence.error_counts import ErrorCounts, both
from lastiterate.auditing.evidence.guarantee import guarantee_of
from lastiterate.auditing.evidence.kinds import Kind
from lastiterate.auditing.evidence.one_run_power import refuting_guesses
from lastiterate.auditing.evidence.outlook import CHANCE, IDEAL, OneRunOutlook, Outlook, allowed_fnr
from lastiterate.auditing.evidence.power import Test
from lastiterate.auditing.evidence.verdict import Claim, sharing_the_error
from lastiterate.run import DPSGD

FEWEST = 8  # models a world, or canaries, that are tried first
MOST_MODELS = 2**16  # a world, that are thought of
MOST_CANARIES = 10_000
_FURTHEST, _NODES = 5.0, 129  # normal quantiles, and how many, at which a guarantee's curve is evaluated once for all
_NEARLY_SURE = 0.99  # chance at which a picture may end
_NUMERICS = 1e-9  # of a rate: what a verdict leaves to the guarantee's numerics


def leaking(expected: ExpectedScores, factor: float) -> LinearScores | LikelihoodRatio:
    """The scores of a training with its noise divided by this factor, in units of the noise that was described."""
    if isinstance(expected, LikelihoodRatio) and expected.released:
        return replace(expected, noise=1.0 / factor)
    linear = expected if isinstance(expected, LinearScores) else IDEAL
    return replace(linear, spread=math.sqrt(max(linear.spread**2 - 1.0, 0.0) + factor**-2.0))


def chance_to_refute(outlook: Outlook | OneRunOutlook, claim: Claim, factor: float) -> float:
    """The probability that a verdict refutes the claim, if the noise is the run's divided by this factor.

    Many models: by the two tests of a verdict, which look at the same scores at two thresholds. Where one may look at
    any time it is that of one look at the end, and without the wager: more looks refute more often. One run: that of
    the better of the two tests, which both together exceed.
    """
    if isinstance(outlook, OneRunOutlook):
        return _chance_of_one_run(outlook, claim, factor)
    confidence = outlook.confidence if outlook.validity == "fixed" else sharing_the_error(outlook.confidence)
    tests = claim.tests(Kind.LAST_ITERATE, confidence)
    scores = leaking(outlook.expected, factor)
    placed = sorted((outlook.threshold_for(test.method, test.confidence), index) for index, test in enumerate(tests))
    seen = []
    for threshold, index in placed:
        errors = outlook.errors_at(threshold, scores)
        seen.append((errors, _refuting(tests[index], outlook, errors)))
    if len(seen) == 1:
        (outs, ins), fitting = seen[0]
        return float(outs.masses @ ins.at_most[fitting])
    return 1.0 - _neither(seen[0], seen[1])


def _refuting(test: Test, outlook: Outlook, errors: tuple[ErrorCounts, ErrorCounts]) -> IntArray:
    """For each number of false positives, how many of the numbers of false negatives refute."""
    fpr, fnr = outlook.upper_bounds(errors, test.confidence)
    if test.run is None:
        limit = allowed_fnr(test.guarantee, fpr, outlook.delta)
    else:
        limit = _least_fnr(test.run)(fpr) - _NUMERICS
    return np.searchsorted(fnr, limit, side="left")


Seen = tuple[tuple[ErrorCounts, ErrorCounts], IntArray]


def _neither(low: Seen, high: Seen) -> float:
    """The probability that neither test refutes, the one at the lower threshold nor the one at the higher.

    The lower has more false positives and fewer false negatives, of the same models.
    """
    (outs_low, ins_low), refuted_low = low
    (outs_high, ins_high), refuted_high = high
    # tails[i, j]: at least the i-th number of false negatives at the lower threshold, and the j-th at the higher.
    tails = np.zeros((ins_low.counts.size + 1, ins_high.counts.size + 1))
    tails[:-1, :-1] = both(ins_low, ins_high)[::-1, ::-1].cumsum(0).cumsum(1)[::-1, ::-1]
    pairs = both(outs_high, outs_low)
    return float(np.clip(np.sum(pairs * tails[refuted_low[None, :], refuted_high[:, None]]), 0.0, 1.0))


@lru_cache(maxsize=16)
def _least_fnr(run: DPSGD) -> _Curve:
    return _Curve(run)


class _Curve:
    """The trade-off curve of a run's guarantee, between normal quantiles of rates, in which it is nearly straight."""

    def __init__(self, run: DPSGD) -> None:
        nodes = np.linspace(-_FURTHEST, _FURTHEST, _NODES)
        rates = np.clip(np.asarray(guarantee_of(run)(run).fnr(ndtr(nodes))), 1e-300, 1.0 - 1e-16)
        self._between = PchipInterpolator(nodes, ndtri(rates))

    def __call__(self, fpr: FloatArray) -> FloatArray:
        at = np.clip(ndtri(np.clip(fpr, 1e-300, 1.0 - 1e-16)), -_FURTHEST, _FURTHEST)
        rates: FloatArray = ndtr(self._between(at))
        return rates


def _chance_of_one_run(outlook: OneRunOutlook, claim: Claim, factor: float) -> float:
    scores = leaking(outlook.expected, factor)
    assert isinstance(scores, LinearScores)
    chances = []
    for test in claim.tests(Kind.ONE_MODEL, outlook.confidence):
        claimed = test.guarantee if test.run is None else test.run
        plan = outlook.plan(test.method, test.confidence)
        plan = replace(plan, guesses=refuting_guesses(plan, claimed))
        chances.append(replace(plan, signal=scores.signal, spread=scores.spread).chance_to_refute(claimed))
    return max(chances)


def chances_to_refute(
    outlook: Outlook | OneRunOutlook, claim: Claim, factor: float, chance: float = CHANCE, most: int | None = None
) -> tuple[int | None, dict[int, float]]:
    """How many models a world (or canaries) refute the claim with this probability, and chances for many numbers.

    None: more than ``most`` do. Thresholds are predicted for each number, and errors are whole numbers, so that the
    chance rises in steps that at times go back, with few models far back: at the number found it is as large as it
    says, while another number near it may have less, or do with less.
    """
    if most is None:
        most = MOST_CANARIES if isinstance(outlook, OneRunOutlook) else MOST_MODELS
    tried: dict[int, float] = {}

    def enough(models: int) -> bool:
        tried[models] = chance_to_refute(replace(outlook, models=models), claim, factor)
        return tried[models] >= chance

    low, high = 0, min(FEWEST, most)
    while not enough(high):
        if high == most:
            return None, tried
        low, high = high, min(2 * high, most)
    while high - low > max(1, low // 64):  # to within 2%
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    larger = high
    while tried[larger] < _NEARLY_SURE and larger < most:  # the rest of the way up, for a picture
        larger = min(larger + max(1, larger // 4), most)
        enough(larger)
    return high, dict(sorted(tried.items()))
