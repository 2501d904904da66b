"""DP-SGD model-steps per second that Opacus reaches on the CPU cores of this machine: the peer of our training speed.

Real models are trained by `PrivacyEngine.make_private` with Poisson sampling and flat clipping. Opacus gets its best:
its ways to compute per-sample gradients are tried in one process whose torch uses all cores, and in a process per core,
all at work at the same time. The data is in memory and a batch is one indexing operation; start-up does not count, nor
does warm-up. Run it alone with `python benchmarks/opacus_training.py [--npz FILE]`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, TensorDataset

# Grad sample modes of Opacus. "functorch" is left out: "no_op" with `torch.func` is faster in all workloads.
MODES = ("hooks", "ghost", "ew", "no_op")
ALL_CORES, PER_CORE = "one process, all cores", "one process per core"
TURNS = 5


@dataclass(frozen=True)
class Peer:
    """Opacus' best rate in model-steps per second, how it got there, and all rates by how and by mode."""

    rate: float
    how: str
    mode: str
    all_cores_rate: float
    per_core_rate: float
    rates: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Task:
    """What to train: images ``x`` as [n, height, width, channels], or features [n, d], and their classes ``y``."""

    workload: str
    x: np.ndarray
    y: np.ndarray
    batch_size: int
    noise_multiplier: float
    clip_norm: float
    learning_rate: float


def model_steps_per_second(
    workload: str,
    x: np.ndarray,
    y: np.ndarray,
    batch_size: int,
    noise_multiplier: float,
    clip_norm: float,
    learning_rate: float,
    seconds: float = 10,
) -> Peer:
    """Each mode runs for so many seconds in several turns, of which the best counts; the first serves as warm-up."""
    task = Task(workload, x, y, batch_size, noise_multiplier, clip_norm, learning_rate)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    rates = {
        ALL_CORES: mode_rates(task, processes=1, threads=cores, seconds=seconds),
        PER_CORE: mode_rates(task, processes=cores, threads=1, seconds=seconds),
    }
    rate, how, mode = max((rate, how, mode) for how, by_mode in rates.items() for mode, rate in by_mode.items())
    return Peer(rate, how, mode, max(rates[ALL_CORES].values()), max(rates[PER_CORE].values()), rates)


def mode_rates(task: Task, processes: int, threads: int, seconds: float) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(processes)
    with ProcessPoolExecutor(processes, context, Worker.start, (task, together, threads)) as pool:

        def rate(mode: str) -> float:
            # The barrier keeps a process from taking a second share before all have taken one.
            shares = [pool.submit(Worker.share, mode, seconds / TURNS) for _ in range(processes)]
            return sum(share.result() for share in as_completed(shares))

        turns = [{mode: rate(mode) for mode in MODES} for _ in range(TURNS)]
    return {mode: max(turn[mode] for turn in turns[1:]) for mode in MODES}


class Worker:
    """What a process of the pool keeps between its shares: its trainings by mode, and the barrier to begin together."""

    trainings: dict[str, Iterator[None]]
    together: Barrier

    @classmethod
    def start(cls, task: Task, together: Barrier, threads: int) -> None:
        warnings.simplefilter("ignore")  # Opacus asks for its secure mode, torch about hooks on the first layer
        torch.set_num_threads(threads)
        torch.seed()
        cls.trainings, cls.together = {mode: training(task, mode) for mode in MODES}, together

    @classmethod
    def share(cls, mode: str, seconds: float) -> float:
        try:
            cls.together.wait()
            return steps_per_second(cls.trainings[mode], seconds)
        except BaseException:
            cls.together.abort()  # nobody waits for a process that failed
            raise


def steps_per_second(steps: Iterator[None], seconds: float) -> float:
    count, start, elapsed = 0, time.perf_counter(), 0.0
    while elapsed < seconds:
        next(steps)
        count, elapsed = count + 1, time.perf_counter() - start
    return count / elapsed


