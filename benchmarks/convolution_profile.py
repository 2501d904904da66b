"""What each part of a training step of the CNN costs, by JAX's own profiler.

Run it with `python benchmarks/convolution_profile.py [--npz FILE]`; the README beside it says what is measured.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import re
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import lastiterate as li
from lastiterate.common.system import cores
from lastiterate.data import Dataset, digits, load_npz
from lastiterate.training import Trainer, problems

WORKERS = 2  # with one, XLA would start threads of its own
PRODUCTS = ("products forward", "products to inputs, and of clipped sums", "kernel gradients, an example each")
OTHERS = ("patches, and what is moved", "pooling and tanh", "random numbers", "norms, losses, update")
BETWEEN = "between operations"

# An instruction of a compiled program: its name, shape and operation.
_INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%(?P<name>[\w.-]+) = \w+\[(?P<shape>[\d,]*)\]\S* (?P<operation>[\w-]+)\((?P<rest>.*)"
)
_COMPUTATION = re.compile(r"^%(?P<name>[\w.-]+) \(.*\{$")


@dataclass(frozen=True)
class Instruction:
    """One line of a compiled program."""

    name: str
    shape: tuple[int, ...]
    operation: str
    rest: str  # operands and attributes


@dataclass(frozen=True)
class Part:
    """Microseconds of processor time that a model-step spends in a part; flops, where it is a product."""

    name: str
    microseconds: float
    flops: float


@dataclass(frozen=True)
class Profile:
    """The parts of a step. They add up to ``traced``; ``step`` is without the profiler, which slows it down."""

    workload: str
    block: int
    padding: float  # the share of examples that only fill blocks up
    step: float
    traced: float
    peak: float  # flops a second of a large product, a core's share
    parts: list[Part]


def profile(workload: str, data: Dataset, batch_size: int, steps: int, turns: int) -> Profile:
    size = len(data.x_train)
    run = li.DPSGD(steps, batch_size / size, 1.0, optimizer=li.SGD(0.002))
    trainer = Trainer(run, problems.cnn(data), chunk_size=1, workers=WORKERS)
    seconds = [_train(trainer) for _ in range(turns + 1)]
    traced, took, calls = min((_traced(trainer) for _ in range(turns)), key=lambda found: found[0])
    block = trainer._program.sampler.block
    classes = _Classes(trainer._advance.as_text())
    microseconds, flops = Counter[str](), Counter[str]()
    for name, total in took.items():
        if (part := classes.part(name)) is not None:
            microseconds[part] += total / (WORKERS * steps)
            flops[part] += classes.flops(name) * calls[name] / (WORKERS * steps)
    step, traced = 1e6 * min(seconds[1:]) / steps, 1e6 * traced / steps
    microseconds[BETWEEN] = traced - sum(microseconds.values())
    parts = [Part(name, microseconds[name], flops[name]) for name in (*PRODUCTS, *OTHERS, BETWEEN)]
    return Profile(workload, block, _padding(block, size, batch_size), step, traced, _peak(), parts)


def _train(trainer: Trainer) -> float:
    began = time.perf_counter()
    for _ in trainer.chunks(np.arange(WORKERS), np.zeros(WORKERS, bool), 0):
        pass
    return time.perf_counter() - began


def _traced(trainer: Trainer) -> tuple[float, Counter[str], Counter[str]]:
    """How long all took, microseconds in each operation of the compiled program, and how often it ran."""
    took, calls = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=True):
            seconds = _train(trainer)
        (file,) = Path(folder).rglob("perfetto_trace.json.gz")
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    for event in events:
        if event.get("ph") == "X":
            took[event["name"]] += event["dur"]
            calls[event["name"]] += 1
    return seconds, took, calls


class _Classes:
    """Which part of a step each operation of a compiled program belongs to."""

    def __init__(self, text: str) -> None:
        self._all: dict[str, Instruction] = {}
        self._inside: dict[str, list[Instruction]] = {}
        computation = ""
        for line in text.splitlines():
            if header := _COMPUTATION.match(line):
                computation = header["name"]
            elif found := _INSTRUCTION.match(line):
                shape = tuple(int(size) for size in found["shape"].split(",") if size)
                one = Instruction(found["name"], shape, found["operation"], found["rest"])
                self._all[one.name] = one
                self._inside.setdefault(computation, []).append(one)

    def part(self, name: str) -> str | None:
        """None: not an operation of the program, or a loop, whose operations count themselves."""
        one = self._all.get(name)
        if one is None or one.operation in ("while", "call", "conditional"):
            return None
        if (product := self._product(one)) is not None:
            return self._part_of_product(product)
        operations = {each.operation for each in self._operations(one)}
        if operations & {"xor", "shift-right-logical"}:
            return "random numbers"
        if (operations & {"tanh", "maximum"} and len(one.shape) > 2) or {"compare", "select", "pad"} <= operations:
            return "pooling and tanh"
        if operations & {"pad", "concatenate", "slice", "copy", "transpose"}:
            return "patches, and what is moved"
        return "norms, losses, update"

    def flops(self, name: str) -> float:
        product = self._product(self._all[name])
        return 0.0 if product is None else 2.0 * math.prod(product.shape) * self._contracted(product)

    def _operations(self, one: Instruction) -> list[Instruction]:
        called = re.search(r"calls=%([\w.-]+)", one.rest)
        return self._inside.get(called[1], []) if called else [one]

    def _product(self, one: Instruction) -> Instruction | None:
        return next((each for each in self._operations(one) if each.operation == "dot"), None)

    def _contracted(self, product: Instruction) -> int:
        left = self._all[re.findall(r"%([\w.-]+)", product.rest)[0]]
        axes = re.search(r"lhs_contracting_dims=\{([\d,]+)\}", product.rest)
        assert axes is not None
        return math.prod(left.shape[int(axis)] for axis in axes[1].split(","))

    def _part_of_product(self, product: Instruction) -> str:
        forward, others, kernels = PRODUCTS
        if "lhs_batch_dims" in product.rest:
            return kernels
        return forward if self._contracted(product) > product.shape[-1] else others


def _padding(block: int, size: int, batch_size: int) -> float:
    batch = np.random.default_rng(0).binomial(size, batch_size / size, 100_000)
    blocks = float(np.mean(batch // block + 1))  # a batch ends with a draw beyond the last example
    return 1.0 - batch_size / (blocks * block)


def _peak() -> float:
    square = jnp.ones((2048, 2048))
    product = jax.jit(jnp.matmul).lower(square, square).compile()
    best = math.inf
    for _ in range(10):
        began = time.perf_counter()
        jax.block_until_ready(product(square, square))
        best = min(best, time.perf_counter() - began)
    return 2 * 2048.0**3 / best / cores()


def show(result: Profile) -> None:
    console = Console(width=110)
    console.print(
        f"{result.workload}: {result.step:,.0f} microseconds of a core for a model-step, {result.traced:,.0f} with the "
        f"profiler; blocks of {result.block} examples, {result.padding:.0%} of them padding; a core's share of a large "
        f"product is {result.peak / 1e9:.0f} GFlop/s."
    )
    table = Table("part", "microseconds", "of the step", "GFlop/s", "at the peak")
    for column in table.columns[1:]:
        column.justify = "right"
    for part in result.parts:
        cells = [f"{part.microseconds:,.0f}", f"{part.microseconds / result.traced:.0%}"]
        if part.flops:
            cells += [f"{part.flops / part.microseconds / 1e3:.0f}", f"{part.flops / result.peak * 1e6:,.0f}"]
        table.add_row(part.name, *cells)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="What each part of a training step of the CNN costs.")
    parser.add_argument("--npz", type=Path, metavar="FILE", help="28x28 images such as Fashion-MNIST, as well")
    parser.add_argument("--turns", type=int, default=5, help="of which the best counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE as well")
    arguments = parser.parse_args()

    workloads = [("digits CNN, batch 50", digits(), 50, 600)]
    if arguments.npz:
        workloads.append(("28x28 CNN, batch 256", load_npz(arguments.npz), 256, 40))
    results = []
    for workload in workloads:
        results.append(profile(*workload, arguments.turns))
        show(results[-1])
    if arguments.json:
        rows = [asdict(result) for result in results]
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
