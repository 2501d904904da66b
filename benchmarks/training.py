"""Training speed against Opacus, side by side in one run, with the growth in the number of models and physical limits.

Run it with `python benchmarks/training.py [--npz FILE]`; the README beside it says what is measured. Exit status 1 if
a requirement fails.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from opacus_training import Peer, model_steps_per_second
from rich.console import Console
from rich.table import Table

import lastiterate as li
from lastiterate.data import Dataset, digits, load_npz
from lastiterate.training import Problem, Trainer, problems
from lastiterate.training.draws import normals

NOISE, CLIP, RATE = 1.0, 1.0, 0.01
GROWTH_MODELS = (16, 64, 256, 1024)


@dataclass(frozen=True)
class Workload:
    """What is trained on both sides; ``required`` and ``aim`` are ratios of model-steps a second."""

    name: str
    kind: str
    batch_size: int
    required: float
    aim: float


@dataclass(frozen=True)
class Comparison:
    """Model-steps a second of ours and of Opacus, and what the machine could do at most."""

    workload: str
    ours: float
    opacus: float
    opacus_how: str
    ratio: float
    required: float
    aim: float
    chunk_size: int
    compile_seconds: float
    limit: float
    passed: bool


@dataclass(frozen=True)
class Growth:
    """Microseconds a model-step takes when so many models are trained."""

    models: int
    microseconds: float


@dataclass(frozen=True)
class Machine:
    """What all cores reach together: arithmetic, normals, and copying."""

    flops: float
    normals: float
    bytes: float


def our_problem(kind: str, data: Dataset) -> Problem:
    return {"mlp": problems.mlp, "cnn": problems.cnn, "probe": problems.logistic}[kind](data)


def made_up_features() -> Dataset:
    """Features in bytes of the size of all of CIFAR-10 through EfficientNet-Lite0: 50,000 vectors of 1,280."""
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (50_000, 1280), dtype=np.uint8)
    return Dataset.from_arrays("made up", x, np.arange(len(x)) % 10, x[:10], np.arange(10), feature_norm=30.0)


def our_run(data: Dataset, batch_size: int, steps: int) -> li.DPSGD:
    size = len(data.x_train)
    return li.DPSGD(steps, batch_size / size, NOISE, clip_norm=CLIP, optimizer=li.SGD(RATE / 5))


def seconds_of(trainer: Trainer, models: int) -> float:
    start = time.perf_counter()
    for _ in trainer.chunks(np.arange(models), np.zeros(models, bool), 0):
        pass
    return time.perf_counter() - start


def our_rate(workload: Workload, data: Dataset, seconds: float) -> tuple[float, int, float]:
    """Model-steps a second, chunk size, and how long compilation took."""
    problem = our_problem(workload.kind, data)
    start = time.perf_counter()
    trainer = Trainer(our_run(data, workload.batch_size, 20), problem)
    compiled = time.perf_counter() - start
    models = trainer.chunk_size * trainer.workers
    seconds_of(trainer, models)
    steps = max(20, math.ceil(20 * seconds / seconds_of(trainer, models) / 3))
    trainer = Trainer(our_run(data, workload.batch_size, steps), problem)
    best = min(seconds_of(trainer, models) for _ in range(3))
    return models * steps / best, trainer.chunk_size, compiled


def growth(data: Dataset, steps: int = 400) -> list[Growth]:
    """The digits MLP for more and more models, each as a user would train them. Compilation is not counted."""
    result = []
    for models in GROWTH_MODELS:
        trainer = Trainer(our_run(data, 50, steps), problems.mlp(data), models=models)
        seconds_of(trainer, min(models, trainer.chunk_size))
        best = min(seconds_of(trainer, models) for _ in range(3 if models < 1024 else 2))
        result.append(Growth(models, best / models / steps * 1e6))
    return result


def measure_machine() -> Machine:
    def rate(work: float, function: Any, *arguments: Any) -> float:
        compiled = jax.jit(function).lower(*arguments).compile()
        jax.block_until_ready(compiled(*arguments))
        best = math.inf
        for _ in range(10):
            start = time.perf_counter()
            jax.block_until_ready(compiled(*arguments))
            best = min(best, time.perf_counter() - start)
        return work / best

    square = jnp.ones((2048, 2048), jnp.float32)
    keys = jnp.arange(64, dtype=jnp.uint32).reshape(32, 2)
    long = jnp.ones(2**25, jnp.float32)
    return Machine(
        flops=rate(2 * 2048.0**3, jnp.matmul, square, square),
        normals=rate(32.0 * 2**16, lambda k: normals(k, jnp.int32(1), (2**16,)), keys),
        bytes=rate(8.0 * 2**25, lambda x: x + 1.0, long),
    )


def physical_limit(workload: Workload, data: Dataset, machine: Machine) -> float:
    """Model-steps a second if only the products of matrices and the noise cost anything, at the machine's peak."""
    problem = our_problem(workload.kind, data)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(problem.trainable))
    flops = workload.batch_size * example_flops(workload.kind, data)
    return 1.0 / (flops / machine.flops + parameters / machine.normals)


