"""Parallel fine-tuning of many models on one problem: trials, reference models, timings, and Adam's second moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import Any, NamedTuple, TypeVar

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

_SMALL = 20_000_000  # models with at most this many parameters are trained in parallel, one per core
_TIMED_STEPS = 6
FIRST_REFERENCE = 2**31  # larger than the number of any trial

Reading = TypeVar("Reading")
Read = Callable[
    [Loaded, Tensors], Reading
]  # function that computes the value to keep of a released model, such as its score


class Model(NamedTuple):
    """A model: its number, and whether each canary is present."""

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
    """Train models. As soon as a model is trained, yield the model, the result of ``read``, and the training time.

    A model depends only on its number, its canaries and the seed. ``look`` is called with every released iterate.
    ``replacements`` take the places of absent canaries. ``watched(i)`` returns the callback for the steps of a model.
    """
    first = load(problem)
    count = _workers(first, len(models), workers)
    idle: SimpleQueue[Loaded] = SimpleQueue()
    for loaded in (first, *(first.copied() for _ in range(count - 1))):
        idle.put(loaded)
    device = first.examples[0].device
    added, instead = ([torch.tensor(each, device=device) for each in given] for given in (canaries, replacements))

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


def time_parts(run: DPSGD, problem: TextProblem) -> tuple[float, float, float]:
    """Measure the seconds for a step, for the perplexity of a model, and for the gradient of one example.

    Each is measured after a first, slower execution, with as many models at once as in training.
    """
    loaded = load(problem)
    count = _workers(loaded, cores(), None)

    def steps(number: int) -> float:
        short, began = run.prefix(min(number, run.steps)), monotonic()
        for _ in train_models(short, problem, (), [Model(i, ()) for i in range(count)], 0, lambda *_: None):
            pass
        return (monotonic() - began) / (count * short.steps)

    def reading(read: Callable[[], object]) -> float:
        with _threads(loaded):
            read()
            began = monotonic()
            read()
            return (monotonic() - began) / count

    steps(1)
    perplexity = 0.0 if loaded.held_out is None else reading(lambda: loaded.perplexity(loaded.start))
    tokens, lengths = loaded.examples
    first = tokens[0, : int(lengths[0])]
    return steps(_TIMED_STEPS), perplexity, reading(lambda: loaded.gradients.one(loaded.start, first))


class TextReferences:
    """A trainer of reference models without canaries. ``counted`` is the number of trials of the audit."""

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
        first = FIRST_REFERENCE + purpose * 2**24
        wanted = [Model(first + number, ()) for number in range(models)]
        with TrainingProgress(models, run.steps, self._progress) as bar:
            trained = train_models(run, problem, (), wanted, self._seed, read, progress=bar, look=look)
            found = {model.number: reading for model, reading, _ in trained}
        return [found[model.number] for model in wanted]


def _workers(loaded: Loaded, models: int, asked: int | None) -> int:
    return max(1, min(asked or cores(), models)) if _is_small(loaded) else 1


def _is_small(loaded: Loaded) -> bool:
    on_cpu = loaded.examples[0].device.type == "cpu"
    return on_cpu and sum(value.numel() for value in loaded.model.parameters()) <= _SMALL


@contextmanager
def _threads(loaded: Loaded) -> Iterator[None]:
    """Use one thread for each small model. More threads would change the order of sums, and so the rounding."""
    before = torch.get_num_threads()
    if _is_small(loaded):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def second_moment(
    run: DPSGD,
    problem: TextProblem,
    *,
    models: int = 2,
    seed: int = 0,
    first: int = 0,
    progress: bool | None = None,
) -> SecondMoment:
    """Fine-tune a few models with Adam, and measure the share of noise in Adam's second moment.

    Args:
        run: a run whose optimizer is a ``lastiterate.Adam``.
        models: number of models, at least 2.
        progress: show a progress bar on stderr. By default, only if stderr is a terminal.
    """
    count = integer("models", models, LEAST_MODELS, 2**20)
    integer("seed", seed, 0)
    integer("first", first, 0)
    if progress is not None:
        boolean("progress", progress)
    loaded = load(instance("problem", problem, TextProblem, "a lm.TextProblem"))
    watch = SecondMomentWatch(run, sum(value.numel() for value in loaded.start.values()), count)

    def see(model: int, step: int, moments: list[Tensor]) -> None:
        if watch.wants(step):
            flat = torch.cat([value.detach().flatten() for value in moments])[None]
            watch.see(step, [model - first], flat.cpu().numpy())

    wanted = [Model(first + number, ()) for number in range(count)]
    seers = {model.number: partial(see, model.number) for model in wanted}
    with TrainingProgress(count, run.steps, progress) as bar:
        for _ in train_models(run, problem, (), wanted, seed, lambda *_: None, progress=bar, watched=seers.__getitem__):
            pass
    return watch.result()
