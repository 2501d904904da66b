"""The heuristic as an accountant of dp-accounting."""

from __future__ import annotations

import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Literal, TypeAlias

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation

from lastiterate.common.validation import PerStep, integer, number
from lastiterate.formatting import spell_exact, spell_up
from lastiterate.privacy.analyses.composition import composition
from lastiterate.privacy.analyses.no_amplification import no_amplification
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.pairs import pair_of, replaced_pair_of
from lastiterate.run import DPSGD, Neighbours

# The steps that another library has recorded, and what the heuristic says about them.
#
# Libraries hand over how many steps were taken at which sampling rate and noise. Every step counts alike here (plain
# SGD at a constant learning rate), so that a billion equal steps are one group and groups may come in any order.
#
# Whoever asks there is used to guarantees, so that the first answer warns, and names composition's.

Drawing: TypeAlias = Literal["poisson", "shuffled", "other"]  # how a data loader draws its batches

MOST_STEPS_WRITTEN_OUT = 10**7  # 80 MB an array; epsilon and delta need no arrays and have no such limit
MOST_KINDS_OF_STEPS = 300  # above that, composition takes longer than 0.3 s, and a warning states an upper bound


class HeuristicWarning(UserWarning):
    """An accountant has answered with the heuristic, which predicts, where guarantees are usual."""


@dataclass(frozen=True)
class Step:
    """One noisy sum of clipped gradients. Unlike in a ``DPSGD`` the noise may be 0, and epsilon is infinite then."""

    sample_rate: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "sample_rate", number("sample_rate", self.sample_rate, 0.0, 1.0))
        object.__setattr__(self, "noise_multiplier", number("noise_multiplier", self.noise_multiplier, 0.0))

    @property
    def is_exposed(self) -> bool:
        """Whether an example may be used without any noise."""
        return self.noise_multiplier == 0.0 and self.sample_rate > 0.0


