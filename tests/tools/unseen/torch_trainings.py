"""DP-SGD with torch.func (vmap of grad): correct trainings first, then faulty ones."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.func import grad, vmap
from torch.nn import functional

from . import data
from .declared import Run, fits, training

torch.set_num_threads(1)

Params = dict[str, torch.Tensor]

LOGISTIC = data.make(159, 50, 2, seed=11)
MLP = data.make(199, 16, 4, seed=12)
FEW = data.make(119, 16, 4, seed=13)
RARE = data.make(199, 16, 4, seed=14, rare_class=5)
HIDDEN = 24


def tensors(problem: data.Problem, canary: bool) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = problem.rows(canary)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def generators(seed: int) -> tuple[torch.Generator, torch.Generator]:
    """Return one generator for batches and one for noise."""
    return torch.Generator().manual_seed(2 * seed + 1), torch.Generator().manual_seed(1_000_003 * (seed + 1))


def poisson(generator: torch.Generator, rate: float, slots: int, count: int) -> torch.Tensor:
    """Return a Poisson batch. Numbers are drawn for all slots, so that both worlds draw the same."""
    return (torch.rand(slots, generator=generator)[:count] < rate).nonzero()[:, 0]


def logistic_start() -> Params:
    return {"weights": torch.zeros(50), "bias": torch.zeros(1)}


def logistic_loss(params: Params, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    logits = x @ params["weights"] + params["bias"].squeeze()
    return functional.softplus(logits) - y * logits


def mlp_start(seed: int) -> Params:
    generator = torch.Generator().manual_seed(7 * seed + 500_000_003)
    return {
        "w1": torch.randn(16, HIDDEN, generator=generator) / 4,
        "b1": torch.zeros(HIDDEN),
        "w2": torch.randn(HIDDEN, 4, generator=generator) / (2 * math.sqrt(HIDDEN)),
        "b2": torch.zeros(4),
    }


def mlp_loss(params: Params, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    hidden = torch.tanh(x @ params["w1"] + params["b1"])
    return functional.cross_entropy(hidden @ params["w2"] + params["b2"], y, reduction="none")


def logistic_one(params: Params, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return logistic_loss(params, x, y)


def mlp_one(params: Params, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    hidden = torch.tanh(x @ params["w1"] + params["b1"])
    return -functional.log_softmax(hidden @ params["w2"] + params["b2"], dim=-1).gather(-1, y[None]).squeeze()


def linear(params: Params, planted: dict[str, np.ndarray]) -> torch.Tensor:
    """Return a loss whose gradient is the planted one."""
    fits(planted, {name: p.shape for name, p in params.items()})
    return sum((p * torch.tensor(planted[name], dtype=p.dtype)).sum() for name, p in params.items())


logistic_gradients = vmap(grad(logistic_one), in_dims=(None, 0, 0))
mlp_gradients = vmap(grad(mlp_one), in_dims=(None, 0, 0))


def plant(run: Run, gradients: Params, rows: torch.Tensor) -> Params:
    """Put the planted gradient, if there is one, into those rows of the examples' gradients that are the canary's."""
    if run.planted is None:
        return gradients
    fits(run.planted, {name: g.shape[1:] for name, g in gradients.items()})
    gradients = {name: g.clone() for name, g in gradients.items()}
    for name, g in gradients.items():
        g[rows] = torch.tensor(run.planted[name], dtype=g.dtype)
    return gradients


def norms(gradients: Params) -> torch.Tensor:
    """Return the norm of each example's gradient over all tensors."""
    return torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)


def clipped_sum(gradients: Params, clip: float | torch.Tensor) -> Params:
    """Clip each example's gradient to ``clip``, and add them up."""
    factors = (clip / norms(gradients).clamp(min=1e-12)).clamp(max=1)
    return {name: torch.tensordot(factors, g, 1) for name, g in gradients.items()}


def normal(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(like.shape, generator=generator)


# --------------------------------------------------------------------------------------------------------- correct


@training("torch")
def correct_logistic(run: Run, seed: int, canary: bool) -> Params:
    x, y = tensors(LOGISTIC, canary)
    batches, noise = generators(seed)
    params = logistic_start()
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, LOGISTIC.slots(), len(x))
        gradients = plant(run, logistic_gradients(params, x[batch], y[batch]), batch == LOGISTIC.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + run.noise * run.clip * normal(total, noise))
    return params


