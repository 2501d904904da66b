"""Check DP-SGD that somebody wrote with ``torch.func``: per-example gradients by ``vmap``, clipped, summed, with noise.

The check needs two lines of the training, `planted.batch` and `planted.gradients`.

    python examples/check_torch_func.py
    lastiterate check --trainer examples/check_torch_func.py:train
    FAULT=1 lastiterate check --trainer examples/check_torch_func.py:train     (clips every tensor by itself; status 1)
"""

from __future__ import annotations

import os

import torch
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

import lastiterate as li
from lastiterate.data import digits
from lastiterate.integrations.gradient_canary import PlantedGradient

FAULT = bool(os.environ.get("FAULT"))

data = digits()
images, labels = torch.tensor(data.x_train).flatten(1), torch.tensor(data.y_train).long()
model = torch.nn.Linear(images.shape[1], data.classes)
run = li.DPSGD(steps=40, sample_rate=0.1, noise_multiplier=2.0, clip_norm=1.0, optimizer=li.SGD(0.0005))


def loss(parameters: dict[str, torch.Tensor], image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Of one example."""
    return cross_entropy(functional_call(model, parameters, (image[None],)), label[None])


def clipped_sum(gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each example's gradient, clipped to norm 1 over all tensors, and added up."""
    norms = {name: rows.flatten(1).norm(dim=1) for name, rows in gradients.items()}
    if not FAULT:
        norms = dict.fromkeys(norms, torch.stack([*norms.values()]).norm(dim=0))
    factors = {name: 1.0 / norm.clamp(min=1.0) for name, norm in norms.items()}
    return {name: torch.einsum("b,b...->...", factors[name], rows) for name, rows in gradients.items()}


def train(seed: int, canary: dict[str, torch.Tensor] | bool, steps: int = run.steps) -> dict[str, torch.Tensor]:
    """The training that is checked, stopped after so many steps. It returns the parameters that would be released."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    planted = PlantedGradient(canary, place=len(images) - 1)
    parameters = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    for _ in range(steps):
        drawn = torch.rand(len(images), generator=generator) < run.sample_rate
        batch = planted.batch(drawn.nonzero().flatten())
        gradients = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, images[batch], labels[batch])
        gradients = planted.gradients(gradients, batch)
        for name, total in clipped_sum(gradients).items():
            noise = run.noise_multiplier * torch.randn(total.shape, generator=generator)
            parameters[name] = parameters[name] - run.optimizer.learning_rate * (total + noise)
    return parameters


if __name__ == "__main__":
    print(li.check(run, train))