@dataclass(frozen=True)
class History:
    """Segments of equal steps, each a step and how often it was taken."""

    segments: tuple[tuple[Step, int], ...]
    neighbours: Neighbours = "add-remove"

    def epsilon(self, delta: float) -> float:
        """The heuristic's epsilon for a delta in [0, 1], by dp-accounting's conventions at the ends."""
        if self._is_exposed:
            return math.inf
        law = self._law()
        if delta == 1.0 or law.high == 0.0:
            return 0.0
        return math.inf if delta == 0.0 else float(self._curve(law).epsilon(delta))

    def delta(self, epsilon: float) -> float:
        """The heuristic's delta for an epsilon in [0, inf]."""
        return 1.0 if self._is_exposed else float(self._curve(self._law()).delta(epsilon))

    def caution(self, answer: str, question: Callable[[PrivacyCurve], float], sampling: Drawing | None = None) -> str:
        """One sentence: the heuristic's answer is no guarantee, and what is guaranteed for this way of drawing batches.

        ``sampling`` is None if nobody knows how batches were drawn.
        """
        noises = {step.noise_multiplier for step, _ in self.segments}
        noise = f" at noise multiplier {min(noises):.4g}" if len(noises) == 1 else ""
        steps = f"{self._total:,} step{'s' if self._total > 1 else ''}{noise}"
        sentence = f"{answer} is what the last-iterate heuristic predicts for {steps}, not a guarantee: "
        if sampling == "other":
            return f"{sentence}composition's does not hold for this data loader, whose batches are not Poisson samples"
        if sampling == "shuffled":
            return sentence + self._without_amplification(question)
        condition = "" if sampling == "poisson" else " if sampling is Poisson"
        is_bounded = len({step for step, _ in self.segments}) > MOST_KINDS_OF_STEPS
        try:
            run = self._worst_run() if is_bounded else self.run()
            guaranteed = spell_up(question(composition(run)), 4)
            worst = " (all steps with the least noise and the largest sample rate)" if is_bounded else ""
            return f"{sentence}composition guarantees {guaranteed}{worst}{condition}"
        except ValueError as refusal:
            return f"{sentence}that is composition's, which has no value here ({refusal})"

    def _without_amplification(self, question: Callable[[PrivacyCurve], float]) -> str:
        words = "batches are shuffled, which composition does not cover (the prediction is for Poisson sampling)"
        try:
            run = self.run().replace(sampling="shuffled")
            guaranteed = spell_up(question(no_amplification(run)), 4)
            return f"{words}; no_amplification guarantees {guaranteed} for zero-out neighbours, not for add/remove"
        except ValueError as refusal:
            return f"{words}; no_amplification has no value here ({refusal})"

    def run(self) -> DPSGD:
        """The segments as one run: numbers where all steps are equal, arrays otherwise."""
        if not self.segments:
            raise ValueError("steps must be at least 1 to describe a run, got none: compose or train first")
        rates = self._per_step([step.sample_rate for step, _ in self.segments])
        noises = self._per_step([step.noise_multiplier for step, _ in self.segments])
        return DPSGD(steps=self._total, sample_rate=rates, noise_multiplier=noises, neighbours=self.neighbours)

    def _worst_run(self) -> DPSGD:
        """Return a run with equal steps that leaks at least as much: the least noise and the largest sample rate."""
        rate = max(step.sample_rate for step, _ in self.segments)
        noise = min(step.noise_multiplier for step, _ in self.segments)
        return DPSGD(self._total, rate, noise, neighbours=self.neighbours)

    def _per_step(self, values: list[float]) -> PerStep:
        if len(set(values)) == 1:
            return values[0]
        if self._total > MOST_STEPS_WRITTEN_OUT:
            raise ValueError(
                f"steps must be at most {MOST_STEPS_WRITTEN_OUT} for a run whose steps differ, got {self._total}: "
                "epsilon and delta are available without it"
            )
        return np.repeat(values, [count for _, count in self.segments])

    def _law(self) -> Law:
        """What ``law_of(self.run())`` is, without writing out the steps."""
        steps_at: Counter[float] = Counter()
        for step, count in self.segments:
            steps_at[step.sample_rate] += count
        constant = float(steps_at.pop(1.0, 0))
        steps_at.pop(0.0, None)
        counts, rates = np.array([*steps_at.values()], np.float64), np.array([*steps_at], np.float64)
        noise = math.hypot(*(step.noise_multiplier * math.sqrt(count) for step, count in self.segments))
        return Law(noise, constant, counts, rates, np.ones_like(rates))

    def _curve(self, law: Law) -> PrivacyCurve:
        pair = replaced_pair_of(law) if self.neighbours == "replace" else pair_of(law)
        return PrivacyCurve(pair, "last_iterate", is_guarantee=False)

    @property
    def _total(self) -> int:
        return sum(count for _, count in self.segments)

    @property
    def _is_exposed(self) -> bool:
        return any(step.is_exposed for step, _ in self.segments)


def tell_epsilon(epsilon: float, delta: float) -> str:
    """An answer in words, for `History.caution`."""
    return f"epsilon {spell_up(epsilon, 4)} at delta {spell_exact(delta)}"


# Lines that have asked a LastIterateAccountant, with the steps they asked about.
_WARNED_AT: set[tuple[str, int, frozenset[tuple[Step, int]] | None]] = set()
_NEIGHBOURS: dict[NeighboringRelation, Neighbours] = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "add-remove",
    NeighboringRelation.REPLACE_SPECIAL: "zero-out",
    NeighboringRelation.REPLACE_ONE: "replace",
}
_Refusal: TypeAlias = dp_accounting.PrivacyAccountant.CompositionErrorDetails


