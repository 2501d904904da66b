"""DP-SGD on a language model: Algorithm 1 of the paper, or Adam's update with the same noisy sum of gradients.

Sums, noise and the parameters between steps are in float32. The model computes in its own precision, such as bfloat16.
Released parameters are rounded to this precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lastiterate.common.errors import TrainingDiverged
from lastiterate.common.types import IntArray
from lastiterate.lm.example_gradients import ExampleGradients, Tensors
from lastiterate.optimizer import Optimizer, is_adam
from lastiterate.run import DPSGD
from lastiterate.supported_runs import TRAINER, require_supported
from lastiterate.trainers.batch_order import batch_order, drawn_batches

# Gaussian noise: large models have several random streams, each for a range of entries. The number of streams depends
# only on the model, so the noise is the same on any number of cores.

_STRETCH = 2**20  # entries per stream
_MOST_STREAMS = 64
_AT_ONCE = 2**15 - 1  # entries drawn at once, few enough for a core's cache; PyTorch starts threads from 2^15 on


def streams(total: int, device: torch.device, draws: np.random.Generator) -> list[torch.Generator]:
    """Return random streams for a model with ``total`` entries, on its device."""
    count = min(max(total // _STRETCH, 1), _MOST_STREAMS) if device.type == "cpu" else 1
    seeds = draws.integers(2**63, size=count)
    while len(np.unique(seeds % 2**32)) < count:  # PyTorch's CPU generator uses only 32 bits of a seed
        seeds = draws.integers(2**63, size=count)
    return [torch.Generator(device).manual_seed(int(seed)) for seed in seeds]


def add_noise(total: dict[str, Tensor], generators: Sequence[torch.Generator], scale: float) -> None:
    """Add independent normals times ``scale`` to every entry."""
    if len(generators) == 1:
        (generator,) = generators
        drawn = torch.empty(max((value.numel() for value in total.values()), default=0), device=generator.device)
        for value in total.values():
            value.add_(drawn[: value.numel()].view(value.shape).normal_(generator=generator), alpha=scale)
        return
    for name, value in total.items():
        total[name] = value.contiguous()
    flat = [value.view(-1) for value in total.values()]
    entries = sum(map(len, flat))
    ends = [entries * stream // len(generators) for stream in range(len(generators) + 1)]

    def add(stream: int) -> None:
        drawn = torch.empty(_AT_ONCE)
        for piece in _pieces(flat, ends[stream], ends[stream + 1]):
            piece.add_(drawn[: len(piece)].normal_(generator=generators[stream]), alpha=scale)

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(add, range(len(generators))))


def _pieces(flat: Sequence[Tensor], begin: int, end: int) -> Iterator[Tensor]:
    before = 0
    for value in flat:
        first, last = max(begin - before, 0), min(end - before, len(value))
        for at in range(first, last, _AT_ONCE):
            yield value[at : min(at + _AT_ONCE, last)]
        before += len(value)


Watched = Callable[[int, list[Tensor]], None]


class TextTrainer:
    """A trainer of language models that all start from the same parameters."""

    def __init__(
        self, run: DPSGD, gradients: ExampleGradients, start: Tensors, tokens: Tensor, lengths: Tensor
    ) -> None:
        require_supported(run, TRAINER)
        assert run.optimizer is not None
        self._run, self._optimizer, self._gradients, self._start = run, run.optimizer, gradients, start
        self._tokens, self._lengths = tokens, lengths
        self._rates = np.broadcast_to(np.asarray(self._optimizer.learning_rate, float), run.steps)
        self._scales = np.broadcast_to(np.asarray(run.noise_multiplier, float), run.steps) * run.clip_norm

    def train(
        self,
        canaries: Sequence[Tensor],
        present: Sequence[bool],
        seed: Sequence[int],
        advanced: Callable[[], None] | None = None,
        on_release: Callable[[Tensors], None] | None = None,
        watched: Watched | None = None,
    ) -> Tensors:
        """Train one model on the examples and the canaries that are present, and return its last iterate.

        ``on_release`` is called with each released iterate. ``watched`` is called after each step, counted from 1, with
        Adam's second moments.
        """
        draws, generators = np.random.default_rng([*seed, 0]), self._streams([*seed, 1])
        tokens, lengths = _appended(self._tokens, self._lengths, canaries)
        here = np.append(np.ones(len(self._tokens), bool), np.asarray(present, bool))
        weights = _Weights(self._optimizer, self._start)
        releases = set(self._run.released_steps()[:-1].tolist()) if on_release else set()
        for step, batch in enumerate(batches(self._run, len(here), draws)):
            rows = torch.as_tensor(batch[here[batch]], device=self._tokens.device)
            current = {name: value.to(self._start[name].dtype) for name, value in weights.parameters.items()}
            total = self._gradients.clipped_sum(current, tokens[rows], lengths[rows], self._run.clip_norm)
            self._add_noise(total, step, seed, generators)
            weights.update(total, float(self._rates[step]), step)
            del total  # free memory before the next sum
            if watched:
                watched(step + 1, weights.second)
            if advanced:
                advanced()
            if on_release and step + 1 in releases:
                on_release(self._released(weights))
        released = self._released(weights)
        # If the sum is finite, so are all entries. Otherwise each entry is checked.
        if not all(value.sum(dtype=torch.float32).isfinite() or value.isfinite().all() for value in released.values()):
            rate = float(self._rates.max())
            raise TrainingDiverged(f"learning_rate must be small enough for training to stay finite, got {rate:g}")
        if on_release:
            on_release(released)
        return released

    def _released(self, weights: _Weights) -> Tensors:
        return {name: value.to(self._start[name].dtype) for name, value in weights.released.items()}

    def _add_noise(self, total: Tensors, step: int, seed: Sequence[int], generators: list[torch.Generator]) -> None:
        coefficients = self._run.noise_filter
        if coefficients is None:
            return add_noise(total, generators, float(self._scales[step]))
        # Noise of earlier steps is drawn again from its seed, because models may be too large to keep it.
        for drawn in range(step, max(step - len(coefficients), -1), -1):
            scale = coefficients[step - drawn] * self._scales[drawn]
            add_noise(total, self._streams([*seed, 1, drawn]), float(scale))

    def _streams(self, seed: Sequence[int]) -> list[torch.Generator]:
        entries = sum(value.numel() for value in self._start.values())
        return streams(entries, self._tokens.device, np.random.default_rng(seed))


class _Weights:
    """Parameters in float32, the state of their optimizer, and the iterate that would be released now."""

    def __init__(self, optimizer: Optimizer, start: Tensors) -> None:
        self._optimizer = optimizer
        self.parameters = {name: value.to(torch.float32, copy=True) for name, value in start.items()}
        self._torch = _torch_optimizer(optimizer, list(self.parameters.values()))
        self.released = self.parameters
        if optimizer.averaging is not None:
            self.released = {name: value.clone() for name, value in self.parameters.items()}

    def update(self, gradient: Tensors, learning_rate: float, step: int) -> None:
        self._torch.param_groups[0]["lr"] = learning_rate
        for name, value in self.parameters.items():
            value.grad = gradient[name]
            if self._optimizer.decoupled and not self._optimizer.is_adaptive:  # Adam decays weights itself
                value.mul_(1.0 - learning_rate * self._optimizer.weight_decay)
        self._torch.step()
        for value in self.parameters.values():
            value.grad = None  # frees memory while the next gradient is computed
        if self._optimizer.averaging is not None:
            averaging = self._optimizer.averaging
            taken = 1.0 / (step + 1) if averaging == "uniform" else 1.0 - float(averaging)
            for name, value in self.released.items():
                value.lerp_(self.parameters[name], taken)

    @property
    def second(self) -> list[Tensor]:
        return [self._torch.state[value]["exp_avg_sq"] for value in self.parameters.values()]


def _torch_optimizer(optimizer: Optimizer, parameters: list[Tensor]) -> torch.optim.Optimizer:
    if is_adam(optimizer):
        kind = torch.optim.AdamW if optimizer.decoupled else torch.optim.Adam
        betas, decay = (optimizer.beta1, optimizer.beta2), optimizer.weight_decay
        return kind(parameters, lr=1.0, betas=betas, eps=optimizer.eps, weight_decay=decay)
    decay = 0.0 if optimizer.decoupled else optimizer.weight_decay
    momentum: Any = {"momentum": optimizer.momentum, "dampening": optimizer.dampening, "nesterov": optimizer.nesterov}
    return torch.optim.SGD(parameters, lr=1.0, weight_decay=decay, **momentum)


def batches(run: DPSGD, slots: int, draws: np.random.Generator) -> Iterator[IntArray]:
    """Yield the slots in the batch of each step. An absent canary also has a slot. It is ignored."""
    if run.sampling in ("poisson", "truncated-poisson", "balls-in-bins"):
        yield from drawn_batches(run, slots, draws)
        return
    plan = batch_order(run, slots)
    order = np.arange(slots)
    for step, (begin, size) in enumerate(zip(plan.begins, plan.sizes, strict=True)):
        if plan.steps_per_order is not None and step % plan.steps_per_order == 0:
            order = draws.permutation(slots)
        yield order[begin : begin + size]


def _appended(tokens: Tensor, lengths: Tensor, canaries: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    if not canaries:
        return tokens, lengths
    sizes = [len(canary) for canary in canaries]
    width = max(tokens.shape[1], *sizes)
    added = tokens.new_zeros(len(canaries), width)
    for row, canary in zip(added, canaries, strict=True):
        row[: len(canary)] = canary
    padded = torch.nn.functional.pad(tokens, (0, width - tokens.shape[1]))
    return torch.cat([padded, added]), torch.cat([lengths, lengths.new_tensor(sizes)])