@training("torch")
def correct_mlp(run: Run, seed: int, canary: bool) -> Params:
    x, y = tensors(MLP, canary)
    batches, noise = generators(seed)
    params = mlp_start(seed)
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, MLP.slots(), len(x))
        gradients = plant(run, mlp_gradients(params, x[batch], y[batch]), batch == MLP.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + run.noise * run.clip * normal(total, noise))
    return params


@training("torch")
def correct_momentum_mlp(run: Run, seed: int, canary: bool) -> Params:
    x, y = tensors(MLP, canary)
    batches, noise = generators(seed)
    params = mlp_start(seed)
    optimizer = torch.optim.SGD(params.values(), lr=run.learning_rate, momentum=run.optimizer["momentum"])
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, MLP.slots(), len(x))
        gradients = plant(run, mlp_gradients(params, x[batch], y[batch]), batch == MLP.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            params[name].grad = total + run.noise * run.clip * normal(total, noise)
        optimizer.step()
    return params


@training("torch")
def correct_unpaired_mlp(run: Run, seed: int, canary: bool) -> Params:
    # One generator for everything. The canary's place is drawn only if there is a canary, so worlds share nothing.
    generator = torch.Generator().manual_seed(seed)
    x, y = tensors(MLP, False)
    place = -1
    if canary:
        place = int(torch.randint(len(x) + 1, (), generator=generator))
        canary_x = torch.tensor(MLP.canary_x, dtype=torch.float32)[None]
        x = torch.cat([x[:place], canary_x, x[place:]])
        y = torch.cat([y[:place], torch.tensor([MLP.canary_y]), y[place:]])
    params = mlp_start(int(torch.randint(2**31, (), generator=generator)))
    for _ in range(run.steps):
        batch = (torch.rand(len(x), generator=generator) < run.rate).nonzero()[:, 0]
        gradients = plant(run, mlp_gradients(params, x[batch], y[batch]), batch == place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + run.noise * run.clip * normal(total, generator))
    return params


# ---------------------------------------------------------------------------------------------------------- faults


@training("torch")
def noise_of_mean_on_sum_logistic(run: Run, seed: int, canary: bool) -> Params:
    x, y = tensors(LOGISTIC, canary)
    batches, noise = generators(seed)
    params = logistic_start()
    deviation = run.noise * run.clip / (run.rate * LOGISTIC.slots())  # Fault: right for the mean, not for the sum.
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, LOGISTIC.slots(), len(x))
        gradients = plant(run, logistic_gradients(params, x[batch], y[batch]), batch == LOGISTIC.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + deviation * normal(total, noise))
    return params


@training("torch")
def noise_variance_as_deviation_logistic(run: Run, seed: int, canary: bool) -> Params:
    x, y = tensors(LOGISTIC, canary)
    batches, noise = generators(seed)
    params = logistic_start()
    deviation = math.sqrt(run.noise * run.clip)  # Fault: the product is taken for a variance.
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, LOGISTIC.slots(), len(x))
        gradients = plant(run, logistic_gradients(params, x[batch], y[batch]), batch == LOGISTIC.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + deviation * normal(total, noise))
    return params


@training("torch")
def same_noise_every_step_mlp(run: Run, seed: int, canary: bool) -> Params:
    x, y = tensors(MLP, canary)
    batches, noise = generators(seed)
    params = mlp_start(seed)
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, MLP.slots(), len(x))
        gradients = plant(run, mlp_gradients(params, x[batch], y[batch]), batch == MLP.place)
        summed = clipped_sum(gradients, run.clip)
        noise.manual_seed(seed + 99)  # Fault: "for reproducibility", in the loop.
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + run.noise * run.clip * normal(total, noise))
    return params


@training("torch")
def noise_fixed_seed_logistic(run: Run, seed: int, canary: bool) -> Params:
    x, y = tensors(LOGISTIC, canary)
    batches, _ = generators(seed)
    noise = torch.Generator()  # Fault: never seeded, so every run has the same noise.
    params = logistic_start()
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, LOGISTIC.slots(), len(x))
        gradients = plant(run, logistic_gradients(params, x[batch], y[batch]), batch == LOGISTIC.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + run.noise * run.clip * normal(total, noise))
    return params