class LastIterateAccountant(dp_accounting.PrivacyAccountant):  # type: ignore[misc]
    """The last-iterate heuristic as a ``dp_accounting.PrivacyAccountant``: a prediction, not a guarantee.

    It takes the composed events for the steps of one DP-SGD run of which only the last iterate is released, and the
    losses for linear. Its epsilon is therefore usually below that of dp-accounting's own accountants, which bound what
    any attack can learn from all iterates. Every step counts alike, so the order of the events does not matter.

    Gaussian events, Poisson-sampled or not, are composed in any nesting, and a non-private event makes epsilon
    infinite; everything else is refused. With ``REPLACE_ONE`` it is one example against another, instead of against
    none.

    A ``HeuristicWarning`` states what composition guarantees: once for each line of code that asks and for each run
    that it asks about. dp-accounting's own search for noise, which tries many runs, is warned once.
    """

    def __init__(self, neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE) -> None:
        super().__init__(neighboring_relation)
        self._steps: Counter[Step] = Counter()

    @property
    def run(self) -> DPSGD:
        """The run that the composed events describe. Groups of equal steps follow each other, first composed first."""
        return self._history.run()

    def get_epsilon(self, target_delta: float) -> float:
        """The epsilon that the heuristic predicts; infinite where a step has no noise."""
        delta = number("target_delta", target_delta, 0.0, 1.0)
        epsilon = self._history.epsilon(delta)
        if 0.0 < delta < 1.0 and math.isfinite(epsilon):
            self._warn(sys._getframe(1), tell_epsilon(epsilon, delta), lambda curve: curve.epsilon(delta))
        return epsilon

    def get_delta(self, target_epsilon: float) -> float:
        """The delta that the heuristic predicts; 1 where a step has no noise."""
        if isinstance(target_epsilon, float) and target_epsilon == math.inf:
            return self._history.delta(math.inf)
        epsilon = number("target_epsilon", target_epsilon, 0.0)
        delta = self._history.delta(epsilon)
        if delta < 1.0:
            answer = f"delta {spell_up(delta, 4)} at epsilon {spell_exact(epsilon)}"
            self._warn(sys._getframe(1), answer, lambda curve: curve.delta(epsilon))
        return delta

    def _warn(self, caller: FrameType, answer: str, question: Callable[[PrivacyCurve], float]) -> None:
        is_search = caller.f_globals.get("__name__", "").partition(".")[0] == "dp_accounting"
        asked = None if is_search else frozenset(self._steps.items())
        line = (caller.f_code.co_filename, caller.f_lineno, asked)
        if line not in _WARNED_AT and self._history.segments:
            _WARNED_AT.add(line)
            warnings.warn(self._history.caution(answer, question), HeuristicWarning, stacklevel=3)

    @property
    def _history(self) -> History:
        return History(tuple(self._steps.items()), _NEIGHBOURS[self.neighboring_relation])

    def _maybe_compose(self, event: dp_accounting.DpEvent, count: int, do_compose: bool) -> _Refusal | None:
        match event:
            case dp_accounting.NoOpDpEvent():
                return None
            case dp_accounting.NonPrivateDpEvent():
                return self._maybe_step(event, 1.0, 0.0, count, do_compose)
            case dp_accounting.ComposedDpEvent(events=events):
                refusals = (self._maybe_compose(item, count, do_compose) for item in events)
                return next((refusal for refusal in refusals if refusal is not None), None)
            case dp_accounting.SelfComposedDpEvent(event=inner, count=times):
                try:
                    total = count * integer("count", times, low=0)
                except ValueError as error:
                    return _Refusal(event, str(error))
                return self._maybe_compose(inner, total, do_compose)
            case dp_accounting.GaussianDpEvent(noise_multiplier=noise):
                return self._maybe_step(event, 1.0, noise, count, do_compose)
            case dp_accounting.PoissonSampledDpEvent(
                sampling_probability=rate, event=dp_accounting.GaussianDpEvent(noise_multiplier=noise)
            ):
                return self._maybe_step(event, rate, noise, count, do_compose)
            case dp_accounting.PoissonSampledDpEvent(event=inner):
                found = f"Subevent of `PoissonSampledDpEvent` must be `GaussianDpEvent`. Found {inner}."
                return _Refusal(event, found)
            case _:
                return _Refusal(event, "Unsupported event.")

    def _maybe_step(
        self, event: dp_accounting.DpEvent, rate: float, noise: float, count: int, do_compose: bool
    ) -> _Refusal | None:
        try:
            step = Step(rate, noise)
        except ValueError as error:
            return _Refusal(event, str(error))
        if do_compose and count:
            self._steps[step] += count
        return None
