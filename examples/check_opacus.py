"""Check a real Opacus training: is it what its run says? Seconds, where an audit takes minutes.

A network of two layers is trained on handwritten digits by Opacus as anyone would: its own loader, clipping and noise,
and SGD with momentum. What the check needs is one line, `plant`, which puts the check's gradients into the batches.

    python examples/check_opacus.py
    lastiterate check --trainer examples/check_opacus.py:train

A fault can be switched on, and is found; the second command then exits with status 1:

    FAULT=noise lastiterate check --trainer examples/check_opacus.py:train

The trainer takes the number of steps after which it stops. So the check can also look at single steps, where losses
have no curvature and everything is exact.
"""

from __future__ import annotations

import os
import warnings
from itertools import chain, islice

import torch
from opacus import PrivacyEngine
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import lastiterate as li
from lastiterate.data import digits
from lastiterate.integrations.opacus import plant

EPOCHS, BATCH_SIZE, LEARNING_RATE, MOMENTUM, NOISE_MULTIPLIER, CLIP_NORM = 5, 144, 0.02, 0.9, 1.0, 0.5
FAULTS = {
    "noise": "half of the noise",
    "bias": "no noise on biases",
    "clipping": "clipping to a norm that is half as large again",
    "layers": "clipping layer by layer, each to the whole norm",
    "momentum": "no momentum",
    "shuffled": "batches of shuffled data instead of Poisson sampling",
    "seed": "the same noise in every model",
}
FAULT = os.environ.get("FAULT", "")

data = digits()
examples = TensorDataset(torch.tensor(data.x_train).flatten(1), torch.tensor(data.y_train).long())


def describe_run() -> li.DPSGD:
    """The run that the training is said to be."""
    steps_per_epoch = -(-len(examples) // BATCH_SIZE)
    return li.DPSGD(
        steps=EPOCHS * steps_per_epoch,
        sample_rate=1.0 / steps_per_epoch,
        noise_multiplier=NOISE_MULTIPLIER,
        clip_norm=CLIP_NORM,
        # Opacus divides by the expected batch size, and our learning rates are those of the sum of gradients.
        optimizer=li.SGD(LEARNING_RATE / (len(examples) // steps_per_epoch), momentum=MOMENTUM),
    )


def new_model() -> torch.nn.Module:
    """A network of two layers, the same for every seed."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.Tanh(), torch.nn.Linear(16, data.classes))


def train(seed: int, canary: dict[str, torch.Tensor] | bool, steps: int | None = None) -> dict[str, torch.Tensor]:
    """The training that is checked, stopped after so many steps. It returns the parameters that would be released."""
    torch.set_num_threads(1)  # more would only wait for each other, the model is so small
    torch.manual_seed(seed)
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.0 if FAULT == "momentum" else MOMENTUM)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Secure RNG turned off")  # right: seeds must give the same models again
        warnings.filterwarnings("ignore", "Full backward hook is firing")  # of PyTorch, on how Opacus sees gradients
        private, optimizer, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            data_loader=DataLoader(examples, batch_size=BATCH_SIZE, shuffle=True),
            noise_multiplier=NOISE_MULTIPLIER / 2 if FAULT == "noise" else NOISE_MULTIPLIER,
            max_grad_norm=[CLIP_NORM] * 4 if FAULT == "layers" else CLIP_NORM,
            clipping="per_layer" if FAULT == "layers" else "flat",
            poisson_sampling=FAULT != "shuffled",
            noise_generator=torch.Generator().manual_seed(0) if FAULT == "seed" else None,
        )
        misuse(optimizer)
        loader = plant(canary, private, optimizer, loader)
        epochs = chain.from_iterable(loader for _ in range(EPOCHS))
        for batch, targets in islice(epochs, steps):
            optimizer.zero_grad()
            cross_entropy(private(batch), targets).backward()
            optimizer.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def misuse(optimizer: torch.optim.Optimizer) -> None:
    """Those faults that Opacus has no option for."""
    if FAULT and FAULT not in FAULTS:
        raise ValueError(f"FAULT must be one of {', '.join(FAULTS)}, got {FAULT!r}")
    if FAULT == "clipping":  # the noise stays what it was
        optimizer.max_grad_norm *= 1.5
        optimizer.noise_multiplier /= 1.5
    if FAULT == "layers":  # Opacus scales its noise to the norm of all layers; whoever forgets that has half of it
        optimizer.max_grad_norm = CLIP_NORM
    if FAULT == "bias":
        add_noise = optimizer.add_noise

        def add_noise_to_weights() -> None:
            add_noise()
            for parameter in optimizer.params:
                if parameter.ndim == 1:
                    parameter.grad = parameter.summed_grad.view_as(parameter)

        optimizer.add_noise = add_noise_to_weights


run = describe_run()


if __name__ == "__main__":
    print(li.check(run, train))