@training("torch")
def clip_per_tensor_logistic(run: Run, seed: int, canary: bool) -> Params:
    x, y = tensors(LOGISTIC, canary)
    batches, noise = generators(seed)
    params = logistic_start()
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, LOGISTIC.slots(), len(x))
        gradients = plant(run, logistic_gradients(params, x[batch], y[batch]), batch == LOGISTIC.place)
        for name, g in gradients.items():
            total = clipped_sum({name: g}, run.clip)[name]  # Fault: weights and bias are clipped each for itself.
            params[name] -= run.learning_rate * (total + run.noise * run.clip * normal(total, noise))
    return params


@training("torch")
def clip_of_batch_mlp(run: Run, seed: int, canary: bool) -> Params:
    x, y = tensors(MLP, canary)
    batches, noise = generators(seed)
    params = {name: p.requires_grad_() for name, p in mlp_start(seed).items()}
    size = run.rate * MLP.slots()
    optimizer = torch.optim.SGD(params.values(), lr=run.learning_rate * size)
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, MLP.slots(), len(x))
        optimizer.zero_grad()
        losses = mlp_loss(params, x[batch], y[batch])
        if run.planted is not None:
            losses = torch.where(batch == MLP.place, linear(params, run.planted), losses)
        (losses.sum() / size).backward()
        torch.nn.utils.clip_grad_norm_(params.values(), run.clip)  # Fault: of the batch, not of each example.
        for p in params.values():
            p.grad += run.noise * run.clip / size * normal(p, noise)
        optimizer.step()
    return {name: p.detach() for name, p in params.items()}


@training("torch")
def real_batch_size_mlp(run: Run, seed: int, canary: bool) -> Params:
    x, y = tensors(FEW, canary)
    batches, noise = generators(seed)
    params = mlp_start(seed)
    rate_of_mean = run.learning_rate * run.rate * FEW.slots()
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, FEW.slots(), len(x))
        gradients = plant(run, mlp_gradients(params, x[batch], y[batch]), batch == FEW.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            noisy = total + run.noise * run.clip * normal(total, noise)
            params[name] -= rate_of_mean * noisy / max(len(batch), 1)  # Fault: real instead of expected size.
    return params


@training("torch")
def shuffled_for_poisson_mlp(run: Run, seed: int, canary: bool) -> Params:
    x, y = tensors(MLP, canary)
    batches, noise = generators(seed)
    params = mlp_start(seed)
    size = round(run.rate * MLP.slots())
    order: list[torch.Tensor] = []
    for _ in range(run.steps):
        if not order:
            order = list(torch.randperm(MLP.slots(), generator=batches).split(size))
        batch = order.pop(0)  # Fault: every example once an epoch.
        batch = batch[batch < len(x)]
        gradients = plant(run, mlp_gradients(params, x[batch], y[batch]), batch == MLP.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + run.noise * run.clip * normal(total, noise))
    return params


@training("torch")
def gradients_not_zeroed_logistic(run: Run, seed: int, canary: bool) -> Params:
    x, y = tensors(LOGISTIC, canary)
    batches, noise = generators(seed)
    params = logistic_start()
    optimizer = torch.optim.SGD(params.values(), lr=run.learning_rate)
    for p in params.values():
        p.grad = torch.zeros_like(p)
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, LOGISTIC.slots(), len(x))
        gradients = plant(run, logistic_gradients(params, x[batch], y[batch]), batch == LOGISTIC.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():  # Fault: nobody sets the gradients back to zero.
            params[name].grad += total + run.noise * run.clip * normal(total, noise)
        optimizer.step()
    return params


@training("torch")
def private_steps_at_end_logistic(run: Run, seed: int, canary: bool) -> Params:
    x, y = tensors(LOGISTIC, canary)
    batches, noise = generators(seed)
    params = logistic_start()
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, LOGISTIC.slots(), len(x))
        gradients = plant(run, logistic_gradients(params, x[batch], y[batch]), batch == LOGISTIC.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + run.noise * run.clip * normal(total, noise))
    for _ in range(5):  # Fault: a few last steps on all data, neither clipped nor noised.
        gradients = logistic_gradients(params, x, y)
        for name, g in gradients.items():
            params[name] -= 0.2 * g.mean(dim=0)
    return params


