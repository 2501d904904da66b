"""The heuristic where people already account for privacy: as a plug-in of dp-accounting and of Opacus.

Both hand over how many steps were taken at which sampling rate and noise. Every step counts alike here (plain SGD at
a constant learning rate), so that a billion equal steps are one group and groups may come in any order.

Whoever asks there is used to guarantees, so that the first answer warns, and names composition's.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import FrameType
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation

from lastiterate.extras import MissingExtra
from lastiterate.privacy.analyses.composition import composition
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.pairs import pair_of
from lastiterate.run import DPSGD
from lastiterate.values import PerStep, integer, number

MOST_STEPS_WRITTEN_OUT = 10**7  # 80 MB an array; epsilon and delta need no arrays and have no such limit
MOST_KINDS_OF_STEPS = 8  # composition takes seconds where steps differ in many ways, too long for a warning

_WARNED_AT: set[tuple[str, int]] = set()  # lines that have asked a LastIterateAccountant
_Refusal = dp_accounting.PrivacyAccountant.CompositionErrorDetails
_RELATIONS = (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL)


class HeuristicWarning(UserWarning):
    """An accountant has answered with the heuristic, which predicts, where guarantees are usual."""


class LastIterateAccountant(dp_accounting.PrivacyAccountant):  # type: ignore[misc]
    """The last-iterate heuristic as a ``dp_accounting.PrivacyAccountant``: a prediction, not a guarantee.

    It takes the composed events for the steps of one DP-SGD run of which only the last iterate is released, and the
    losses for linear. Its epsilon is therefore usually below that of dp-accounting's own accountants, which bound what
    any attack can learn from all iterates. Every step counts alike, so the order of the events does not matter.

    Gaussian events, Poisson-sampled or not, are composed in any nesting, and a non-private event makes epsilon
    infinite; everything else is refused. So is ``REPLACE_ONE``: one example against another, instead of against none,
    is a different pair of distributions.

    Each line of code that asks is told once, by a ``HeuristicWarning``, what composition guarantees. Not once for each
    accountant: dp-accounting's search for noise makes a new one for every noise that it tries.
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
            self._warn(sys._getframe(1), _words(epsilon, delta), lambda curve: curve.epsilon(delta))
        return epsilon

    def get_delta(self, target_epsilon: float) -> float:
        """The delta that the heuristic predicts; 1 where a step has no noise."""
        if target_epsilon == math.inf:
            return self._history.delta(math.inf)
        epsilon = number("target_epsilon", target_epsilon, 0.0)
        delta = self._history.delta(epsilon)
        if delta < 1.0:
            self._warn(
                sys._getframe(1), f"delta {delta:.4g} at epsilon {epsilon:.4g}", lambda curve: curve.delta(epsilon)
            )
        return delta

    def _warn(self, caller: FrameType, answer: str, question: Callable[[PrivacyCurve], float]) -> None:
        line = (caller.f_code.co_filename, caller.f_lineno)
        if line not in _WARNED_AT and self._history.segments:
            _WARNED_AT.add(line)
            warnings.warn(self._history.caution(answer, question), HeuristicWarning, stacklevel=3)

    @property
    def _history(self) -> History:
        return History(tuple(self._steps.items()))

    def _maybe_compose(self, event: dp_accounting.DpEvent, count: int, do_compose: bool) -> Any:
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
                return self._unrelated(event) or self._maybe_step(event, 1.0, noise, count, do_compose)
            case dp_accounting.PoissonSampledDpEvent(
                sampling_probability=rate, event=dp_accounting.GaussianDpEvent(noise_multiplier=noise)
            ):
                return self._unrelated(event) or self._maybe_step(event, rate, noise, count, do_compose)
            case dp_accounting.PoissonSampledDpEvent(event=inner):
                found = f"Subevent of `PoissonSampledDpEvent` must be `GaussianDpEvent`. Found {inner}."
                return _Refusal(event, found)
            case _:
                return _Refusal(event, "Unsupported event.")

    def _maybe_step(self, event: dp_accounting.DpEvent, rate: Any, noise: Any, count: int, do_compose: bool) -> Any:
        try:
            step = Step(rate, noise)
        except ValueError as error:
            return _Refusal(event, str(error))
        if do_compose and count:
            self._steps[step] += count
        return None

    def _unrelated(self, event: dp_accounting.DpEvent) -> Any:
        if self.neighboring_relation in _RELATIONS:
            return None
        allowed = " or ".join(f"`{relation.name}`" for relation in _RELATIONS)
        found = f"for `{type(event).__name__}`. Found {self.neighboring_relation}."
        return _Refusal(event, f"neighboring_relation must be {allowed} {found}")


