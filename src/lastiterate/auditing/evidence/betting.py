"""A wager against a claim: who wins much money in a game that the claim makes unfavourable has refuted the claim.

If a training has the privacy that is claimed, then for every epsilon >= 0 and every set of scores, P(in) <= e^epsilon
P(out) + delta(epsilon), and the same with the worlds exchanged. So a bet that wins 1 if a model with the canary scores
at least y, loses e^epsilon if one without does, and costs delta(epsilon) in any case, wins nothing on average. Whoever
stakes a share of the money, chosen by earlier models alone and never more than can be lost, has a supermartingale: by
Ville's inequality the money ever reaches 1 / error times its beginning with probability ``error`` at most, however
often one looks and whenever one stops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lastiterate.arrays import FloatArray

_FIRST = 4  # models a world before the first bet
_GROWTH = 1.08  # of the number of models from one choice of a bet to the next
_PLACES = (np.arange(24) + 0.5) / 24.0  # of thresholds among the scores seen
_STAKES = np.array([0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.75, 0.9])  # of the most that may be staked
_SLACK = 1e-9  # of delta: what its numerics may be wrong by
EPSILONS = np.concatenate((np.linspace(0.0, 4.0, 17), np.linspace(4.5, 12.0, 16), np.linspace(14.0, 40.0, 14)))


@dataclass(frozen=True, eq=False)
class Odds:
    """A claim as a bookmaker has it: the ``deltas`` that it allows at ``epsilons``, the larger of both directions."""

    epsilons: FloatArray
    deltas: FloatArray

    @classmethod
    def of_curve(cls, delta_of: Callable[[FloatArray], FloatArray]) -> Odds:
        """Of a claim that has a whole curve."""
        deltas = np.minimum(np.asarray(delta_of(EPSILONS)) * (1.0 + _SLACK) + 1e-15, 1.0)
        return cls(EPSILONS, deltas)

    @classmethod
    def of_epsilon(cls, epsilon: float, delta: float) -> Odds:
        """Of the claim of one epsilon and delta, which bounds delta below that epsilon, too."""
        epsilons = np.unique(np.minimum(EPSILONS, epsilon))
        # The two slopes of its trade-off curve, -e^epsilon and -e^-epsilon, meet on the diagonal.
        share = np.exp(np.logaddexp(0.0, epsilons) - np.logaddexp(0.0, epsilon))
        return cls(epsilons, 1.0 - (1.0 - delta) * share)


@dataclass(frozen=True, eq=False)
class Wager:
    """Scores of models with the canary and without it, in the order of the models, and the claim that they bet against.

    ``error`` is the probability with which a claim that is true is refuted.
    """

    scores_in: FloatArray
    scores_out: FloatArray
    odds: Odds
    error: float

    def refuted_after(self) -> int | None:
        """After how many models a world the claim was refuted; None: it is not.

        Whether larger or smaller scores speak for the canary shows by itself.
        """
        return self._first(self.scores_in, self.scores_out)

    def could_refute(self) -> bool:
        """Whether so many models could have, with a perfect attack."""
        models = min(len(self.scores_in), len(self.scores_out))
        return self._first(np.ones(models), np.zeros(models)) is not None

    def least_models(self, most: int) -> int | None:
        """How many models a world a perfect attack needs; None: more than ``most``."""
        models = 64
        while True:
            found = self._first(np.ones(models), np.zeros(models))
            if found is not None or models >= most:
                return found
            models = min(8 * models, most)

    def _first(self, inside: FloatArray, outside: FloatArray) -> int | None:
        models = min(len(inside), len(outside))
        enough = np.flatnonzero(_log_money(inside[:models], outside[:models], self.odds) >= -np.log(self.error))
        return int(enough[0]) + 1 if enough.size else None


def _log_money(inside: FloatArray, outside: FloatArray, odds: Odds) -> FloatArray:
    """The logarithm of the money after each model, which began as 1.

    Half of it is bet on models with the canary, half on models without, since a claim holds in both directions.
    """
    money: FloatArray = np.logaddexp(_money(inside, outside, odds), _money(-outside, -inside, odds)) - np.log(2.0)
    return money


def _money(winning: FloatArray, losing: FloatArray, odds: Odds) -> FloatArray:
    """The logarithm of the money after each model, of one who bets that scores of the one world are larger."""
    gains = np.zeros(winning.size)
    begin = _FIRST
    while begin < winning.size:
        end = min(max(begin + 1, int(begin * _GROWTH)), winning.size)
        chosen = _choose(winning[:begin], losing[:begin], odds)
        if chosen is not None:
            sign, threshold, price, delta, stake = chosen
            won = sign * winning[begin:end] >= threshold
            lost = sign * losing[begin:end] >= threshold
            gains[begin:end] = np.log1p(stake * (won - price * lost - delta))
        begin = end
    return np.cumsum(gains)


def _choose(winning: FloatArray, losing: FloatArray, odds: Odds) -> tuple[float, float, float, float, float] | None:
    """The bet that would have grown the money most, by the scores seen; None: none would.

    Sign and threshold of the scores that win, what a loss costs, delta, and the stake.
    """
    prices = np.exp(odds.epsilons)
    deltas = odds.deltas
    stakes = _STAKES[:, None] / (prices + deltas)
    best, chosen = 0.0, None
    for sign in (1.0, -1.0):
        ups, downs = np.sort(sign * winning), np.sort(sign * losing)
        thresholds = np.quantile(np.concatenate((ups, downs)), _PLACES, method="higher")
        wins, losses = (
            (values.size - np.searchsorted(values, thresholds) + 0.5) / (values.size + 1.0) for values in (ups, downs)
        )
        up, down = wins[:, None, None], losses[:, None, None]
        growth = (
            up * (1.0 - down) * np.log1p(stakes * (1.0 - deltas))
            + up * down * np.log1p(stakes * (1.0 - prices - deltas))
            + (1.0 - up) * down * np.log1p(-stakes * (prices + deltas))
            + (1.0 - up) * (1.0 - down) * np.log1p(-stakes * deltas)
        )
        place, part, index = np.unravel_index(int(np.argmax(growth)), growth.shape)
        if growth[place, part, index] > best:
            best = float(growth[place, part, index])
            chosen = (sign, thresholds[place], prices[index], deltas[index], stakes[part, index])
    return chosen
