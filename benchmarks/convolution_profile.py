"""What each part of a training step of the CNN costs, in processor time of one thread.

Run it with `python benchmarks/convolution_profile.py [--npz FILE]`; the README beside it says what is measured.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import lastiterate as li
from lastiterate.data import Dataset, digits, load_npz
from lastiterate.training import Trainer, problems
from lastiterate.training.models.cnn import CNN
from lastiterate.training.models.layers import Conv, image_patches, max_pool
from lastiterate.training.problem import Moment
from lastiterate.training.program import Program

ONE_THREAD = {"xla_cpu_prefer_vector_width": "512", "xla_cpu_multi_thread_eigen": False}
_AXES = Moment._make((None, 0))


@dataclass(frozen=True)
class Part:
    """Microseconds a model-step spends in a part, and its multiplications and additions, where it is a product."""

    name: str
    microseconds: float
    flops: float = 0.0
    of_whole: bool = True  # False: it is within another part


@dataclass(frozen=True)
class Profile:
    """The parts of a step. ``padding`` is the share of examples that only fill blocks up."""

    workload: str
    block: int
    padding: float
    step: float
    peak: float  # flops a second of a large product, on one thread
    parts: list[Part]


class Timed:
    """A compiled function, called many times within one program, so that calls from Python do not count."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        def repeat(count: jax.Array, *arguments: Any) -> Any:
            def again(_: jax.Array, before: Any) -> Any:
                # Inputs depend on the repetition before, by 0, so that no repetition can be left out.
                zero = 0.0 * jax.tree.leaves(before)[0].ravel()[0]
                moved = jax.tree.map(
                    lambda leaf: leaf + zero if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, arguments
                )
                return function(*moved)

            shapes = jax.eval_shape(function, *arguments)
            start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
            return jax.lax.fori_loop(0, count, again, start)

        self.arguments = arguments
        self.program = jax.jit(repeat).lower(jnp.int32(1), *arguments).compile(compiler_options=ONE_THREAD)
        self.count = 1
        seconds = self.seconds()
        self.count = max(1, int(0.03 / max(self.seconds(), seconds / 100, 1e-6)))

    def seconds(self) -> float:
        start = time.process_time()
        jax.block_until_ready(self.program(jnp.int32(self.count), *self.arguments))
        return (time.process_time() - start) / self.count


def best(timed: dict[str, Timed], turns: int) -> dict[str, float]:
    """Microseconds of each, the best of several turns: other work on the machine makes some of them slow."""
    rounds = [{name: one.seconds() for name, one in timed.items()} for _ in range(turns)]
    return {name: 1e6 * min(seconds[name] for seconds in rounds) for name in timed}


def stages(program: Program) -> dict[str, Timed]:
    """A block of one model, each stage with all those before it; and what a step does once."""
    assert program.form is not None
    form, problem = program.form, program.problem
    block = program.sampler.block
    trained = jax.tree.map(jnp.asarray, problem.trainable)
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf[:block]), problem.examples)
    moments = Moment(jnp.int32(0), jax.random.split(jax.random.key(0, impl="threefry2x32"), block))
    assert problem.loss is not None
    loss = problem.loss

    def forward(trained: Any, batch: Any) -> Any:
        model = problem.model(trained)
        return jax.vmap(lambda example, moment: loss(model, example, moment), (0, _AXES))(batch, moments)

    def describe(trained: Any, batch: Any) -> Any:
        return jax.vmap(form.describe, (None, 0, _AXES))(trained, batch, moments)

    def norms(trained: Any, batch: Any) -> Any:
        return form.norms(describe(trained, batch))

    def clipped(trained: Any, batch: Any) -> Any:
        described = describe(trained, batch)
        return form.weighted_sum(1.0 / jnp.maximum(1.0, form.norms(described)), described)

    copies = program.initial().weights.parameters
    inputs = program.inputs(0, np.zeros(1, np.int64), np.zeros(1, bool), program.shared_inputs())

    def sampled(unused: jax.Array, examples: Any) -> Any:
        cursor = program.sampler.cursor(1)
        step = jnp.int32(1) + unused.astype(jnp.int32)
        slots, weights, _ = program.sampler.take(inputs.sampling, (), inputs.keys.sampling, step, cursor)
        return weights, jax.tree.map(lambda leaf: leaf[jnp.minimum(slots, problem.size - 1)], examples)

    small = jax.tree.map(lambda leaf: leaf[: min(len(leaf), 2048)], inputs.examples)
    return {
        "forward": Timed(forward, trained, batch),
        "describe": Timed(describe, trained, batch),
        "norms": Timed(norms, trained, batch),
        "clipped": Timed(clipped, trained, batch),
        "sampled": Timed(lambda unused: sampled(unused, small), jnp.float32(0)),
        "noise": Timed(lambda trained: program._draw(trained, inputs, trained.first.bias[0, 0].astype(int)), copies),
    }


