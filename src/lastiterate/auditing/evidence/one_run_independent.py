"""One run whose canaries do not interact: what a coin does to a score has nothing to do with other coins and scores.

Then the pairs of coin and score are independent, though not alike. At a threshold that was fixed in advance, canary j
is called "in" though it is out with probability a_j / 2, and "out" though it is in with b_j / 2, where a_j and b_j are
error rates of a test, so that 1 - b_j <= e^epsilon a_j + delta, and the same for the means of all m canaries. False
positives are a sum of independent indicators with the mean m a / 2. Such a sum is as low as Clopper and Pearson's bound
allows no more often than a binomial number of the same mean (Hoeffding 1956), as long as the error is at most 1/4
(Greenberg and Mohri 2014: a binomial number is at most its mean with more than that probability).

Without the assumption this is no bound: a mechanism that reveals all coins with probability delta is (0, delta)-DP.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lastiterate.arrays import IntArray
from lastiterate.auditing.evidence.rates import AssumptionFree, epsilon_of, upper_bound
from lastiterate.auditing.evidence.threshold import Worlds, chosen_by_themselves, predicted_threshold
from lastiterate.run import DPSGD

_MOST_ERROR = 0.25  # of each of the two bounds, for which Hoeffding's inequality applies


@dataclass(frozen=True)
class IndependentBound:
    """A lower bound on epsilon and the same without an error, the canaries it counts, and what was wrong among them."""

    epsilon: float
    largest: float
    threshold: float
    threshold_choice: str
    worlds: Worlds
    false_positives: int
    false_negatives: int
    fpr: float
    fnr: float


def independent_bound(
    worlds: Worlds, threshold: float | str, run: DPSGD | None, delta: float, confidence: float
) -> IndependentBound:
    """The bound at a threshold that is given, predicted, or chosen by a random half of the canaries.

    "corrected" and "uncorrected" are as "split": canaries that are not alike have no distribution to correct for.
    """
    error = min(0.5 * (1.0 - confidence), _MOST_ERROR)
    choice = "a-priori"
    if threshold == "a-priori":
        canaries = worlds.inside.size + worlds.outside.size
        if run is None:
            raise ValueError("run must be given with threshold 'a-priori', which is predicted for it; got None")
        half = max(canaries // 2, 1)  # how many really are in says something about the coins
        threshold = predicted_threshold(run, half, half, delta, confidence)
    elif isinstance(threshold, str):
        choice = "split"
        chooser, worlds = _halves(worlds)
        threshold = 0.0
        if chooser.inside.size and chooser.outside.size:
            threshold = chosen_by_themselves(chooser, "uncorrected", AssumptionFree(), delta, error).threshold
    false_positives, false_negatives = (int(count) for count in worlds.errors(np.float64(threshold)))
    canaries = worlds.inside.size + worlds.outside.size

    def rate(errors: int) -> float:
        return float(np.minimum(2.0 * upper_bound(errors, canaries, error), 1.0))

    fpr, fnr, least = rate(false_positives), rate(false_negatives), rate(0)
    return IndependentBound(
        float(epsilon_of(fpr, fnr, delta)),
        float(epsilon_of(least, least, delta)),
        float(threshold),
        choice,
        worlds,
        false_positives,
        false_negatives,
        fpr,
        fnr,
    )


def _halves(worlds: Worlds) -> tuple[Worlds, Worlds]:
    """Two random halves of all canaries, whether they are in or out; the second, which counts, has one more if odd.

    A half of each world, as for independent models, would fix how many are in.
    """
    scores = np.concatenate((worlds.inside, worlds.outside))
    is_in = np.arange(scores.size) < worlds.inside.size
    order = worlds.generator().permutation(scores.size)
    first, second = order[: scores.size // 2], order[scores.size // 2 :]

    def part(which: IntArray) -> Worlds:
        return Worlds(np.sort(scores[which][is_in[which]]), np.sort(scores[which][~is_in[which]]))

    return part(first), part(second)
