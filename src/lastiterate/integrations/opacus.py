"""The last-iterate heuristic as an accountant of Opacus, and gradient canaries in a training with Opacus."""

from __future__ import annotations

import math
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from types import FrameType, ModuleType

from lastiterate.common.errors import MissingExtra, install_hint
from lastiterate.common.trees import ForeignTree
from lastiterate.common.types import Foreign
from lastiterate.common.validation import instance, integer, number
from lastiterate.integrations.gradient_canary import PlantedGradient
from lastiterate.integrations.history import Drawing, HeuristicWarning, History, Step, tell_epsilon

_NAME = "last_iterate"  # PrivacyEngine(accountant=...)
_REFUSAL = (
    "accountant 'last_iterate' predicts epsilon without a guarantee, so it does not set the noise: find the noise "
    "multiplier with accountant 'prv' or 'rdp' (opacus.accountants.utils.get_noise_multiplier) and give it to "
    "make_private, or allow noise by the heuristic with lastiterate.register_opacus(calibrate_by_heuristic=True)"
)


def register_opacus(*, calibrate_by_heuristic: bool = False) -> None:
    """Register the accountant of ``PrivacyEngine(accountant="last_iterate")`` with Opacus.

    The accountant predicts epsilon. Its first answer comes with a ``HeuristicWarning`` that states the guarantee.
    ``make_private_with_epsilon`` raises an error, because its noise would not guarantee the target epsilon. If
    ``calibrate_by_heuristic`` is true, it chooses the noise at which the heuristic *predicts* the target epsilon.
    A later call of this function replaces the setting of an earlier one.
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
            return self._history

        @history.setter
        def history(self, history: list[tuple[float, float, int]]) -> None:
            """Set the history. Only Opacus' search for noise assigns a history that is not empty."""
            self._history, self._is_trial = history, bool(history)

        def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Foreign], None]:
            """Return Opacus' own hook, and remember how the loader draws its batches."""
            self._note(_sampling_of(sys._getframe(1)))
            hook: Callable[[Foreign], None] = super().get_optimizer_hook_fn(sample_rate)
            return hook

        def state_dict(self, destination: Foreign = None) -> Foreign:
            state = super().state_dict(destination)
            state["sampling"] = self._sampling
            return state

        def load_state_dict(self, state_dict: Foreign) -> None:
            super().load_state_dict(state_dict)
            self._is_trial = False
            self._note(state_dict.get("sampling"))

        def _note(self, sampling: Drawing | None) -> None:
            if sampling is not None:
                self._sampling = sampling if self._sampling in (None, sampling) else "other"

        def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
            self._is_trial = False
            noise, rate, count = self.history.pop() if self.history else (noise_multiplier, sample_rate, 0)
            if (noise, rate) == (noise_multiplier, sample_rate):
                self.history.append((noise, rate, count + 1))
            else:
                self.history.extend([(noise, rate, count), (noise_multiplier, sample_rate, 1)])

        def get_epsilon(self, delta: float, *args: object, **kwargs: object) -> float:
            """Return the epsilon that the heuristic predicts. Options for other accountants are ignored."""
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
            return _NAME

    return OpacusLastIterateAccountant


def _is_only_tried(caller: FrameType, epsilon: float) -> bool:
    """Return whether the caller is Opacus' search for noise, and will go on searching."""
    if caller.f_code.co_name != "get_noise_multiplier":
        return False
    target, tolerance = (caller.f_locals.get(name, math.inf) for name in ("target_epsilon", "epsilon_tolerance"))
    return not target - tolerance <= epsilon <= target


def _sampling_of(caller: FrameType | None) -> Drawing | None:
    """Return the sampling of the data loader that the caller, a method of Opacus' engine, has. None means unknown."""
    given = caller.f_locals if caller else {}
    if not {"data_loader", "poisson_sampling"} <= given.keys():
        return None
    if given["poisson_sampling"]:
        return "poisson"
    from lastiterate.integrations.opacus_run import read_loader

    try:
        drawn = read_loader(given["data_loader"]).sampling
        return drawn if drawn in ("shuffled", "balls-in-bins") else "other"
    except ValueError:
        return "other"


def history_from_opacus(history: list[tuple[float, float, int]]) -> History:
    """Convert an Opacus accountant's record of (noise multiplier, sample rate, number of steps)."""
    return History(tuple((Step(rate, noise), integer("steps", count)) for noise, rate, count in history))


