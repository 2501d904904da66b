"""The heuristic as an accountant of Opacus."""

from __future__ import annotations

import math
import sys
import warnings
from functools import cache
from importlib import import_module
from types import FrameType, ModuleType
from typing import Any, TypeAlias

from lastiterate.extras import MissingExtra
from lastiterate.integrations.history import HeuristicWarning, History, Step, tell_epsilon
from lastiterate.values import integer, number

Foreign: TypeAlias = Any  # an object of Opacus or PyTorch, which need not be installed
_NAME = "last_iterate"  # PrivacyEngine(accountant=...)


def register_opacus() -> None:
    """Make ``PrivacyEngine(accountant="last_iterate")`` known to Opacus. Doing so again changes nothing.

    ``make_private_with_epsilon`` then finds the noise for which the *heuristic* meets the target: the model is not
    guaranteed to be (epsilon, delta)-DP. The first answer of each accountant is a ``HeuristicWarning`` that says so.
    """
    extra("opacus.accountants").register_accountant(_NAME, _opacus_accountant(), force=True)


@cache
def _opacus_accountant() -> type[object]:
    class OpacusLastIterateAccountant(extra("opacus.accountants").IAccountant):  # type: ignore[misc]
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

        def get_epsilon(self, delta: float, *args: object, **kwargs: object) -> float:
            """The epsilon that the heuristic predicts. Options of other accountants are ignored, as Opacus' own do."""
            history, delta = history_from_opacus(self.history), number("delta", delta, 0.0, 1.0)
            epsilon = history.epsilon(delta)
            is_answer = bool(self.history) and 0.0 < delta < 1.0 and math.isfinite(epsilon)
            if is_answer and not self._has_warned and not _is_only_tried(sys._getframe(1), epsilon):
                self._has_warned = True
                words = history.caution(tell_epsilon(epsilon, delta), lambda curve: curve.epsilon(delta))
                warnings.warn(words, HeuristicWarning, stacklevel=2)
            return epsilon

        def __len__(self) -> int:
            return sum(count for _, _, count in self.history)

        @classmethod
        def mechanism(cls) -> str:
            """The name under which ``register_opacus`` registers it."""
            return _NAME

    return OpacusLastIterateAccountant


def _is_only_tried(caller: FrameType, epsilon: float) -> bool:
    """Whether Opacus' search for noise asks, about a noise that it will not settle on.

    It asks one accountant about noise after noise, until epsilon is below its target by no more than its tolerance.
    """
    if caller.f_code.co_name != "get_noise_multiplier":
        return False
    target, tolerance = (caller.f_locals.get(name, math.inf) for name in ("target_epsilon", "epsilon_tolerance"))
    return not target - tolerance <= epsilon <= target


def history_from_opacus(history: list[tuple[float, float, int]]) -> History:
    """What an accountant of Opacus has recorded: noise multiplier, sample rate and number of steps."""
    return History(tuple((Step(rate, noise), integer("steps", count)) for noise, rate, count in history))


def extra(module: str) -> ModuleType:
    """A module of the extra `opacus`."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(f'{module} could not be imported: pip install "lastiterate[opacus]"') from error
