"""The last-iterate heuristic as an accountant of dp-accounting.

Users of accountants expect guarantees, so the first answer warns and states the guarantee of composition.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import TypeAlias

from lastiterate.common.errors import BadArgument, MissingExtra, not_installed
from lastiterate.common.validation import instance, integer, number
from lastiterate.formatting import spell_exact, spell_up
from lastiterate.integrations.history import HeuristicWarning, History, Step, tell_epsilon
from lastiterate.mechanism import Neighbours
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.run import DPSGD

try:
    import dp_accounting
    from dp_accounting import NeighboringRelation
except ImportError as error:
    raise MissingExtra(not_installed("LastIterateAccountant", "dp-accounting", "accounting")) from error


# Lines of code that have received a warning, each with the composed steps.
_WARNED_AT: set[tuple[str, int, frozenset[tuple[Step, int]] | None]] = set()
_NEIGHBOURS: dict[NeighboringRelation, Neighbours] = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "add-remove",
    NeighboringRelation.REPLACE_SPECIAL: "zero-out",
    NeighboringRelation.REPLACE_ONE: "replace",
}
_Refusal: TypeAlias = dp_accounting.PrivacyAccountant.CompositionErrorDetails


def run_from_event(
    event: dp_accounting.DpEvent, neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE
) -> DPSGD:
    """Return the run whose steps an event describes.

    Besides the events of ``LastIterateAccountant``, truncated Poisson sampling is read, with or without
    ``SelfComposedDpEvent`` around it. dp-accounting has no event for balls in bins, also called random allocation.
    """
    truncated = getattr(dp_accounting, "TruncatedSubsampledGaussianDpEvent", ())  # since 0.6
    accountant = LastIterateAccountant(neighboring_relation)
    inner, steps = instance("event", event, dp_accounting.DpEvent, "a DpEvent of dp-accounting"), 1
    while isinstance(inner, dp_accounting.SelfComposedDpEvent):
        inner, steps = inner.event, steps * integer("count", inner.count)
    if not isinstance(inner, truncated):
        accountant.compose(event)
        return accountant.run
    return DPSGD(
        *(steps, inner.sampling_probability, inner.noise_multiplier, "truncated-poisson"),
        neighbours=_NEIGHBOURS[neighboring_relation],
        max_batch_size=inner.truncated_batch_size,
        dataset_size=inner.dataset_size,
    )


class LastIterateAccountant(dp_accounting.PrivacyAccountant):  # type: ignore[misc]
    """The last-iterate heuristic as a ``dp_accounting.PrivacyAccountant``: a prediction, not a guarantee.

    The composed events are the steps of one DP-SGD run that releases only its last iterate, and the losses are assumed
    to be linear. The epsilon is therefore usually smaller than with dp-accounting's own accountants, which bound what
    any attack can learn from all iterates.

    Gaussian events, with or without Poisson sampling, are composed in any nesting. A non-private event makes epsilon
    infinite. All other events are refused.

    A ``HeuristicWarning`` states the guarantee of composition, once for each calling line and run. It appears only once
    in dp-accounting's own search for the noise multiplier, which tries many runs.
    """

    def __init__(self, neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE) -> None:
        allowed = ", ".join(f"NeighboringRelation.{each.name}" for each in _NEIGHBOURS)
        relation = instance("neighboring_relation", neighboring_relation, NeighboringRelation, f"one of {allowed}")
        if relation not in _NEIGHBOURS:
            raise BadArgument("neighboring_relation", f"must be one of {allowed}, got {relation}")
        super().__init__(relation)
        self._steps: Counter[Step] = Counter()

    @property
    def run(self) -> DPSGD:
        """The run of the composed events. Equal steps form groups, in the order in which they were first composed."""
        return self._history.run()

    def get_epsilon(self, target_delta: float) -> float:
        """Return the epsilon that the heuristic predicts. It is infinite if a step has no noise."""
        delta = number("target_delta", target_delta, 0.0, 1.0)
        epsilon = self._history.epsilon(delta)
        if 0.0 < delta < 1.0 and math.isfinite(epsilon):
            self._warn(sys._getframe(1), tell_epsilon(epsilon, delta), lambda curve: curve.epsilon(delta))
        return epsilon

    def get_delta(self, target_epsilon: float) -> float:
        """Return the delta that the heuristic predicts. It is 1 if a step has no noise."""
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
