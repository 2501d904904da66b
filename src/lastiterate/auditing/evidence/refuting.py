"""How probable it is that an audit refutes a claim about a training that leaks more, and how many models that takes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from lastiterate.arrays import IntArray
from lastiterate.attacks.attack import ExpectedScores, LikelihoodRatio, LinearScores
from lastiterate.auditing.evidence.claims import Claim, Test
from lastiterate.auditing.evidence.error_counts import ErrorCounts, both
from lastiterate.auditing.evidence.outlook import CHANCE, IDEAL, OneRunOutlook, Outlook, allowed_fnr
from lastiterate.auditing.evidence.simulated import quantile_curve

FEWEST = 8  # models a world, or canaries, that are tried first
MOST_MODELS = 2**16  # a world, that are thought of
MOST_CANARIES = 10_000
MOST_SIMULATED, MOST_ANYTIME = 2**12, 2**10  # models a world, where audits are simulated
_NEARLY_SURE = 0.99  # chance at which a picture may end
_NUMERICS = 1e-9  # of a rate: what a verdict leaves to the guarantee's numerics


def leaking(expected: ExpectedScores, factor: float) -> LinearScores | LikelihoodRatio:
    """The scores of a training with its noise divided by this factor, in units of the noise that was described."""
    if isinstance(expected, LikelihoodRatio):
        return replace(expected, noise=1.0 / factor)
    linear = expected if isinstance(expected, LinearScores) else IDEAL
    return replace(linear, spread=math.sqrt(max(linear.spread**2 - 1.0, 0.0) + factor**-2.0))


def chance_to_refute(outlook: Outlook | OneRunOutlook, claim: Claim, factor: float) -> float:
    """The probability that a verdict refutes the claim, if the noise is the run's divided by this factor.

    The two tests of a verdict look at the same scores at two thresholds. If these are fixed in advance, the probability
    is a sum; otherwise audits are simulated, with the wager against the claim if bounds hold at any time.
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
    """Whether a chance comes from simulated audits; if not, it is exact."""
    return isinstance(outlook, OneRunOutlook) or isinstance(outlook.threshold, str) or outlook.validity == "anytime"


def most_models(outlook: Outlook | OneRunOutlook) -> int:
    """The largest number of models a world, or canaries, that is considered."""
    if isinstance(outlook, OneRunOutlook):
        return MOST_CANARIES
    if outlook.validity == "anytime":
        return MOST_ANYTIME
    return MOST_SIMULATED if is_simulated(outlook) else MOST_MODELS


def _refuting(test: Test, outlook: Outlook, errors: tuple[ErrorCounts, ErrorCounts]) -> IntArray:
    """For each number of false positives, how many of the numbers of false negatives refute."""
    fpr, fnr = outlook.upper_bounds(errors, test.confidence)
    if test.run is None:
        limit = allowed_fnr(test.guarantee, fpr, outlook.delta)
    else:
        limit = quantile_curve(test.run)(fpr) - _NUMERICS
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


def chances_to_refute(
    outlook: Outlook | OneRunOutlook, claim: Claim, factor: float, chance: float = CHANCE, most: int | None = None
) -> tuple[int | None, dict[int, float]]:
    """How many models a world (or canaries) refute the claim with this probability, and chances for many numbers.

    None: more than ``most`` do. Thresholds are predicted for each number, and errors are whole numbers, so that the
    chance rises in steps that at times go back, with few models far back: at the number found it is as large as it
    says, while another number near it may have less, or do with less.
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
    while tried[larger] < _NEARLY_SURE and larger < most:  # the rest of the way up, for a picture
        larger = min(larger + max(1, larger // (1 if simulated else 4)), most)
        enough(larger)
    return high, dict(sorted(tried.items()))
