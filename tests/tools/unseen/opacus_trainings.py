"""DP-SGD with Opacus (GradSampleModule, DPOptimizer, DPDataLoader): correct trainings first, then faulty ones.

The data set has a slot for the canary in both worlds. Without the canary the loss of this slot has weight zero, so that
it adds nothing to the sum of clipped gradients, while all draws are the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
from opacus import GradSampleModule
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer, DPPerLayerOptimizer
from opacus.optimizers.optimizer import _generate_noise
from opacus.schedulers import ExponentialNoise
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from . import data
from .declared import Run, fits, training

torch.set_num_threads(1)
warnings.filterwarnings("ignore", message="Full backward hook is firing")
warnings.filterwarnings("ignore", module="torch|opacus")

Params = dict[str, torch.Tensor]
Batches = Iterator[list[torch.Tensor]]

LOGISTIC = data.make(199, 40, 2, seed=21)
MLP = data.make(199, 10, 3, seed=22)


def dataset(problem: data.Problem, canary: bool, copies: int = 1) -> TensorDataset:
    """Return features, labels, weights, and which rows are the canary's: the last ``copies``."""
    x, y = problem.rows(True)
    rows = list(range(len(x))) + [len(x) - 1] * (copies - 1)
    weights = torch.ones(len(rows))
    weights[problem.place :] = float(canary)
    is_canary = torch.arange(len(rows)) >= problem.place
    return TensorDataset(torch.tensor(x[rows], dtype=torch.float32), torch.tensor(y[rows]), weights, is_canary)