def register_opacus() -> None:
    """Make ``PrivacyEngine(accountant="last_iterate")`` known to Opacus. Doing so again changes nothing.

    ``make_private_with_epsilon`` then finds the noise for which the *heuristic* meets the target: the model is not
    guaranteed to be (epsilon, delta)-DP. The first answer of each accountant is a ``HeuristicWarning`` that says so.
    """
    accountant = _opacus_accountant()
    extra("opacus.accountants").register_accountant(accountant.mechanism(), accountant, force=True)


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

    def epsilon(self, delta: float) -> float:
        """The heuristic's epsilon for a delta in [0, 1], by dp-accounting's conventions at the ends."""
        if self._is_exposed:
            return math.inf
        law = self._law()
        if delta == 1.0 or law.high == 0.0:
            return 0.0
        return math.inf if delta == 0.0 else float(_curve(law).epsilon(delta))

    def delta(self, epsilon: float) -> float:
        """The heuristic's delta for an epsilon in [0, inf]."""
        return 1.0 if self._is_exposed else float(_curve(self._law()).delta(epsilon))

    def caution(self, answer: str, question: Callable[[PrivacyCurve], float]) -> str:
        """One sentence: the heuristic's answer is no guarantee, and what composition's is."""
        noises = {step.noise_multiplier for step, _ in self.segments}
        noise = f" at noise multiplier {min(noises):.4g}" if len(noises) == 1 else ""
        steps = f"{self._total:,} step{'s' if self._total > 1 else ''}{noise}"
        sentence = f"{answer} is what the last-iterate heuristic predicts for {steps}, not a guarantee: "
        if len({step for step, _ in self.segments}) > MOST_KINDS_OF_STEPS:
            return f"{sentence}that is composition's, which takes longer where steps differ (lastiterate.composition)"
        try:
            return f"{sentence}composition guarantees {question(composition(self.run())):.4g} if sampling is Poisson"
        except ValueError as refusal:
            return f"{sentence}that is composition's, which has no value here ({refusal})"

    def run(self) -> DPSGD:
        """The segments as one run: numbers where all steps are equal, arrays otherwise."""
        if not self.segments:
            raise ValueError("steps must be at least 1 to describe a run, got none: compose or train first")
        rates = self._per_step([step.sample_rate for step, _ in self.segments])
        noises = self._per_step([step.noise_multiplier for step, _ in self.segments])
        return DPSGD(steps=self._total, sample_rate=rates, noise_multiplier=noises)

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

    @property
    def _total(self) -> int:
        return sum(count for _, count in self.segments)

    @property
    def _is_exposed(self) -> bool:
        return any(step.is_exposed for step, _ in self.segments)


def _curve(law: Law) -> PrivacyCurve:
    return PrivacyCurve(pair_of(law), "last_iterate", is_guarantee=False)


@cache
def _opacus_accountant() -> Any:
    interface: Any = extra("opacus.accountants").IAccountant

    class OpacusLastIterateAccountant(interface):  # type: ignore[misc]
        """The last-iterate heuristic for Opacus: a prediction, not a guarantee."""

        def __init__(self) -> None:
            super().__init__()
            self._has_warned = False

        def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
            """Record one step."""
            noise, rate, count = self.history.pop() if self.history else (noise_multiplier, sample_rate, 0)
            if (noise, rate) == (noise_multiplier, sample_rate):
                self.history.append((noise, rate, count + 1))
            else:
                self.history.extend([(noise, rate, count), (noise_multiplier, sample_rate, 1)])

        def get_epsilon(self, delta: float, *args: Any, **kwargs: Any) -> float:
            """The epsilon that the heuristic predicts. Options of other accountants are ignored, as Opacus' own do."""
            history, delta = history_from_opacus(self.history), number("delta", delta, 0.0, 1.0)
            epsilon = history.epsilon(delta)
            is_answer = bool(self.history) and 0.0 < delta < 1.0 and math.isfinite(epsilon)
            if is_answer and not self._has_warned and not _is_only_tried(sys._getframe(1), epsilon):
                self._has_warned = True
                words = history.caution(_words(epsilon, delta), lambda curve: curve.epsilon(delta))
                warnings.warn(words, HeuristicWarning, stacklevel=2)
            return epsilon

        def __len__(self) -> int:
            return sum(count for _, _, count in self.history)

        @classmethod
        def mechanism(cls) -> str:
            """The name under which ``register_opacus`` registers it."""
            return "last_iterate"

    return OpacusLastIterateAccountant


def _is_only_tried(caller: FrameType, epsilon: float) -> bool:
    """Whether Opacus' search for noise asks, about a noise that it will not settle on.

    It asks one accountant about noise after noise, until epsilon is below its target by no more than its tolerance.
    """
    if caller.f_code.co_name != "get_noise_multiplier":
        return False
    target, tolerance = (caller.f_locals.get(name, math.inf) for name in ("target_epsilon", "epsilon_tolerance"))
    return not target - tolerance <= epsilon <= target


def _words(epsilon: float, delta: float) -> str:
    return f"epsilon {epsilon:.4g} at delta {delta:.4g}"


def history_from_opacus(history: list[tuple[float, float, int]]) -> History:
    """What an accountant of Opacus has recorded: noise multiplier, sample rate and number of steps."""
    return History(tuple((Step(rate, noise), integer("steps", count)) for noise, rate, count in history))


def extra(module: str) -> Any:
    """A module of the extra `opacus`."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(f'{module} could not be imported: pip install "lastiterate[opacus]"') from error
