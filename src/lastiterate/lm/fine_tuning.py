"""Parallel fine-tuning of many models on one problem: trials, reference models, timings, and Adam's second moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from lastiterate.common.progress import TrainingProgress
from lastiterate.common.system import cores, kept_memory
from lastiterate.common.validation import boolean, instance, integer
from lastiterate.lm.dp_sgd import TextTrainer, Watched
from lastiterate.lm.example_gradients import Tensors
from lastiterate.lm.text_problem import Loaded, TextProblem, load
from lastiterate.run import DPSGD
from lastiterate.trainers.adam_second_moment import LEAST_MODELS, SecondMoment, SecondMomentWatch

_SMALL = 20_000_000  # parameters up to which models are trained in parallel, one per core
_TIMED_STEPS = 6
FIRST_REFERENCE = 2**31  # above the numbers of all trials

Reading = TypeVar("Reading")
Read = Callable[[Loaded, Tensors], Reading]  # the result to keep of a released model, which may be too large


class Model(NamedTuple):
    """One model: its number, and for each canary whether it is present."""

    number: int
    present: Sequence[bool]


Look = Callable[[Model, Loaded, Tensors], None]


def train_models(
    run: DPSGD,
    problem: TextProblem,
    canaries: Sequence[Sequence[int]],
    models: Sequence[Model],
    seed: int,
    read: Read[Reading],
    *,
    workers: int | None = None,
    progress: TrainingProgress | None = None,
    look: Look | None = None,
    replacements: Sequence[Sequence[int]] = (),
    watched: Callable[[int], Watched] | None = None,
) -> Iterator[tuple[Model, Reading, float]]:
    """Train models. Yield each model, its reading and its seconds as soon as it is trained.

    Small models are trained in parallel threads. A model depends only on its number, its canaries and the seed.

    Args:
        look: called with every released iterate, and with the last one before it is read.
        replacements: examples in the places of absent canaries. Without them, the places stay empty.
        watched: returns, for the number of a model, the function that is called after each of its steps.
    """
    first = load(problem)
    count = _workers(first, len(models), workers)
    idle: SimpleQueue[Loaded] = SimpleQueue()
    for loaded in (first, *(first.copied() for _ in range(count - 1))):
        idle.put(loaded)
    added, instead = (
        [torch.tensor(canary, device=first.examples[0].device) for canary in given]
        for given in (canaries, replacements)
    )

    def train(model: Model) -> tuple[Model, Reading, float]:
        began, loaded = monotonic(), idle.get()
        try:
            trainer = TextTrainer(run, loaded.gradients, loaded.start, *loaded.examples)
            advanced = (lambda: progress.advanced(1, 1, finished=False)) if progress else None
            entropy = [seed, model.number, *map(int, model.present)]
            shown = partial(look, model, loaded) if look else None
            watch = watched(model.number) if watched else None
            there, present = added, model.present
            if instead:
                there = [a if here else b for a, b, here in zip(added, instead, model.present, strict=True)]
                present = [True] * len(there)
            reading = read(loaded, trainer.train(there, present, entropy, advanced, shown, watch))
        finally:
            idle.put(loaded)
        if progress:
            progress.advanced(1, 0, finished=True)
        return model, reading, monotonic() - began

    with _threads(first), kept_memory(), ThreadPoolExecutor(count) as pool:
        waiting: list[Future[Any]] = []
        done: SimpleQueue[Future[Any]] = SimpleQueue()
        try:
            for model in models:
                future = pool.submit(train, model)
                future.add_done_callback(done.put)
                waiting.append(future)
            for _ in waiting:
                yield done.get().result()
        finally:
            for future in waiting:
                future.cancel()


class Seconds(NamedTuple):
    """Seconds of the parts of an audit, with as many models as are trained in parallel.

    Attributes:
        step: one step of one model.
        perplexity: perplexity of one model on the held-out texts.
        gradient: gradient of one example alone, as crafters need it.
    """

    step: float
    perplexity: float
    gradient: float


def time_parts(run: DPSGD, problem: TextProblem) -> Seconds:
    """Measure the seconds of each part after a first, slower execution."""
    loaded = load(problem)
    count = _workers(loaded, cores(), None)

    def steps(number: int) -> float:
        short, began = run.prefix(min(number, run.steps)), monotonic()
        for _ in train_models(short, problem, (), [Model(i, ()) for i in range(count)], 0, lambda *_: None):
            pass
        return (monotonic() - began) / (count * short.steps)

    def gradients(loaded: Loaded) -> None:
        tokens, lengths = loaded.examples
        loaded.gradients.one(loaded.start, tokens[0, : int(lengths[0])])

    def reading(read: Callable[[Loaded], object]) -> float:
        with _threads(loaded):
            read(loaded)
            began = monotonic()
            read(loaded)
            return (monotonic() - began) / count

    steps(1)
    perplexity = reading(lambda loaded: loaded.perplexity(loaded.start)) if loaded.held_out is not None else 0.0
    return Seconds(steps(_TIMED_STEPS), perplexity, reading(gradients))


class TextReferences:
    """Trains and reads reference models without canaries. ``counted`` is the number of trials of the audit."""

    def __init__(self, seed: int, progress: bool | None, counted: int = 0) -> None:
        self._seed, self._progress, self.counted = seed, progress, counted

    def __call__(
        self,
        run: DPSGD,
        problem: TextProblem,
        read: Read[Reading],
        *,
        models: int,
        purpose: int = 0,
        look: Look | None = None,
    ) -> list[Reading]:
        numbers = FIRST_REFERENCE + purpose * 2**24 + np.arange(models)
        wanted = [Model(int(number), ()) for number in numbers]
        with TrainingProgress(models, run.steps, self._progress) as bar:
            found = {
                model.number: reading
                for model, reading, _ in train_models(
                    run, problem, (), wanted, self._seed, read, progress=bar, look=look
                )
            }
        return [found[model.number] for model in wanted]


def _workers(loaded: Loaded, models: int, asked: int | None) -> int:
    return max(1, min(asked or cores(), models)) if _is_small(loaded) else 1


def _is_small(loaded: Loaded) -> bool:
    on_cpu = loaded.examples[0].device.type == "cpu"
    return on_cpu and sum(value.numel() for value in loaded.model.parameters()) <= _SMALL


@contextmanager
def _threads(loaded: Loaded) -> Iterator[None]:
    """Use one thread for each small model, even if only one is trained: more threads change the order of sums."""
    before = torch.get_num_threads()
    if _is_small(loaded):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# Adam's second moment: the share of noise in it, in fine-tunings of a language model.

MODELS = 2


def second_moment(
    run: DPSGD,
    problem: TextProblem,
    *,
    models: int = MODELS,
    seed: int = 0,
    first: int = 0,
    progress: bool | None = None,
) -> SecondMoment:
    """Fine-tune a few models with Adam, and measure the share of noise in its second moment.

    Args:
        run: a run whose optimizer is a ``lastiterate.Adam``.
        problem: a model and texts.
        models: number of models, at least 2.
        seed: seed of the models' randomness.
        first: number of the first model.
        progress: show a progress bar on stderr. None: if stderr is a terminal.
    """
    count = integer("models", models, LEAST_MODELS, 2**20)
    integer("seed", seed, 0)
    integer("first", first, 0)
    if progress is not None:
        boolean("progress", progress)
    loaded = load(instance("problem", problem, TextProblem, "a lm.TextProblem"))
    watch = SecondMomentWatch(run, sum(value.numel() for value in loaded.start.values()), count)

    def watched(model: int) -> Callable[[int, list[Tensor]], None]:
        def see(step: int, moments: list[Tensor]) -> None:
            if watch.wants(step):
                flat = torch.cat([value.detach().flatten() for value in moments])[None]
                watch.see(step, [model - first], flat.cpu().numpy())

        return see

    of: Callable[[int], Watched] = watched
    wanted = [Model(first + number, ()) for number in range(count)]
    with TrainingProgress(count, run.steps, progress) as bar:
        for _ in train_models(run, problem, (), wanted, seed, lambda *_: None, progress=bar, watched=of):
            pass
    return watch.result()