def pieces(model: CNN, image: tuple[int, int, int], block: int) -> tuple[dict[str, Timed], dict[str, float]]:
    """What layers do, each by itself on arrays of the same shapes, and the flops of the products among them."""
    timed: dict[str, Timed] = {}
    flops: dict[str, float] = {}
    shape = image
    for name, layer in (("first", model.first), ("second", model.second)):
        rows, inputs = shape[0] + 2 * layer.padding, layer.weight.shape[0]
        channels = layer.weight.shape[1]
        x = jnp.ones((block, rows, rows, shape[2]))
        side = (rows - layer.kernel) // layer.stride + 1
        patches, outputs = jnp.ones((block, side * side, inputs)), jnp.ones((block, side * side, channels))
        cut = _cutter(layer)
        timed[f"patches {name}"] = Timed(cut, x)
        products: dict[str, Callable[..., Any]] = {
            "forward": lambda x, y, w: x.reshape(-1, x.shape[-1]) @ w,
            "kernels": lambda x, y, w: jnp.einsum("ksi,ksj->kij", x, y),
        }
        if name == "second":  # nothing before the first layer is trained
            products["inputs"] = lambda x, y, w: y.reshape(-1, y.shape[-1]) @ w.T
            transposed = jax.linear_transpose(cut, x)
            timed["patches second, backward"] = Timed(lambda g, t=transposed: t(g), cut(x))
        for direction, product in products.items():
            timed[f"product {name} {direction}"] = Timed(product, patches, outputs, layer.weight)
            flops[f"product {name} {direction}"] = 2.0 * block * side * side * inputs * channels
        drawn = jax.random.normal(jax.random.key(0), (block, side, side, channels))
        timed[f"tanh {name}"] = Timed(jnp.tanh, drawn)
        timed[f"pool {name}"] = Timed(jax.vmap(max_pool), drawn)
        timed[f"pool {name} and backward"] = Timed(
            lambda x, g: jax.vjp(jax.vmap(max_pool), x)[1](g), drawn, drawn[:, 1:, 1:]
        )
        shape = (side - 1, side - 1, channels)
    return timed, flops


def _cutter(layer: Conv) -> Callable[[jax.Array], jax.Array]:
    return jax.vmap(lambda image: image_patches(image, layer.kernel, layer.stride))


def blocks_of(program: Program, batch_size: int) -> tuple[float, float]:
    """How many blocks a step takes on average, and the share of their examples that is padding."""
    block, size = program.sampler.block, program.problem.size
    batch = np.random.default_rng(0).binomial(size, batch_size / size, 100_000)
    blocks = float(np.mean(batch // block + 1))  # a batch ends with a draw beyond the last example
    return blocks, 1.0 - batch_size / (blocks * block)


def profile(workload: str, data: Dataset, batch_size: int, turns: int) -> Profile:
    problem, size = problems.cnn(data), len(data.x_train)
    run = li.DPSGD(20, batch_size / size, 1.0, optimizer=li.SGD(0.002))
    trainer = Trainer(run, problem, chunk_size=1, workers=2)  # with one worker, XLA would start threads
    program = trainer._program
    blocks, padding = blocks_of(program, batch_size)
    timed = stages(program)
    layers, flops = pieces(problem.parameters, data.x_train.shape[1:], program.sampler.block)
    square = jnp.ones((1024, 1024))
    timed |= layers | {"large product": Timed(jnp.matmul, square, square)}
    inputs = program.inputs(0, np.zeros(1, np.int64), np.zeros(1, bool), program.shared_inputs())

    def step() -> float:
        start = time.process_time()
        jax.block_until_ready(trainer._advance(program.initial(), inputs, np.int32(0), np.int32(run.steps)))
        return (time.process_time() - start) / run.steps

    whole = 1e6 * min(step() for _ in range(turns))
    took = best(timed, turns)
    whole = min(whole, 1e6 * min(step() for _ in range(turns)))
    parts = [
        Part("sampling, gathering images", blocks * took["sampled"]),
        Part("forward", blocks * took["forward"]),
        Part("backward to activations", blocks * (took["describe"] - took["forward"])),
        Part("kernel gradients and norms", blocks * (took["norms"] - took["describe"])),
        Part("clipped sum", blocks * (took["clipped"] - took["norms"])),
        Part("noise", took["noise"]),
    ]
    parts.append(Part("the rest (update, loops)", whole - sum(part.microseconds for part in parts)))
    parts += [Part(name, blocks * took[name], blocks * flops.get(name, 0.0), of_whole=False) for name in layers]
    peak = 2 * 1024.0**3 / (took["large product"] * 1e-6)
    return Profile(workload, program.sampler.block, padding, whole, peak, parts)


def show(result: Profile) -> None:
    console = Console(width=110)
    console.print(
        f"{result.workload}: {result.step:,.0f} microseconds a model-step; blocks of {result.block} examples, "
        f"{result.padding:.0%} of them padding; a large product runs at {result.peak / 1e9:.0f} GFlop/s."
    )
    table = Table("part", "microseconds", "of the step", "GFlop/s", "at the peak")
    for part in result.parts:
        cells = [f"{part.microseconds:,.0f}", f"{part.microseconds / result.step:.0%}"]
        if part.flops:
            cells += [f"{part.flops / part.microseconds / 1e3:.0f}", f"{part.flops / result.peak * 1e6:,.0f}"]
        table.add_row(part.name if part.of_whole else f"  {part.name}", *cells)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="What each part of a training step of the CNN costs.")
    parser.add_argument("--npz", type=Path, metavar="FILE", help="28x28 images such as Fashion-MNIST, as well")
    parser.add_argument("--turns", type=int, default=7, help="of which the best counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE as well")
    arguments = parser.parse_args()

    workloads = [("digits CNN, batch 50", digits(), 50)]
    if arguments.npz:
        workloads.append(("28x28 CNN, batch 256", load_npz(arguments.npz), 256))
    results = []
    for workload in workloads:
        results.append(profile(*workload, arguments.turns))
        show(results[-1])
    if arguments.json:
        rows = [asdict(result) for result in results]
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
