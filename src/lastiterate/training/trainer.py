"""A compiled trainer. One compiled program trains chunks of models, one chunk per core at a time."""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import jax
import numpy as np
from jax.stages import Compiled
from jaxtyping import PyTree

from lastiterate.common.errors import TrainingDiverged
from lastiterate.common.progress import TrainingProgress
from lastiterate.common.system import cache_folder, cores, kept_memory, process_peak_bytes
from lastiterate.common.types import BoolArray, IntArray, RealArray
from lastiterate.common.validation import boolean, function, instance, integer, number, told
from lastiterate.optimizer import is_adam
from lastiterate.run import DPSGD
from lastiterate.supported_runs import TRAINER, require_supported
from lastiterate.training.problem import Canary, ExampleCanary, GradientCanary, Problem, same_structure
from lastiterate.training.program import Inputs, Program, State, compile_program, describe_gradients
from lastiterate.training.sampling import make_sampler, tight_block
from lastiterate.training.update import released

# A core's share of the caches. Work that fits into it is several times as fast as work that does not.
CACHE_BYTES = 2 * 2**20
LARGEST_CHUNK = 4096
LEAST_BLOCK = 16  # examples; products of smaller matrices are inefficient
LARGEST_BLOCK_OF_SUMS = 32  # for convolutions, where one example gives many rows; larger blocks only add padding


def _accelerator() -> dict[str, int]:
    (device,) = jax.numpy.zeros(()).devices()  # the device that JAX uses now
    return device.memory_stats() or {}


def available_bytes() -> int:
    """Return the memory still available on the accelerator, if JAX uses one, else in this machine or container."""
    statistics = _accelerator()
    if "bytes_limit" in statistics:
        return int(statistics["bytes_limit"] - statistics["bytes_in_use"])
    return min(_machine_bytes(), _container_bytes())


def total_bytes() -> int:
    """Return the total memory of the accelerator, if JAX uses one, else of this machine."""
    limit = _accelerator().get("bytes_limit")
    if limit is None and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return _machine_bytes() if limit is None else int(limit)


def peak_bytes() -> int:
    """Return the peak memory so far of the accelerator, if JAX uses one, else of this process."""
    return int(_accelerator().get("peak_bytes_in_use") or process_peak_bytes())


def working_bytes() -> int:
    """Return how many bytes a step of a chunk should use at most. It depends on the machine, not on its load."""
    limit = _accelerator().get("bytes_limit")
    return CACHE_BYTES if limit is None else int(limit) // 4


def choose_chunk_size(model_bytes: int, example_bytes: int, batch: float, models: int, workers: int) -> int:
    """Return the number of models to train at once, limited by working memory and by the number of workers."""
    each = model_bytes + example_bytes * max(batch, 1.0)
    return max(1, min(int(working_bytes() / each), math.ceil(models / workers), LARGEST_CHUNK))


def largest_block(example_bytes: int, chunk_size: int, has_sums: bool) -> int:
    """Return the largest number of examples per model in a block. ``has_sums`` is as in ``GradientForm``."""
    fits = max(LEAST_BLOCK, working_bytes() // (example_bytes * chunk_size))
    return min(fits, LARGEST_BLOCK_OF_SUMS) if has_sums and jax.default_backend() == "cpu" else fits


def _machine_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return 4 * 2**30


def _container_bytes() -> int:
    try:
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text("ascii")) for name in ("max", "current"))
        return limit - used
    except (OSError, ValueError):  # no such file, or "max"
        return sys.maxsize


def use_compilation_cache() -> None:
    """Keep compiled programs in the user's cache folder. The user's own JAX settings take precedence."""
    settings: Any = jax.config  # JAX's type does not list the settings
    if settings.jax_compilation_cache_dir is None and settings.jax_enable_compilation_cache:
        settings.update("jax_compilation_cache_dir", str(cache_folder("compiled")))
        settings.update("jax_persistent_cache_min_compile_time_secs", 0.5)


_wait: Callable[[State], State] = jax.block_until_ready  # JAX's function has no type annotations
_MOST_WORKERS, _MOST_AT_ONCE = 1024, 2**20
_LEAST, _MOST = 1e-30, 1e30  # range of float32, with a margin
SEGMENT_SECONDS = 0.3  # target time between returns to Python, for progress, interrupts and checks


