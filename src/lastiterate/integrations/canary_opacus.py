"""A gradient canary in a training by Opacus: one line, after ``make_private``.

    module, optimizer, loader = PrivacyEngine().make_private(...)
    loader = plant(canary, module, optimizer, loader)

Opacus' own loader draws the canary and Opacus' own optimizer clips it. The last example of the loader's data gives up
its place (see `canary`): drawn, its row of every ``grad_sample`` becomes the canary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from lastiterate.integrations.canary import Foreign, PlantedGradient
from lastiterate.integrations.opacus import extra

_PREFIX = "_module."  # of Opacus' wrapper around the module
# Of a loader, when its sampler becomes another.
_KEPT = ["collate_fn", "generator", "multiprocessing_context", "num_workers", "persistent_workers", "pin_memory"]
_KEPT += ["prefetch_factor", "timeout", "worker_init_fn"]


def plant(canary: Foreign, module: Foreign, optimizer: Foreign, loader: Foreign) -> Foreign:
    """The loader to train with, whose batches have the canary in them when it is drawn.

    Args:
        canary: False, or a gradient for every parameter that is trained, by its name.
        module, optimizer, loader: what ``make_private`` returned. The optimizer is changed: it plants the canary before
            it clips. Inside of a ``BatchMemoryManager`` pass the loader that it gave.
    """
    if not hasattr(optimizer, "clip_and_accumulate") or hasattr(optimizer, "accumulate"):
        raise ValueError(
            f"optimizer must be Opacus' DPOptimizer, which sees the gradients of all examples, got "
            f"{type(optimizer).__name__}: make_private(grad_sample_mode='hooks') makes one"
        )
    if getattr(loader, "batch_sampler", None) is None:
        raise ValueError(f"loader must be the DataLoader that make_private returned, got {type(loader).__name__}")
    if not hasattr(module, "named_parameters"):
        raise ValueError(f"module must be the one that make_private returned, got {type(module).__name__}")
    names = {parameter: name.removeprefix(_PREFIX) for name, parameter in module.named_parameters()}
    planted = PlantedGradient(canary, len(loader.dataset) - 1)
    batches = _watched(loader.batch_sampler, planted)
    _before_clipping(optimizer, lambda: _put(planted, {names[p]: p for p in optimizer.params}, batches.pending))
    return extra("torch.utils.data").DataLoader(
        loader.dataset, batch_sampler=batches, **{name: getattr(loader, name) for name in _KEPT}
    )


def _watched(batch_sampler: Foreign, planted: PlantedGradient) -> Foreign:
    """The sampler, which leaves out the place if there is no canary, and remembers what it has drawn."""

    class Watched(extra("torch.utils.data").Sampler):  # type: ignore[misc]
        def __init__(self) -> None:
            self.pending: deque[list[int]] = deque()

        def __iter__(self) -> Iterator[list[int]]:
            self.pending.clear()
            for drawn in batch_sampler:
                # A batch that would be empty keeps its example, with a gradient of zero: some loaders cannot make one.
                batch = planted.batch(list(drawn)) or list(drawn)
                self.pending.append(batch)
                yield batch

        def __len__(self) -> int:
            return len(batch_sampler)

    return Watched()


def _before_clipping(optimizer: Foreign, put: Callable[[], None]) -> None:
    clip = optimizer.clip_and_accumulate

    def clip_and_accumulate() -> None:
        put()
        clip()

    optimizer.clip_and_accumulate = clip_and_accumulate


def _put(planted: PlantedGradient, parameters: dict[str, Foreign], pending: deque[list[int]]) -> None:
    """Plant the canary in the gradients that are about to be clipped: of one batch, or of several that add up."""
    torch = extra("torch")
    first = next(iter(parameters.values())).grad_sample
    for part, rows in enumerate(first if isinstance(first, list) else [first]):
        batch = pending.popleft() if pending else []
        if len(batch) != len(rows):
            raise ValueError(
                f"loader must be the one that plant returned, and of every batch one step: the optimizer has gradients "
                f"of {len(rows)} examples, and the batch had {len(batch)}"
            )
        samples = {name: _part(parameter.grad_sample, part) for name, parameter in parameters.items()}
        for name, sample in planted.gradients(samples, torch.tensor(batch, dtype=torch.long)).items():
            samples[name].copy_(sample)


def _part(sample: Foreign, part: int) -> Foreign:
    return sample[part] if isinstance(sample, list) else sample
