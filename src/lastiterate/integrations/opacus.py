"""The heuristic as an accountant of Opacus."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import FrameType, ModuleType
from typing import Any, TypeAlias

from lastiterate.extras import MissingExtra
from lastiterate.integrations.history import Drawing, HeuristicWarning, History, Step, tell_epsilon
from lastiterate.values import instance, integer, number

Foreign: TypeAlias = Any  # an object of Opacus or PyTorch, which need not be installed
_NAME = "last_iterate"  # PrivacyEngine(accountant=...)
_REFUSAL = (
    "accountant 'last_iterate' predicts and does not guarantee, so it does not set the noise: find the noise "
    "multiplier with accountant 'prv' or 'rdp' (opacus.accountants.utils.get_noise_multiplier) and give it to "
    "make_private, or ask for noise by the heuristic with lastiterate.register_opacus(calibrate_by_heuristic=True)"
)


def register_opacus(*, calibrate_by_heuristic: bool = False) -> None:
    """Make ``PrivacyEngine(accountant="last_iterate")`` known to Opacus. The last call counts.

    The accountant predicts. The first answer of each accountant is a ``HeuristicWarning`` that states the guarantee.
    ``make_private_with_epsilon`` is refused: its noise would not guarantee the target epsilon. With
    ``calibrate_by_heuristic`` it finds the noise for which the heuristic *predicts* the target epsilon.
    """
    chosen = instance("calibrate_by_heuristic", calibrate_by_heuristic, bool, "True or False")
    extra("opacus.accountants").register_accountant(_NAME, _opacus_accountant(chosen), force=True)


@cache
def _opacus_accountant(calibrates: bool) -> type[object]:
    class OpacusLastIterateAccountant(extra("opacus.accountants").IAccountant):  # type: ignore[misc]
        """The last-iterate heuristic for Opacus: a prediction, not a guarantee."""

        def __init__(self) -> None:
            super().__init__()
            self._has_warned = False
            self._sampling: Drawing | None = None

        @property
        def history(self) -> list[tuple[float, float, int]]:
            """Noise multiplier, sample rate and number of steps, of each stretch of equal steps."""
            return self._history

        @history.setter
        def history(self, history: list[tuple[float, float, int]]) -> None:
            """Opacus' search for noise assigns a history. A training records steps, or loads a state."""
            self._history, self._is_trial = history, bool(history)

        def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Foreign], None]:
            """As Opacus', and note how the loader draws its batches."""
            self._note(_sampling_of(sys._getframe(1)))
            hook: Callable[[Foreign], None] = super().get_optimizer_hook_fn(sample_rate)
            return hook

        def state_dict(self, destination: Foreign = None) -> Foreign:
            """As Opacus', with how batches were drawn."""
            state = super().state_dict(destination)
            state["sampling"] = self._sampling
            return state

        def load_state_dict(self, state_dict: Foreign) -> None:
            """As Opacus'."""
            super().load_state_dict(state_dict)
            self._is_trial = False
            self._note(state_dict.get("sampling"))

        def _note(self, sampling: Drawing | None) -> None:
            """Remember how batches are drawn; batches that are drawn in two ways are drawn in another one."""
            if sampling is not None:
                self._sampling = sampling if self._sampling in (None, sampling) else "other"

        def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
            """Record one step."""
            self._is_trial = False
            noise, rate, count = self.history.pop() if self.history else (noise_multiplier, sample_rate, 0)
            if (noise, rate) == (noise_multiplier, sample_rate):
                self.history.append((noise, rate, count + 1))
            else:
                self.history.extend([(noise, rate, count), (noise_multiplier, sample_rate, 1)])

        def get_epsilon(self, delta: float, *args: object, **kwargs: object) -> float:
            """The epsilon that the heuristic predicts. Options of other accountants are ignored, as Opacus' own do."""
            if self._is_trial and not calibrates:
                raise ValueError(_REFUSAL)
            history, delta = history_from_opacus(self.history), number("delta", delta, 0.0, 1.0)
            epsilon = history.epsilon(delta)
            is_answer = bool(self.history) and 0.0 < delta < 1.0 and math.isfinite(epsilon)
            caller = sys._getframe(1)
            if is_answer and not self._has_warned and not _is_only_tried(caller, epsilon):
                self._has_warned = True
                sampling = self._sampling or (_sampling_of(caller.f_back) if self._is_trial else None)
                words = history.caution(tell_epsilon(epsilon, delta), lambda curve: curve.epsilon(delta), sampling)
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


def _sampling_of(caller: FrameType | None) -> Drawing | None:
    """How the loader draws its batches that a method of Opacus' engine, which calls, was given; None: nobody knows."""
    given = caller.f_locals if caller else {}
    if not {"data_loader", "poisson_sampling"} <= given.keys():
        return None
    if given["poisson_sampling"]:
        return "poisson"
    from lastiterate.integrations.opacus_run import read_loader

    try:
        return "shuffled" if read_loader(given["data_loader"]).sampling == "shuffled" else "other"
    except ValueError:
        return "other"


def history_from_opacus(history: list[tuple[float, float, int]]) -> History:
    """What an accountant of Opacus has recorded: noise multiplier, sample rate and number of steps."""
    return History(tuple((Step(rate, noise), integer("steps", count)) for noise, rate, count in history))


def extra(module: str) -> ModuleType:
    """A module of the extra `opacus`."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(f'{module} could not be imported: pip install "lastiterate[opacus]"') from error
