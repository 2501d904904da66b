"""DP-SGD on a language model: Algorithm 1 of the paper, whose step is

    theta <- theta - eta (sum of clipped gradients over the batch + sigma C N(0, I))

Sums, noise and the parameters between steps are in float32. The model computes in its own precision, and what is
released is rounded to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from lastiterate.arrays import IntArray
from lastiterate.batch_order import batch_order
from lastiterate.lm.gradients import ExampleGradients, Tensors
from lastiterate.lm.noise import add_noise
from lastiterate.optimizer import SGD
from lastiterate.run import DPSGD, require_run
from lastiterate.training_diverged import TrainingDiverged


class TextTrainer:
    """Trains language models that begin with the same parameters, one after the other.

    Args:
        start: the parameters that are trained, in the precision in which the model computes.
        tokens: the examples, padded on the right, [examples, length].
        lengths: how many tokens each example has.
    """

    def __init__(
        self, run: DPSGD, gradients: ExampleGradients, start: Tensors, tokens: Tensor, lengths: Tensor
    ) -> None:
        require_run(run)
        if run.optimizer is None:
            raise ValueError("run must have an optimizer to be trained: optimizer=lastiterate.SGD(...)")
        self._run, self._optimizer, self._gradients, self._start = run, run.optimizer, gradients, start
        self._tokens, self._lengths = tokens, lengths
        self._rates = np.broadcast_to(np.asarray(self._optimizer.learning_rate, float), run.steps)
        self._noise = np.broadcast_to(np.asarray(run.noise_multiplier, float), run.steps) * run.clip_norm

    def train(
        self,
        canaries: Sequence[Tensor],
        present: Sequence[bool],
        seed: Sequence[int],
        advanced: Callable[[], None] | None = None,
        on_release: Callable[[Tensors], None] | None = None,
    ) -> Tensors:
        """Train one model on the examples and on those canaries that are present, and return its last iterate.

        ``on_release`` is called with each iterate that the run releases, the last one included.
        """
        draws = np.random.default_rng([*seed, 0])
        device = self._tokens.device
        noise = torch.Generator(device).manual_seed(int(np.random.default_rng([*seed, 1]).integers(2**63)))
        tokens, lengths = _appended(self._tokens, self._lengths, canaries)
        here = np.append(np.ones(len(self._tokens), bool), np.asarray(present, bool))
        weights = _Weights(self._optimizer, self._start)
        releases = set(self._run.released_steps()[:-1].tolist()) if on_release else set()
        for step, batch in enumerate(batches(self._run, len(here), draws)):
            rows = torch.as_tensor(batch[here[batch]], device=device)
            current = {name: value.to(self._start[name].dtype) for name, value in weights.parameters.items()}
            total = self._gradients.clipped_sum(current, tokens[rows], lengths[rows], self._run.clip_norm)
            add_noise(total, noise, float(self._noise[step]))
            weights.update(total, float(self._rates[step]), step)
            if advanced:
                advanced()
            if on_release and step + 1 in releases:
                on_release(self._released(weights))
        released = self._released(weights)
        if not all(torch.isfinite(value).all() for value in released.values()):
            rate = float(self._rates.max())
            raise TrainingDiverged(f"learning_rate must be small enough for training to stay finite, got {rate:g}")
        if on_release:
            on_release(released)
        return released

    def _released(self, weights: _Weights) -> Tensors:
        """In the precision of the model."""
        return {name: value.to(self._start[name].dtype) for name, value in weights.released.items()}


class _Weights:
    """Parameters in float32, what their optimizer remembers, and what would be released by now."""

    def __init__(self, optimizer: SGD, start: Tensors) -> None:
        self._sgd = optimizer
        self.parameters = {name: value.float().clone() for name, value in start.items()}
        coupled = 0.0 if optimizer.decoupled else optimizer.weight_decay
        self._torch = torch.optim.SGD(
            list(self.parameters.values()),
            lr=1.0,
            momentum=optimizer.momentum,
            dampening=optimizer.dampening,
            nesterov=optimizer.nesterov,
            weight_decay=coupled,
        )
        self.released = self.parameters
        if optimizer.averaging is not None:
            self.released = {name: value.clone() for name, value in self.parameters.items()}

    def update(self, gradient: Tensors, learning_rate: float, step: int) -> None:
        self._torch.param_groups[0]["lr"] = learning_rate
        for name, value in self.parameters.items():
            value.grad = gradient[name]
            if self._sgd.decoupled:
                value.mul_(1.0 - learning_rate * self._sgd.weight_decay)
        self._torch.step()
        if self._sgd.averaging is not None:
            taken = 1.0 / (step + 1) if self._sgd.averaging == "uniform" else 1.0 - float(self._sgd.averaging)
            for name, value in self.released.items():
                value.lerp_(self.parameters[name], taken)


def batches(run: DPSGD, slots: int, draws: np.random.Generator) -> Iterator[IntArray]:
    """The slots in the batch of each step. A canary has a slot in both worlds; in the world "out" it is empty."""
    rates = np.broadcast_to(np.asarray(run.sample_rate, float), run.steps)
    if run.sampling == "poisson":
        for rate in rates:
            yield np.flatnonzero(draws.random(slots) < rate)
        return
    plan = batch_order(run, slots)
    order = np.arange(slots)
    for step, (begin, size) in enumerate(zip(plan.begins, plan.sizes, strict=True)):
        if plan.steps_per_order is not None and step % plan.steps_per_order == 0:
            order = draws.permutation(slots)
        yield order[begin : begin + size]


def _appended(tokens: Tensor, lengths: Tensor, canaries: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The examples followed by the canaries."""
    if not canaries:
        return tokens, lengths
    sizes = [len(canary) for canary in canaries]
    width = max(tokens.shape[1], *sizes)
    added = tokens.new_zeros(len(canaries), width)
    for row, canary in zip(added, canaries, strict=True):
        row[: len(canary)] = canary
    padded = torch.nn.functional.pad(tokens, (0, width - tokens.shape[1]))
    return torch.cat([padded, added]), torch.cat([lengths, lengths.new_tensor(sizes)])
