"""Audit a real Opacus training: does its privacy hold up against an attack, and what does the last iterate leak?

A linear classifier of handwritten digits is trained by Opacus as anyone would, Poisson sampling, clipping and noise
included. The canary is one more image in the data: it lights just those pixels that are dark in nearly every digit, so
that little but the canary and the noise moves their weights. Models with and without it are told apart by how far their
parameters went along the canary's first gradient.

    python examples/audit_opacus.py --models 64
    lastiterate audit --trainer examples/audit_opacus.py:train --models 64

What it finds is put beside what is predicted: the last-iterate heuristic and the guarantee of composition. If the
trainer had a bug, the verdict would be a violation, and the second command would exit with status 1. More models show
more: with 64 a world the bounds are still far below the prediction.
"""

from __future__ import annotations

import argparse
import warnings

import torch
from opacus import PrivacyEngine
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import lastiterate as li
from lastiterate.attacks import Displacement
from lastiterate.data import digits

EPOCHS, BATCH_SIZE, LEARNING_RATE, NOISE_MULTIPLIER, CLIP_NORM = 6, 360, 2.0, 1.0, 0.5
DARK_PIXELS, CANARY_LABEL = 9, 0
DELTA = 1e-5

data = digits()
images = torch.tensor(data.x_train).flatten(1)
labels = torch.tensor(data.y_train).long()
canary_image = torch.zeros(images.shape[1])
canary_image[torch.argsort(images.mean(0), stable=True)[:DARK_PIXELS]] = 1.0


def new_model() -> torch.nn.Module:
    """Every training begins here: all that differs between models is batches, noise and canary."""
    model = torch.nn.Linear(images.shape[1], data.classes)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    return model


def canary_gradient() -> dict[str, torch.Tensor]:
    """Of the loss on the canary, at the start of training; before clipping."""
    model = new_model()
    cross_entropy(model(canary_image[None]), torch.tensor([CANARY_LABEL])).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def train(seed: int, canary: bool) -> li.Trained:
    """The training that is audited. It returns the parameters that would be released, and what it did to get there."""
    torch.set_num_threads(1)  # more would only wait for each other, the model is so small
    torch.manual_seed(seed)
    examples = TensorDataset(images, labels)
    if canary:
        examples = TensorDataset(
            torch.vstack([images, canary_image]), torch.hstack([labels, torch.tensor(CANARY_LABEL)])
        )
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Secure RNG turned off")  # right: seeds must give the same models again
        warnings.filterwarnings("ignore", "Full backward hook is firing")  # of PyTorch, on how Opacus sees gradients
        engine = PrivacyEngine()
        private, optimizer, loader = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=DataLoader(examples, batch_size=BATCH_SIZE),
            noise_multiplier=NOISE_MULTIPLIER,
            max_grad_norm=CLIP_NORM,
            poisson_sampling=True,
        )
        batch_sizes = []
        for _ in range(EPOCHS):
            for batch, targets in loader:
                batch_sizes.append(len(batch))
                optimizer.zero_grad()
                cross_entropy(private(batch), targets).backward()
                optimizer.step()
    check_run(engine, optimizer, loader)
    return li.Trained(
        dict(model.named_parameters()),
        steps=len(batch_sizes),
        batch_sizes=batch_sizes,
        noise_multiplier=optimizer.noise_multiplier,
        dataset_size=len(examples),
    )


def describe_run() -> li.DPSGD:
    """The run as the analyses see it."""
    steps_per_epoch = -(-len(images) // BATCH_SIZE)
    return li.DPSGD(
        steps=EPOCHS * steps_per_epoch,
        sample_rate=1.0 / steps_per_epoch,
        noise_multiplier=NOISE_MULTIPLIER,
        clip_norm=CLIP_NORM,
        optimizer=li.SGD(LEARNING_RATE / (len(images) // steps_per_epoch)),  # Opacus divides by the expected batch size
    )


def check_run(engine: PrivacyEngine, optimizer: torch.optim.Optimizer, loader: DataLoader) -> None:
    """Refuse to audit something else than what was trained."""
    recorded = li.DPSGD.from_opacus(engine, optimizer, loader)
    if recorded != run:
        raise ValueError(f"run must be what Opacus has trained, {recorded}, got {run}")


run = describe_run()
attack = Displacement(canary_gradient(), references=16)


def main() -> None:
    """Audit, and print what was found beside what was predicted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=int, default=64, help="models in each of the two worlds (default: 64)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", help="SQLite file that keeps the scores, and from which the audit resumes")
    options = parser.parse_args()
    result = li.audit(run, train, attack, options.models, options.seed, options.store, delta=DELTA)
    print(f"epsilon at delta {DELTA:g}")
    print(f"  predicted by the last-iterate heuristic   {result.last_iterate:6.3f}")
    print(f"  guaranteed by composition                 {result.composition:6.3f}")
    print(f"found with {result.models} models per world, at least, with {result.confidence:.0%} confidence each")
    for method, epsilon in result.empirical.items():
        print(f"  by {method:38} {epsilon:6.3f}")
    print(f"signal d' {result.signal:.2f}, where the ideal is {result.ideal_signal:.2f}")
    print(f"verdict: {result.verdict}. {result.reason}")
    print(f"{result.seconds:.0f} seconds")


if __name__ == "__main__":
    main()