def example_flops(kind: str, data: Dataset) -> float:
    """Multiplications and additions of one example: forward, and backward to weights and (but for the first) inputs."""
    pixels = data.x_train.shape[1]
    if kind == "probe":
        layers = [(1, pixels, 10)]
    elif kind == "mlp":
        layers = [(1, pixels**2, 128), (1, 128, 10)]
    elif pixels == 8:
        layers = [(64, 9, 16), (9, 144, 32), (1, 128, 32), (1, 32, 10)]
    else:
        layers = [(196, 64, 16), (25, 256, 32), (1, 512, 32), (1, 32, 10)]
    products = [positions * inputs * outputs for positions, inputs, outputs in layers]
    return 2.0 * (3 * sum(products) - products[0])


def compare(workload: Workload, data: Dataset, machine: Machine, seconds: float) -> tuple[Comparison, Peer]:
    ours, chunk_size, compiled = our_rate(workload, data, seconds)
    x = data.x_train if data.feature_scale is None else data.x_train.astype(np.float32) * np.float32(data.feature_scale)
    peer = model_steps_per_second(workload.kind, x, data.y_train, workload.batch_size, NOISE, CLIP, RATE, seconds)
    ratio = ours / peer.rate
    result = Comparison(
        workload.name,
        ours,
        peer.rate,
        f"{peer.how}; {peer.mode}",
        ratio,
        workload.required,
        workload.aim,
        chunk_size,
        compiled,
        physical_limit(workload, data, machine),
        ratio >= workload.required,
    )
    return result, peer


def show(machine: Machine, comparisons: list[Comparison], grown: list[Growth]) -> None:
    console = Console(width=150)
    table = Table(
        "workload", "ours /s", "Opacus /s", "Opacus' best", "ratio", "required", "aim", "chunk", "limit /s", "of limit"
    )
    for row in comparisons:
        cells = [f"{row.ours:,.0f}", f"{row.opacus:,.0f}", row.opacus_how, f"{row.ratio:.1f}x"]
        cells += [f"{row.required:g}x", f"{row.aim:g}x", str(row.chunk_size), f"{row.limit:,.0f}"]
        table.add_row(row.workload, *cells, f"{row.ours / row.limit:.0%}")
    console.print(table)
    console.print(
        f"This machine: {machine.flops / 1e9:.0f} GFlop/s in a product of matrices, {machine.normals / 1e6:.0f} million"
        f" normals/s of our generator, {machine.bytes / 1e9:.0f} GB/s read and written."
    )
    if grown:
        costs = ", ".join(f"{row.models}: {row.microseconds:.0f}" for row in grown)
        console.print(f"Microseconds a model-step of the digits MLP, by number of models: {costs}.")


def main() -> int:
    parser = argparse.ArgumentParser(description="Training speed against Opacus.")
    parser.add_argument("--npz", type=Path, metavar="FILE", help="28x28 images such as Fashion-MNIST, for a third row")
    parser.add_argument("--seconds", type=float, default=8, help="length of a measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE as well")
    arguments = parser.parse_args()

    embedded = digits()
    workloads = [
        (Workload("digits MLP 64-128-10, batch 50", "mlp", 50, 10, 15), embedded),
        (Workload("digits CNN, batch 50", "cnn", 50, 5, 8), embedded),
    ]
    if arguments.npz:
        workloads.append((Workload("28x28 CNN, batch 256", "cnn", 256, 2, 4), load_npz(arguments.npz)))
    workloads += [
        (Workload(f"linear probe 1280-10, batch {batch:,}", "probe", batch, 10, 10), made_up_features())
        for batch in (4096, 256)
    ]
    machine = measure_machine()
    rows = [compare(workload, data, machine, arguments.seconds) for workload, data in workloads]
    comparisons = [row for row, _ in rows]
    grown = growth(embedded)
    show(machine, comparisons, grown)
    # Flat or falling: no step up by more than the noise of a measurement.
    flat = all(later.microseconds < 1.15 * earlier.microseconds for earlier, later in pairwise(grown))
    if arguments.json:
        result = {
            "machine": asdict(machine),
            "comparisons": [asdict(row) for row in comparisons],
            "opacus": [asdict(peer) for _, peer in rows],
            "growth": [asdict(row) for row in grown],
            "flat": flat,
        }
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if flat and all(row.passed for row in comparisons) else 1


if __name__ == "__main__":
    sys.exit(main())