def training(task: Task, mode: str) -> Iterator[None]:
    """A model in training, one step each time the iterator is advanced."""
    # Channels last are faster, but there "ew" fails on small batches, and the gradients of convolutions by "hooks" and
    # the norms by "ghost" are silently wrong (Opacus 1.6). A clone, as `contiguous` would leave one channel as it is.
    layout = torch.channels_last if mode == "no_op" else torch.contiguous_format
    given = torch.from_numpy(task.x)
    images = given if given.dim() == 2 else given.permute(0, 3, 1, 2).clone(memory_format=layout)
    data = InMemory(images, torch.from_numpy(task.y).long())
    model = new_model(task.workload, task.x.shape[1:]).train()
    if given.dim() == 4:
        model = model.to(memory_format=layout)
    # With "ghost" a wrapped loss comes back as well, in third place.
    private, optimizer, *wrapped_loss, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), task.learning_rate),
        data_loader=DataLoader(data, task.batch_size, collate_fn=lambda batch: batch),
        noise_multiplier=task.noise_multiplier,
        max_grad_norm=task.clip_norm,
        grad_sample_mode=mode,
    )
    (loss,) = wrapped_loss or [nn.CrossEntropyLoss()]
    backward = vectorised(model) if mode == "no_op" else lambda batch, labels: loss(private(batch), labels).backward()
    while True:
        for batch, labels in loader:
            optimizer.zero_grad(set_to_none=True)
            backward(batch, labels)
            optimizer.step()
            yield


def vectorised(model: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """The backward pass of "no_op", which leaves the per-sample gradients to the user: `torch.func` computes them."""
    parameters = dict(model.named_parameters())

    def loss(values: dict[str, torch.Tensor], image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(functional_call(model, values, image[None]), label[None])

    per_sample = vmap(grad(loss), in_dims=(None, 0, 0))

    def backward(batch: torch.Tensor, labels: torch.Tensor) -> None:
        values = {name: parameter.detach() for name, parameter in parameters.items()}
        for name, gradients in per_sample(values, batch, labels).items():
            parameters[name].grad_sample = gradients

    return backward


class InMemory(TensorDataset):
    """Hands out a batch at once."""

    def __getitems__(self, indices: Sequence[int]) -> tuple[torch.Tensor, ...]:
        return self[torch.tensor(indices, dtype=torch.long)]


def new_model(workload: str, shape: Sequence[int]) -> nn.Module:
    match workload, *shape:
        case "probe", features:
            return nn.Linear(features, 10)
        case "mlp", *_:
            layers = [nn.Flatten(), nn.Linear(int(np.prod(shape)), 128), nn.Tanh(), nn.Linear(128, 10)]
        case "cnn", 8, 8, 1:
            layers = convolutional(nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2), features=128)
        case "cnn", 28, 28, 1:
            layers = convolutional(nn.Conv2d(1, 16, 8, 2, padding=3), nn.Conv2d(16, 32, 4, stride=2), features=512)
        case _:
            raise ValueError(f"workload must be 'mlp', or 'cnn' on 8x8x1 or 28x28x1, got {workload!r} on {shape}")
    return nn.Sequential(*layers)


def convolutional(first: nn.Module, second: nn.Module, features: int) -> list[nn.Module]:
    blocks = [first, nn.Tanh(), nn.MaxPool2d(2, 1), second, nn.Tanh(), nn.MaxPool2d(2, 1)]
    return [*blocks, nn.Flatten(), nn.Linear(features, 32), nn.Tanh(), nn.Linear(32, 10)]


def digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    images, classes = load_digits(return_X_y=True)
    return images[:1437].reshape(-1, 8, 8, 1).astype(np.float32) / 16, classes[:1437].astype(np.int32)


def main() -> None:
    parser = argparse.ArgumentParser(description="Model-steps per second of Opacus on the CPU.")
    parser.add_argument("--npz", type=Path, metavar="FILE", help="28x28 images: x_train and y_train, as uint8")
    parser.add_argument("--seconds", type=float, default=10, help="length of a measurement")
    arguments = parser.parse_args()

    runs = [("digits MLP", "mlp", *digits(), 50), ("digits CNN", "cnn", *digits(), 50)]
    if arguments.npz:
        with np.load(arguments.npz) as file:
            x, y = file["x_train"][..., None].astype(np.float32) / 255, file["y_train"].astype(np.int32)
        runs.append(("28x28 CNN", "cnn", x, y, 256))
    for name, workload, x, y, batch_size in runs:
        peer = model_steps_per_second(workload, x, y, batch_size, 1.0, 1.0, 0.5, arguments.seconds)
        print(f"{name}, batch {batch_size} of {len(x)}: {peer.rate:.1f} model-steps/s ({peer.how}; {peer.mode})")
        for how, rates in peer.rates.items():
            print(f"  {how}: " + ", ".join(f"{mode} {rate:.1f}" for mode, rate in rates.items()))


if __name__ == "__main__":
    main()