def extra(module: str) -> ModuleType:
    """Import a module of the extra ``opacus``, or raise ``MissingExtra``."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{module} could not be imported: {install_hint('opacus')}") from error


# Gradient canary: ``loader = plant(canary, module, optimizer, loader)`` after ``make_private``.

_PREFIX = "_module."  # prefix of parameter names in Opacus' wrapper around the module
_KEPT = ["collate_fn", "generator", "multiprocessing_context", "num_workers", "persistent_workers", "pin_memory"]
_KEPT += ["prefetch_factor", "timeout", "worker_init_fn"]


def plant(canary: ForeignTree, module: ForeignTree, optimizer: ForeignTree, loader: ForeignTree) -> ForeignTree:
    """Return the loader to train with, and change the optimizer so that it plants the canary before it clips.

    The canary takes the place of the last example of the loader's data (see ``gradient_canary``): if that example is
    drawn, its row of every ``grad_sample`` becomes the canary.

    Args:
        canary: False, or a gradient for every trained parameter, by its name.
        module, optimizer, loader: the values that ``make_private`` returned. Inside a ``BatchMemoryManager`` pass the
            manager's loader.
    """
    if not hasattr(optimizer, "clip_and_accumulate") or hasattr(optimizer, "accumulate"):
        raise ValueError(
            f"optimizer must be Opacus' DPOptimizer, which sees the gradients of all examples, got "
            f"{type(optimizer).__name__}: make_private(grad_sample_mode='hooks') returns one"
        )
    if getattr(loader, "batch_sampler", None) is None:
        raise ValueError(f"loader must be the DataLoader that make_private returned, got {type(loader).__name__}")
    if not hasattr(module, "named_parameters"):
        raise ValueError(f"module must be the one that make_private returned, got {type(module).__name__}")
    names = {parameter: name.removeprefix(_PREFIX) for name, parameter in module.named_parameters()}
    planted = PlantedGradient(canary, len(loader.dataset) - 1)
    batches = _watched(loader.batch_sampler, planted)
    clip = optimizer.clip_and_accumulate

    def clip_and_accumulate() -> None:
        _put(planted, {names[p]: p for p in optimizer.params}, batches.pending)
        clip()

    optimizer.clip_and_accumulate = clip_and_accumulate
    return extra("torch.utils.data").DataLoader(loader.dataset, batch_sampler=batches, **kept_of(loader))


def kept_of(loader: ForeignTree) -> dict[str, ForeignTree]:
    """Return the attributes of a loader to keep when its sampler is replaced."""
    instance("loader", loader, extra("torch.utils.data").DataLoader, "a torch DataLoader")
    return {name: getattr(loader, name) for name in _KEPT}


def _watched(batch_sampler: ForeignTree, planted: PlantedGradient) -> ForeignTree:
    """Return a sampler that remembers its batches. Without a canary, it leaves out the canary's place."""

    class Watched(extra("torch.utils.data").Sampler):  # type: ignore[misc]
        def __init__(self) -> None:
            self.pending: deque[list[int]] = deque()

        def __iter__(self) -> Iterator[list[int]]:
            self.pending.clear()
            for drawn in batch_sampler:
                # A batch that would be empty keeps its example, with zero gradient: some loaders fail on empty batches.
                batch = planted.batch(list(drawn)) or list(drawn)
                self.pending.append(batch)
                yield batch

        def __len__(self) -> int:
            return len(batch_sampler)

    return Watched()


def _put(planted: PlantedGradient, parameters: dict[str, ForeignTree], pending: deque[list[int]]) -> None:
    torch = extra("torch")
    accumulated = {name: p.grad_sample for name, p in parameters.items()}
    accumulated = {name: sample if isinstance(sample, list) else [sample] for name, sample in accumulated.items()}
    for part, rows in enumerate(next(iter(accumulated.values()))):
        batch = pending.popleft() if pending else []
        if len(batch) > len(rows) > 0:  # a training that computes the batch in parts
            pending.appendleft(batch[len(rows) :])
            batch = batch[: len(rows)]
        if len(batch) != len(rows):
            raise ValueError(
                f"loader must be the one that plant returned, with one gradient for each example: the optimizer has "
                f"gradients of {len(rows)} examples, and the batch had {len(batch)}"
            )
        samples = {name: sample[part] for name, sample in accumulated.items()}
        for name, sample in planted.gradients(samples, torch.tensor(batch, dtype=torch.long)).items():
            samples[name].copy_(sample)
