"""What a number of scores can refute at all: the outcome of a perfect attack, which makes no error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from lastiterate.auditing.evidence.estimate import Estimate
from lastiterate.auditing.evidence.guarantee import guarantee_of
from lastiterate.auditing.evidence.one_run import largest_bound, ways_to_guess
from lastiterate.auditing.evidence.one_run_curve import slack
from lastiterate.auditing.evidence.one_run_power import allowed_by
from lastiterate.auditing.evidence.rates import bound_on_rates, epsilon_of
from lastiterate.run import DPSGD
from lastiterate.vocabulary import METHODS

MOST = 1_000_000  # models a world, or canaries, that are thought of


@dataclass(frozen=True)
class Test:
    """One of the tests that can refute a claim.

    Attributes:
        method: of the estimate that is looked at: its epsilon or, if there is a ``run``, its error rates or guesses.
        confidence: of this test alone.
        guarantee: the epsilon that is claimed.
        run: with the noise that is claimed. The trade-off curve of its guarantee is the lowest that is allowed: more
            noise has a higher one. Of one run, it bounds how many guesses may be right.
    """

    __test__ = False  # it is none of pytest's

    method: str
    confidence: float
    guarantee: float
    run: DPSGD | None = None

    def refutes(self, found: Estimate) -> bool:
        """Whether what was found by this method and at this confidence refutes the claim."""
        if self.run is None:
            return found.epsilon > self.guarantee
        if found.guesses is not None and found.guessed is not None:
            right = found.guessed - found.false_positives - found.false_negatives
            return self._too_many_right(_canaries(found), found.guesses, right, found.threshold_choice)
        return _beats(self.run, found.fpr_upper, found.fnr_upper)

    def could_refute(self, found: Estimate) -> bool:
        """Whether it would have, without a single error among as many scores."""
        if self.run is None:
            assert found.largest is not None
            return found.largest > self.guarantee
        if found.guesses is not None and found.guessed is not None:
            canaries, choice = _canaries(found), found.threshold_choice
            # "corrected" always tries to guess all canaries, too, and loses none to equal scores there.
            perfect = {(found.guesses, found.guessed), *([(canaries, canaries)] if choice == "corrected" else [])}
            return any(self._too_many_right(canaries, count, right, choice) for count, right in perfect)
        bound, error = bound_on_rates(found.threshold_choice, found.validity), 0.5 * (1.0 - self.confidence)
        fpr, fnr = (float(bound(0, models, error)) for models in (found.models_out, found.models_in))
        return _beats(self.run, fpr, fnr)

    def could_refute_with(self, models: int, delta: float, threshold: float | str) -> bool:
        """The same for so many models a world, or canaries, at a threshold as in ``estimate``."""
        if METHODS[self.method].is_one_run and self.run is not None:
            return self._too_many_right(models, models, models, threshold)
        if self.method == "one-run":
            return largest_bound(models, models, "one-run", delta, self.confidence, threshold) > self.guarantee
        counted = models - models // 2 if threshold == "split" else models
        rate = float(bound_on_rates(str(threshold))(0, counted, 0.5 * (1.0 - self.confidence)))
        if self.run is None:
            return bool(epsilon_of(rate, rate, delta) > self.guarantee)
        return _beats(self.run, rate, rate)

    def _too_many_right(self, canaries: int, count: int, right: int, threshold: float | str) -> bool:
        """Whether so many of the guesses are right more seldom than the error, by the run's guarantee."""
        assert self.run is not None
        error = (1.0 - self.confidence) / ways_to_guess(canaries, threshold)
        return slack(allowed_by(self.run), canaries, count, right, error) < 0.0


def _canaries(found: Estimate) -> int:
    return found.models_in + found.models_out


def _beats(run: DPSGD, fpr: float, fnr: float) -> bool:
    """Whether these error rates are better than the run's guarantee allows."""
    return _least_fnr(run, fpr) > fnr + 1e-9


@lru_cache(maxsize=1024)  # what so many scores could refute is asked at the same rate every time
def _least_fnr(run: DPSGD, fpr: float) -> float:
    return float(guarantee_of(run)(run).fnr(fpr))


def least_models(tests: Sequence[Test], delta: float, threshold: float | str) -> int | None:
    """How many models a world (or canaries) a perfect attack needs at least to refute; None: more than ``MOST``."""

    def enough(models: int) -> bool:
        return any(test.could_refute_with(models, delta, threshold) for test in tests)

    low, high = 0, 1
    while not enough(high):
        if high == MOST:
            return None
        low, high = high, min(2 * high, MOST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