@dataclass(frozen=True, eq=False)
class TrainedChunk:
    """A chunk of models: their numbers, whether the canary is present for each, and their parameters."""

    models: IntArray
    present: BoolArray
    parameters: PyTree[RealArray]  # NumPy arrays with a leading axis of models
    second_moment: PyTree[RealArray] | None = None  # Adam's mean of squared gradients, without bias correction


OnIterate = Callable[[int, TrainedChunk], None]


class Trainer:
    """A compiled training for any number of models. Make it once, then train the chunks of an audit with it.

    Args:
        run: the run to train; it needs an optimizer.
        canary: the extra example or gradient that is present for some models. If ``group_size`` is above 1, there are
            that many copies, and each copy is sampled and clipped separately.
        models: the approximate number of models, which limits the chunk size.
        chunk_size: the number of models that the compiled program trains at once. The default suits the machine.
        workers: the number of chunks trained at a time. By default, one per core, or one on an accelerator.
        double: whether to train in float64. By default, follow JAX's setting.
    """

    def __init__(
        self,
        run: DPSGD,
        problem: Problem,
        canary: Canary | None = None,
        *,
        models: int = 1024,
        chunk_size: int | None = None,
        workers: int | None = None,
        double: bool | None = None,
    ) -> None:
        instance("problem", problem, Problem, "a training.Problem")
        if canary is not None:
            instance("canary", canary, (ExampleCanary, GradientCanary), "an ExampleCanary, a GradientCanary or None")
        integer("models", models)
        if double is not None:
            boolean("double", double)
        require_supported(run, TRAINER)
        if isinstance(canary, ExampleCanary):
            _check_example_canary(problem, canary, run)
        _check_single_precision(run)
        use_compilation_cache()
        default = cores() if jax.default_backend() == "cpu" else 1
        self.workers = default if workers is None else integer("workers", workers, 1, _MOST_WORKERS)
        self.run, self.problem, self.canary, self.steps = run, problem, canary, run.steps
        self._double = bool(jax.config.x64_enabled) if double is None else double  # type: ignore[attr-defined]
        with jax.enable_x64(self._double):
            self._form = describe_gradients(problem)
            if chunk_size is None:
                expected = float(np.max(run.sample_rate)) * problem.size
                chunk_size = choose_chunk_size(*self._bytes(), expected, models, self.workers)
            self.chunk_size = integer("chunk_size", chunk_size, 1, _MOST_AT_ONCE)
            self._program, self._advance = self._compile()
            self._shared = self._program.shared_inputs()

    def with_canary(self, canary: GradientCanary) -> Trainer:
        """Return a trainer with another gradient canary and the same compiled program. No canary may be a function."""
        if not isinstance(self.canary, GradientCanary) or callable(self.canary.gradient) or callable(canary.gradient):
            raise ValueError("canary must be a constant gradient, and so must the trainer's own canary")
        other = copy(self)
        other.canary = canary
        with jax.enable_x64(self._double):
            other._shared = (*self._shared[:-1], canary.constant(self.problem))
        return other

    def stopping_after(self, steps: int) -> Trainer:
        """Return a trainer that stops after ``steps`` steps of the run, with the same compiled program."""
        other = copy(self)
        other.steps = integer("steps", steps, 0, self.run.steps)
        return other

    def _bytes(self) -> tuple[int, int]:
        """Estimate the memory in bytes of a model, and of one example in its batch, while training."""
        optimizer = self.run.optimizer
        assert optimizer is not None
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(self.problem.trainable)]
        copies = 3 + bool(optimizer.momentum) + (optimizer.averaging is not None) + 2 * optimizer.is_adaptive
        example = sum(leaf[0].nbytes for leaf in map(np.asarray, jax.tree.leaves(self.problem.examples)))
        numbers = self._form.numbers if self._form else 1
        return copies * sum(leaf.nbytes for leaf in leaves), example + numbers * leaves[0].itemsize

    def _compile(self) -> tuple[Program, Compiled]:
        """Compile the program. Halve the block size until the program fits into memory."""
        has_sums = self._form is not None and self._form.has_sums
        most = largest_block(self._bytes()[1], self.chunk_size, has_sums)
        if has_sums and self.run.sampling == "poisson":
            most = tight_block(self.problem.size, float(np.max(self.run.sample_rate)), self.chunk_size, most)
        while True:
            program = self._make_program(most)
            compiled = compile_program(program, self.workers)
            analysis = compiled.memory_analysis()  # None if the platform does not support it
            needed = self.workers * (0 if analysis is None else int(analysis.temp_size_in_bytes))
            if needed < 0.6 * total_bytes() or program.sampler.block <= 1 or self.problem.multiplicity is not None:
                break
            most = program.sampler.block // 2
        if needed > available_bytes():
            raise MemoryError(
                f"chunk_size {self.chunk_size} with {self.workers} workers needs {needed / 2**30:.1f} GiB, and "
                f"{available_bytes() / 2**30:.1f} GiB are available: choose a smaller one, or fewer workers"
            )
        return program, compiled

    def _make_program(self, most: int) -> Program:
        copies = 0 if self.canary is None else self.run.group_size
        slots = self.problem.size + copies
        if not slots:
            raise ValueError("examples must not be empty where there is no canary: there is nothing to train on")
        counts = self.problem.multiplicity
        different = isinstance(self.canary, ExampleCanary) and self.canary.is_group
        added = [1] * copies if different else [copies][:copies]
        multiplicity = None if counts is None else np.append(np.asarray(counts, np.int64), added)
        sampler = make_sampler(self.run, slots, self.chunk_size, most, multiplicity)
        return Program(self.run, self.problem, self.canary, sampler, self._form, self.chunk_size)

    def chunks(
        self,
        models: IntArray,
        present: BoolArray,
        seed: int,
        progress: TrainingProgress | None = None,
        on_iterate: OnIterate | None = None,
        on_release: OnIterate | None = None,
    ) -> Iterator[TrainedChunk]:
        """Train the models with these numbers, and yield finished chunks in the order of the models.

        ``on_iterate`` is called before the first step and after every step. ``on_release`` is called before the first
        step and after each step whose iterate the run releases, with the released parameters.
        """
        _check_models(models, present)
        integer("seed", seed, 0, 2**64 - 1)
        if progress is not None:
            instance("progress", progress, TrainingProgress, "a TrainingProgress or None")
        for name, called in (("on_iterate", on_iterate), ("on_release", on_release)):
            if called is not None:
                function(name, called, "a function of step and chunk, or None")
        stop = Event()
        waiting: deque[Future[TrainedChunk]] = deque()
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="lastiterate")
        try:
            with kept_memory():
                for begin in range(0, len(models), self.chunk_size):
                    part = slice(begin, begin + self.chunk_size)
                    shown = stop, progress, on_iterate, on_release
                    waiting.append(pool.submit(self._train_chunk, models[part], present[part], seed, *shown))
                    if len(waiting) > 2 * self.workers:  # finished chunks hold memory until the caller takes them
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)

    def _train_chunk(
        self,
        models: IntArray,
        present: BoolArray,
        seed: int,
        stop: Event,
        progress: TrainingProgress | None,
        on_iterate: OnIterate | None,
        on_release: OnIterate | None,
    ) -> TrainedChunk:
        count = len(models)
        releases = deque(self.run.released_steps().tolist() if on_release else ())
        padding = (0, self.chunk_size - count)

        def iterate(state: State) -> TrainedChunk:
            weights = state.weights
            return TrainedChunk(models, present, _first(weights.parameters, count), _first(weights.second, count))

        def release(state: State) -> TrainedChunk:
            return TrainedChunk(models, present, _first(released(state.weights), count))

        with jax.enable_x64(self._double):  # a new thread does not inherit the setting
            inputs = self._program.inputs(seed, np.pad(models, padding), np.pad(present, padding), self._shared)
            state = self._program.initial()
            if on_iterate:
                on_iterate(0, iterate(state))
            if on_release:
                on_release(0, release(state))
            step, stride = 0, 1
            while step < self.steps and not stop.is_set():
                end = min(step + stride, releases[0] if releases else self.steps)
                began = monotonic()
                before, state = state, _wait(self._advance(state, inputs, np.int32(step), np.int32(end)))
                if not _finite(state, count).all():
                    self._report_divergence(before, inputs, step, models, present)
                if on_iterate:
                    on_iterate(end, iterate(state))
                else:  # choose the number of steps that take about SEGMENT_SECONDS
                    taken = max(monotonic() - began, 1e-6)
                    stride = max(1, min(4 * (end - step), int((end - step) * SEGMENT_SECONDS / taken)))
                if on_release and end == releases[0]:
                    releases.popleft()
                    on_release(end, release(state))
                if progress:
                    progress.advanced(count, end - step, finished=end == self.steps)
                step = end
            return release(state)

    def _report_divergence(self, state: State, inputs: Inputs, step: int, models: IntArray, present: BoolArray) -> None:
        """Raise an error that names the first step after which a model is not finite. Steps are repeated to find it."""
        finite = _finite(state, len(models))
        while finite.all():
            state = self._advance(state, inputs, np.int32(step), np.int32(step + 1))
            finite, step = _finite(state, len(models)), step + 1
        where = int(np.argmin(finite))
        optimizer = self.run.optimizer
        assert optimizer is not None
        rate = float(np.broadcast_to(optimizer.learning_rate, self.run.steps)[step - 1])
        world = "with" if present[where] else "without"
        raise TrainingDiverged(
            f"model {int(models[where])} ({world} canary) has parameters that are not finite after step {step} of "
            f"{self.run.steps}, at learning rate {rate:g}: training diverged; a smaller learning rate may help"
        )