def model(problem: data.Problem) -> GradSampleModule:
    """Return the initial model: the same in all runs, as if it came from public data."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        if problem is LOGISTIC:
            layers: nn.Module = nn.Linear(40, 1)
            nn.init.zeros_(layers.weight)
            nn.init.zeros_(layers.bias)
        else:
            layers = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 3))
    return GradSampleModule(layers)


def losses(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if outputs.shape[1] == 1:
        return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], y.float(), reduction="none")
    return nn.functional.cross_entropy(outputs, y, reduction="none")


def forever(loader: DataLoader) -> Batches:
    while True:
        yield from loader


def poisson_batches(rows: TensorDataset, rate: float, seed: int) -> Batches:
    return forever(DPDataLoader(rows, sample_rate=rate, generator=torch.Generator().manual_seed(seed + 1)))


def noise_generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(1_000_003 * (seed + 1))


def expected_size(run: Run, problem: data.Problem) -> int:
    return round(run.rate * problem.slots())


def private(net: GradSampleModule, run: Run, problem: data.Problem, seed: int, **changes: object) -> DPOptimizer:
    """Return the optimizer of the declared run. Opacus divides by the expected batch size, so its rate is larger."""
    size = expected_size(run, problem)
    arguments = {
        "noise_multiplier": run.noise,
        "max_grad_norm": run.clip,
        "expected_batch_size": size,
        "generator": noise_generator(seed),
        **changes,
    }
    return DPOptimizer(torch.optim.SGD(net.parameters(), lr=run.learning_rate * size), **arguments)


def plant(run: Run, net: GradSampleModule, rows: torch.Tensor) -> None:
    """Put the planted gradient, if there is one, into those rows of ``grad_sample`` that are the canary's.

    This is done between the backward pass and the optimizer's step, which clips.
    """
    if run.planted is None:
        return
    parameters = dict(net._module.named_parameters())
    fits(run.planted, {name: p.shape for name, p in parameters.items()})
    for name, p in parameters.items():
        p.grad_sample[rows] = torch.tensor(run.planted[name], dtype=p.dtype)


def fit(run: Run, net: GradSampleModule, optimizer: DPOptimizer, batches: Batches, steps: int) -> None:
    for _ in range(steps):
        x, y, weights, is_canary = next(batches)
        optimizer.zero_grad()
        (weights * losses(net(x), y)).mean().backward()
        plant(run, net, is_canary)
        optimizer.step()


def released(net: GradSampleModule) -> Params:
    return {name: p.detach().clone() for name, p in net._module.named_parameters()}


# --------------------------------------------------------------------------------------------------------- correct


@training("opacus")
def correct_logistic(run: Run, seed: int, canary: bool) -> Params:
    net = model(LOGISTIC)
    optimizer = private(net, run, LOGISTIC, seed)
    fit(run, net, optimizer, poisson_batches(dataset(LOGISTIC, canary), run.rate, seed), run.steps)
    return released(net)


@training("opacus")
def correct_mlp(run: Run, seed: int, canary: bool) -> Params:
    net = model(MLP)
    optimizer = private(net, run, MLP, seed)
    fit(run, net, optimizer, poisson_batches(dataset(MLP, canary), run.rate, seed), run.steps)
    return released(net)


@training("opacus")
def correct_shuffled_mlp(run: Run, seed: int, canary: bool) -> Params:
    net = model(MLP)
    optimizer = private(net, run, MLP, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    size = expected_size(run, MLP)
    loader = DataLoader(dataset(MLP, canary), batch_size=size, shuffle=True, generator=generator)
    fit(run, net, optimizer, forever(loader), run.steps)
    return released(net)


# ---------------------------------------------------------------------------------------------------------- faults


class _NoClipNorm(DPOptimizer):
    """Adds noise whose standard deviation is the noise multiplier."""

    def add_noise(self) -> None:
        for p in self.params:
            noise = _generate_noise(self.noise_multiplier, p.summed_grad, generator=self.generator)  # Fault: no clip.
            p.grad = (p.summed_grad + noise).view_as(p)


@training("opacus")
def noise_without_clip_norm_mlp(run: Run, seed: int, canary: bool) -> Params:
    net = model(MLP)
    size = expected_size(run, MLP)
    optimizer = _NoClipNorm(
        torch.optim.SGD(net.parameters(), lr=run.learning_rate * size),
        noise_multiplier=run.noise,
        max_grad_norm=run.clip,
        expected_batch_size=size,
        generator=noise_generator(seed),
    )
    fit(run, net, optimizer, poisson_batches(dataset(MLP, canary), run.rate, seed), run.steps)
    return released(net)


class _NoNoiseOnBias(DPOptimizer):
    """Adds noise to matrices only."""

    def add_noise(self) -> None:
        for p in self.params:
            if p.ndim > 1:
                std = self.noise_multiplier * self.max_grad_norm
                noise = _generate_noise(std, p.summed_grad, generator=self.generator)
                p.grad = (p.summed_grad + noise).view_as(p)
            else:
                p.grad = p.summed_grad.view_as(p)  # Fault: the bias gets no noise.


@training("opacus")
def noise_missing_on_tensor_logistic(run: Run, seed: int, canary: bool) -> Params:
    net = model(LOGISTIC)
    size = expected_size(run, LOGISTIC)
    optimizer = _NoNoiseOnBias(
        torch.optim.SGD(net.parameters(), lr=run.learning_rate * size),
        noise_multiplier=run.noise,
        max_grad_norm=run.clip,
        expected_batch_size=size,
        generator=noise_generator(seed),
    )
    fit(run, net, optimizer, poisson_batches(dataset(LOGISTIC, canary), run.rate, seed), run.steps)
    return released(net)


@training("opacus")
def noise_fixed_seed_mlp(run: Run, seed: int, canary: bool) -> Params:
    net = model(MLP)
    optimizer = private(net, run, MLP, seed, generator=torch.Generator().manual_seed(42))  # Fault: in every run.
    fit(run, net, optimizer, poisson_batches(dataset(MLP, canary), run.rate, seed), run.steps)
    return released(net)


@training("opacus")
def clip_per_tensor_mlp(run: Run, seed: int, canary: bool) -> Params:
    net = model(MLP)
    size = expected_size(run, MLP)
    optimizer = DPPerLayerOptimizer(
        torch.optim.SGD(net.parameters(), lr=run.learning_rate * size),
        noise_multiplier=run.noise,
        max_grad_norm=[run.clip] * 4,
        expected_batch_size=size,
        generator=noise_generator(seed),
    )
    optimizer.max_grad_norm = run.clip  # Fault: four tensors, each clipped to the norm that is meant for all.
    fit(run, net, optimizer, poisson_batches(dataset(MLP, canary), run.rate, seed), run.steps)
    return released(net)


@training("opacus")
def clip_norm_wrong_logistic(run: Run, seed: int, canary: bool) -> Params:
    net = model(LOGISTIC)
    # Fault: somebody tuned the clipping norm and kept the deviation of the noise.
    optimizer = private(net, run, LOGISTIC, seed, max_grad_norm=1.25 * run.clip, noise_multiplier=run.noise / 1.25)
    fit(run, net, optimizer, poisson_batches(dataset(LOGISTIC, canary), run.rate, seed), run.steps)
    return released(net)


@training("opacus")
def shuffled_for_poisson_logistic(run: Run, seed: int, canary: bool) -> Params:
    net = model(LOGISTIC)
    optimizer = private(net, run, LOGISTIC, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    size = expected_size(run, LOGISTIC)
    # Fault: an ordinary loader instead of DPDataLoader.
    loader = DataLoader(dataset(LOGISTIC, canary), batch_size=size, shuffle=True, generator=generator)
    fit(run, net, optimizer, forever(loader), run.steps)
    return released(net)


@training("opacus")
def rate_too_large_logistic(run: Run, seed: int, canary: bool) -> Params:
    net = model(LOGISTIC)
    optimizer = private(net, run, LOGISTIC, seed)
    rows = dataset(LOGISTIC, canary)
    rate = expected_size(run, LOGISTIC) / (len(rows) // 2)  # Fault: the size of the data before they were doubled.
    fit(run, net, optimizer, poisson_batches(rows, rate, seed), run.steps)
    return released(net)


@training("opacus")
def canary_twice_mlp(run: Run, seed: int, canary: bool) -> Params:
    net = model(MLP)
    optimizer = private(net, run, MLP, seed)
    rows = dataset(MLP, canary, copies=2)  # Fault: a duplicate was not removed.
    fit(run, net, optimizer, poisson_batches(rows, run.rate, seed), run.steps)
    return released(net)


@training("opacus")
def momentum_not_declared_logistic(run: Run, seed: int, canary: bool) -> Params:
    net = model(LOGISTIC)
    optimizer = private(net, run, LOGISTIC, seed)
    for group in optimizer.param_groups:
        group["momentum"] = 0.9  # Fault: declared without momentum.
    fit(run, net, optimizer, poisson_batches(dataset(LOGISTIC, canary), run.rate, seed), run.steps)
    return released(net)


class _Accumulating(DPOptimizer):
    """Adds clipped gradients to those that are already there."""

    def clip_and_accumulate(self) -> None:
        before = [p.summed_grad for p in self.params]
        for p in self.params:
            p.summed_grad = None
        super().clip_and_accumulate()
        for p, old in zip(self.params, before, strict=True):
            if old is not None:
                p.summed_grad = p.summed_grad + old


@training("opacus")
def gradients_not_zeroed_mlp(run: Run, seed: int, canary: bool) -> Params:
    net = model(MLP)
    size = expected_size(run, MLP)
    optimizer = _Accumulating(
        torch.optim.SGD(net.parameters(), lr=run.learning_rate * size),
        noise_multiplier=run.noise,
        max_grad_norm=run.clip,
        expected_batch_size=size,
        generator=noise_generator(seed),
    )
    batches = poisson_batches(dataset(MLP, canary), run.rate, seed)
    for _ in range(run.steps):
        x, y, weights, is_canary = next(batches)
        net.zero_grad()  # Fault: clears the gradients, but not the optimizer's sum of clipped ones.
        (weights * losses(net(x), y)).mean().backward()
        plant(run, net, is_canary)
        optimizer.step()
    return released(net)


@training("opacus")
def private_steps_at_end_mlp(run: Run, seed: int, canary: bool) -> Params:
    net = model(MLP)
    optimizer = private(net, run, MLP, seed)
    rows = dataset(MLP, canary)
    fit(run, net, optimizer, poisson_batches(rows, run.rate, seed), run.steps)
    # Fault: the output layer is tuned on the private data without clipping and noise.
    plain = net._module
    net.remove_hooks()
    head = torch.optim.SGD(plain[2].parameters(), lr=0.05)
    x, y, weights, _ = rows.tensors
    for _ in range(10):
        head.zero_grad()
        (weights * losses(plain(x), y)).mean().backward()
        head.step()
    return released(net)


@training("opacus")
def noise_decays_logistic(run: Run, seed: int, canary: bool) -> Params:
    net = model(LOGISTIC)
    optimizer = private(net, run, LOGISTIC, seed)
    scheduler = ExponentialNoise(optimizer, gamma=0.96)  # Fault: declared constant.
    batches = poisson_batches(dataset(LOGISTIC, canary), run.rate, seed)
    for _ in range(run.steps):
        fit(run, net, optimizer, batches, 1)
        scheduler.step()
    return released(net)
