"""A test martingale against a claim: bets whose wealth grows only if the claim is false.

If a training has the claimed privacy, then P(in) <= e^epsilon P(out) + delta(epsilon) for every epsilon >= 0 and every
set of scores. The same holds with the worlds exchanged. Consider a bet that wins 1 if a model with the canary scores at
least y, loses e^epsilon if a model without the canary does, and always costs delta(epsilon). Under the claim this bet
wins nothing on average. The stake is a share of the wealth that depends on earlier models alone, and no loss exceeds
the wealth. So the wealth is a supermartingale. By Ville's inequality it ever reaches 1 / error times its initial value
with probability at most ``error``, however often one looks and whenever one stops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lastiterate.common.types import FloatArray, IntArray

_FIRST = 4  # number of models per world before the first bet
_GROWTH = 1.08  # a new bet is chosen when the number of models has grown by this factor
_PLACES = (np.arange(24) + 0.5) / 24.0  # thresholds of bets, as quantiles of the scores seen so far
_STAKES = np.array([0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.75, 0.9])  # stakes, as shares of the largest possible stake
_SLACK = 1e-9  # relative tolerance for the numerical error of delta
EPSILONS = np.concatenate((np.linspace(0.0, 4.0, 17), np.linspace(4.5, 12.0, 16), np.linspace(14.0, 40.0, 14)))


@dataclass(frozen=True, eq=False)
class ClaimedCurve:
    """The ``deltas`` that a claim allows at ``epsilons``: the larger of the deltas for both orders of the worlds."""

    epsilons: FloatArray
    deltas: FloatArray

    @classmethod
    def of_curve(cls, delta_of: Callable[[FloatArray], FloatArray]) -> ClaimedCurve:
        """Return the deltas of a claim that is a whole privacy curve."""
        return cls(EPSILONS, np.minimum(np.asarray(delta_of(EPSILONS)) * (1.0 + _SLACK) + 1e-15, 1.0))

    @classmethod
    def of_epsilon(cls, epsilon: float, delta: float) -> ClaimedCurve:
        """Return the deltas of a claim of one epsilon and delta. The claim also bounds delta at smaller epsilons."""
        epsilons = np.unique(np.minimum(EPSILONS, epsilon))
        # The two slopes of the claim's trade-off curve, -e^epsilon and -e^-epsilon, meet on the diagonal.
        share = np.exp(np.logaddexp(0.0, epsilons) - np.logaddexp(0.0, epsilon))
        return cls(epsilons, 1.0 - (1.0 - delta) * share)


@dataclass(frozen=True, eq=False)
class Martingale:
    """A test martingale against a claim. Scores must be in the order of the models.

    ``error`` is the largest probability that a true claim is refuted.
    """

    scores_in: FloatArray
    scores_out: FloatArray
    claimed: ClaimedCurve
    error: float

    def refuted_after(self) -> int | None:
        """Return the number of models per world after which the claim was refuted, or None if it was not.

        The bets find by themselves whether larger or smaller scores speak for the canary.
        """
        models = min(len(self.scores_in), len(self.scores_out))
        inside, outside = (scores[None, :models] for scores in (self.scores_in, self.scores_out))
        return int(refuted_after(inside, outside, self.claimed, self.error)[0]) or None


def refuted_after(
    inside: FloatArray, outside: FloatArray, claimed: ClaimedCurve, error: float, *, coarse: bool = False
) -> IntArray:
    """Return, for each audit (a row of scores), the number of models per world that refutes the claim, or 0.

    If ``coarse`` is True, bets that hardly matter are left out. This is for simulated audits.
    """
    enough = _log_wealth(inside, outside, claimed, coarse) >= -np.log(error)
    return np.where(enough.any(axis=1), enough.argmax(axis=1) + 1, 0)


def _log_wealth(inside: FloatArray, outside: FloatArray, claimed: ClaimedCurve, coarse: bool = False) -> FloatArray:
    """Return the log wealth of each audit after each of its models. Half of the wealth is bet with worlds exchanged."""
    # Only the order of scores matters, so scores are replaced by ranks. Equal scores have equal ranks.
    models = inside.shape[1]
    both = [np.unique(row, return_inverse=True)[1] for row in np.concatenate((inside, outside), axis=1)]
    ranks = np.reshape(both, (len(inside), 2 * models)).astype(np.int64)
    ins, outs = ranks[:, :models], ranks[:, models:]
    bets = _Bets.of(claimed, coarse)
    top = 2 * models - 1
    gains = np.zeros((2, *ins.shape))
    begin = _FIRST
    while begin < models:
        end = min(max(begin + 1, int(begin * _GROWTH)), models)
        seen = np.sort(ins[:, :begin], axis=1), np.sort(outs[:, :begin], axis=1)
        now = ins[:, begin:end], outs[:, begin:end]
        gains[0, :, begin:end] = bets.gains(*seen, *now, top)
        mirrored = _flipped(seen[1], top), _flipped(seen[0], top), top - now[1], top - now[0]
        gains[1, :, begin:end] = bets.gains(*mirrored, top)
        begin = end
    return np.asarray(np.logaddexp(*np.cumsum(gains, axis=2)) - np.log(2.0))


def _flipped(ranks: IntArray, top: int) -> IntArray:
    return top - ranks[:, ::-1]


@dataclass(frozen=True, eq=False)
class _Bets:
    """The bets to choose from: prices, deltas and stakes.

    ``growths`` are logarithmic growths of the wealth in four cases: the score reaches the threshold only in the first
    world, in both worlds, only in the second world, or in no world.
    """

    prices: FloatArray
    deltas: FloatArray
    stakes: FloatArray
    growths: FloatArray

    @classmethod
    def of(cls, claimed: ClaimedCurve, coarse: bool) -> _Bets:
        """Return all bets against a claim."""
        kept = slice(None)
        if coarse:  # where delta is nearly 0, a larger epsilon makes the bet worse
            kept = slice(max(int(np.searchsorted(-claimed.deltas, -1e-6)) + 1, 2))
        prices, deltas = np.exp(claimed.epsilons[kept]), claimed.deltas[kept]
        stakes = _STAKES[:, None] / (prices + deltas)
        growths = np.log1p(
            [
                stakes * (1.0 - deltas),
                stakes * (1.0 - prices - deltas),
                -stakes * (prices + deltas),
                -stakes * deltas,
            ]
        ).reshape(4, -1)
        prices, deltas = (np.broadcast_to(each, stakes.shape).ravel() for each in (prices, deltas))
        return cls(prices, deltas, stakes.ravel(), growths.astype(np.float32))  # precise enough to choose a bet

    def gains(self, ups: IntArray, downs: IntArray, won: IntArray, lost: IntArray, top: int) -> FloatArray:
        """Return the logarithmic gains of the next models, with the best bet for the (sorted) scores seen so far."""
        both = np.sort(np.concatenate((ups, downs), axis=1), axis=1)
        best, gains = np.zeros(len(ups)), np.zeros(won.shape)
        for sign in (1, -1):
            views = (ups, downs, both) if sign > 0 else [_flipped(each, top) for each in (ups, downs, both)]
            growth, at, part = self._choose(*views)
            wins, losses = (each if sign > 0 else top - each for each in (won, lost))
            price, delta, stake = (each[part][:, None] for each in (self.prices, self.deltas, self.stakes))
            threshold = at[:, None]
            new = np.log1p(stake * ((wins >= threshold) - price * (losses >= threshold) - delta))
            better = growth > best
            best, gains = np.where(better, growth, best), np.where(better[:, None], new, gains)
        return gains

    def _choose(self, ups: IntArray, downs: IntArray, both: IntArray) -> tuple[FloatArray, IntArray, IntArray]:
        """Return growth, threshold and index of the bet with the largest growth on the scores seen, for each audit."""
        audits, seen = ups.shape
        thresholds = both[:, np.ceil(_PLACES * (2 * seen - 1)).astype(np.int64)]
        rows = np.arange(audits)[:, None]
        offsets = rows << 40  # sorted rows with growing offsets are one sorted array
        shares = []
        for values in (ups, downs):
            below = np.searchsorted((values + offsets).ravel(), (thresholds + offsets).ravel()).reshape(audits, -1)
            shares.append(((seen - (below - rows * seen) + 0.5) / (seen + 1.0)).astype(np.float32))
        up, down = shares
        chances = np.stack([up * (1.0 - down), up * down, (1.0 - up) * down, (1.0 - up) * (1.0 - down)], axis=-1)
        growth = (chances @ self.growths).reshape(audits, -1)
        best = growth.argmax(axis=1)
        places, parts = np.divmod(best, self.growths.shape[1])
        return growth[rows[:, 0], best], thresholds[rows[:, 0], places], parts