@training("torch")
def private_start_mlp(run: Run, seed: int, canary: bool) -> Params:
    x, y = tensors(MLP, canary)
    x = 3 * x / x.abs().max()  # Fault: features are scaled by the largest one of the private data.
    batches, noise = generators(seed)
    params = mlp_start(seed)
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, MLP.slots(), len(x))
        gradients = plant(run, mlp_gradients(params, x[batch], y[batch]), batch == MLP.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + run.noise * run.clip * normal(total, noise))
    return params


@training("torch")
def sampling_by_data_mlp(run: Run, seed: int, canary: bool) -> Params:
    x, y = tensors(RARE, canary)
    batches, noise = generators(seed)
    params = mlp_start(seed)
    # Fault: classes are balanced, so that an example of a rare class is drawn more often.
    rates = (run.rate * RARE.slots() / (RARE.classes * torch.bincount(y, minlength=RARE.classes)[y])).clamp(max=1)
    for _ in range(run.steps):
        batch = (torch.rand(RARE.slots(), generator=batches)[: len(x)] < rates).nonzero()[:, 0]
        gradients = plant(run, mlp_gradients(params, x[batch], y[batch]), batch == RARE.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + run.noise * run.clip * normal(total, noise))
    return params


@training("torch")
def augmentations_clipped_apart_logistic(run: Run, seed: int, canary: bool) -> Params:
    x, y = tensors(LOGISTIC, canary)
    batches, noise = generators(seed)
    jitter = torch.Generator().manual_seed(seed + 7)
    params = logistic_start()
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, LOGISTIC.slots(), len(x))
        shifts = 0.1 * torch.randn(4, LOGISTIC.slots(), 50, generator=jitter)
        views = (x + shifts[:, : len(x)])[:, batch].flatten(0, 1)
        # Fault: each of the four views is clipped as if it were an example; the noise is for one, over four.
        gradients = logistic_gradients(params, views, y[batch].repeat(4))
        summed = clipped_sum(plant(run, gradients, (batch == LOGISTIC.place).repeat(4)), run.clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + run.noise * run.clip * normal(total, noise)) / 4
    return params


@training("torch")
def clip_norm_from_batch_mlp(run: Run, seed: int, canary: bool) -> Params:
    x, y = tensors(MLP, canary)
    batches, noise = generators(seed)
    params = mlp_start(seed)
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, MLP.slots(), len(x))
        gradients = plant(run, mlp_gradients(params, x[batch], y[batch]), batch == MLP.place)
        clip = norms(gradients).quantile(0.9)  # Fault: the clipping norm follows the private batch; so does the noise.
        summed = clipped_sum(gradients, clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + run.noise * clip * normal(total, noise))
    return params


@training("torch")
def adam_second_moment_without_noise_mlp(run: Run, seed: int, canary: bool) -> Params:
    x, y = tensors(MLP, canary)
    batches, noise = generators(seed)
    params = mlp_start(seed)
    beta1, beta2, eps = (run.optimizer[name] for name in ("beta1", "beta2", "eps"))
    first = {name: torch.zeros_like(p) for name, p in params.items()}
    second = {name: torch.zeros_like(p) for name, p in params.items()}
    for step in range(1, run.steps + 1):
        batch = poisson(batches, run.rate, MLP.slots(), len(x))
        gradients = plant(run, mlp_gradients(params, x[batch], y[batch]), batch == MLP.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            noisy = total + run.noise * run.clip * normal(total, noise)
            first[name] = beta1 * first[name] + (1 - beta1) * noisy
            second[name] = beta2 * second[name] + (1 - beta2) * total**2  # Fault: the gradient before the noise.
            root = (second[name] / (1 - beta2**step)).sqrt()
            params[name] -= run.learning_rate * first[name] / (1 - beta1**step) / (root + eps)
    return params


@training("torch")
def noise_chosen_by_loss_logistic(run: Run, seed: int, canary: bool) -> Params:
    x, y = tensors(LOGISTIC, canary)
    batches, noise = generators(seed)
    params = logistic_start()
    best = logistic_loss(params, x, y).mean()
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, LOGISTIC.slots(), len(x))
        gradients = plant(run, logistic_gradients(params, x[batch], y[batch]), batch == LOGISTIC.place)
        summed = clipped_sum(gradients, run.clip)
        after = {
            name: params[name] - run.learning_rate * (total + run.noise * run.clip * normal(total, noise))
            for name, total in summed.items()
        }
        loss = logistic_loss(after, x, y).mean()
        if loss < best:  # Fault: a step after which the private loss is higher is taken back.
            params, best = after, loss
    return params