def _finite(state: State, count: int) -> BoolArray:
    leaves = [np.asarray(leaf)[:count].reshape(count, -1) for leaf in jax.tree.leaves(state.weights.parameters)]
    finite: BoolArray = np.all([np.isfinite(leaf).all(axis=1) for leaf in leaves], axis=0)
    return finite


def _check_single_precision(run: DPSGD) -> None:
    optimizer = run.optimizer
    assert optimizer is not None
    number("clip_norm", run.clip_norm, _LEAST, _MOST)
    most = max(1.0, *map(abs, run.noise_filter or (1.0,))) * float(np.max(run.noise_multiplier))
    noise = run.clip_norm * most
    number("clip_norm times noise_multiplier", noise, 0.0, _MOST)
    if is_adam(optimizer):  # Adam squares gradients
        number("clip_norm times noise_multiplier", noise, _LEAST**0.5, _MOST**0.5)
        number("eps", optimizer.eps, 0.0, _MOST)
    number("learning_rate", float(np.max(optimizer.learning_rate)), 0.0, float(np.finfo(np.float32).max))
    number("weight_decay", optimizer.weight_decay, 0.0, _MOST)


def _check_models(models: IntArray, present: BoolArray) -> None:
    for name, value, kinds in (("models", models, "iu"), ("present", present, "b")):
        if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in kinds:
            what = "booleans" if kinds == "b" else "integers"
            raise ValueError(f"{name} must be an array of {what}, one for each model, got {told(value)}")
    if np.shape(models) != np.shape(present):
        raise ValueError(f"present must be one for each of {np.size(models)} models, got {np.size(present)}")


def _check_example_canary(problem: Problem, canary: ExampleCanary, run: DPSGD) -> None:
    if run.is_mirrored != (canary.replacement is not None):
        needs = "have a replacement" if run.is_mirrored else "have no replacement"
        raise ValueError(f"canary must {needs} where neighbours is {run.neighbours!r}, got {told(canary.replacement)}")
    leading = (run.group_size,) if canary.is_group else ()
    one = jax.tree.map(lambda leaf: leading + np.shape(leaf)[1:], problem.examples)
    for given in [canary.example, *([] if canary.replacement is None else [canary.replacement])]:
        found = jax.tree.map(np.shape, given)
        if not same_structure(problem.examples, given) or one != found:
            raise ValueError(f"canary must be an example like those of the problem, of shapes {one}, got {found}")


def _first(tree: PyTree[jax.Array], count: int) -> PyTree[RealArray]:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], tree)
