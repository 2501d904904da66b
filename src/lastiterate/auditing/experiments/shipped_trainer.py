"""Experiments with ``lastiterate.training``: many models with and without a canary, or one with many canaries."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import TypeVar, cast

import jax
import numpy as np
from jaxtyping import PyTree

from lastiterate.attacks.attack import Attack, BringsProblem, Watch, models_to_craft
from lastiterate.attacks.gradient_space import flatten_one
from lastiterate.attacks.one_run import OneRun
from lastiterate.auditing.design import OpenEnded, Paired, Quality
from lastiterate.auditing.experiments.protocol import Cost, Experiment, Trials
from lastiterate.auditing.stores.audit_record import Crafted, ScoredTrials
from lastiterate.auditing.user_code import is_installed
from lastiterate.common.errors import AttackFailed, TrainingDiverged, guarded
from lastiterate.common.progress import TrainingProgress
from lastiterate.common.types import BoolArray, FloatArray, IntArray, IntegerArray, NumberArray
from lastiterate.run import DPSGD
from lastiterate.trainers.adam_second_moment import SecondMoment
from lastiterate.training import GradientCanary, Problem, Trainer, second_moment, train
from lastiterate.training.models import accuracy
from lastiterate.training.problem import Canary
from lastiterate.training.trainer import TrainedChunk, peak_bytes

_Result = TypeVar("_Result")

_STEPS = 20  # steps of the first timing
_LONG = 10.0  # target duration of the second, longer timing, in seconds
_AROUND = 11.0  # seconds for loading, compiling about four programs, and the report
_OPEN_ENDED = 256  # number of models from which the chunk size of an open-ended audit is chosen
_FIRST_REFERENCE = 2**31  # number of the first reference model; no audited model has a number this large
_WATCHED = 100  # a purpose (see ``TrainsReferences``) that no attack uses


@dataclass(frozen=True, eq=False)
class _OnShippedTrainer(Experiment):
    test: tuple[NumberArray, IntegerArray] | None = None  # images and labels on which accuracy is measured

    @property
    def quality(self) -> Quality | None:
        return None if self.test is None else Quality("accuracy")

    @property
    def data(self) -> str:
        if self.described or self.problem is None:
            return self.described or "no data"
        size = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(self.problem.trainable))
        return f"a problem of {size:,} parameters and {self.problem.size:,} examples"

    def _second_moment(self, progress: bool | None) -> SecondMoment | None:
        if not self.run.is_adaptive or isinstance(self.attack, BringsProblem) or not self.problem.size:
            return None
        first = _FIRST_REFERENCE + _WATCHED * 2**24
        return second_moment(self.run, self.problem, seed=self.seed, first=first, progress=progress)


@dataclass(frozen=True, eq=False)
class TrainedModels(_OnShippedTrainer):
    """Many models with and without the canary. ``problem`` is None if the attack brings its own."""

    problem: Problem | None
    attack: Attack
    design: Paired

    def craft(self, progress: bool | None) -> Crafted:
        # An attack that brings its own problem ignores this one.
        problem, references = cast("Problem", self.problem), TrainsReferences(self.seed, progress)

        def crafted() -> Crafted:
            facts = self.attack.craft(self.run, problem, references)
            return Crafted(facts, self.attack.expected(facts), self.attack.words(facts))

        moment = self._second_moment(progress)
        return replace(self.asked(crafted, "crafting the canary"), second_moment=moment)

    def asked(self, call: Callable[[], _Result], what: str) -> _Result:
        """Return the result of a call of the attack. If a user's own attack fails, raise ``AttackFailed``."""
        if is_installed(type(self.attack)):
            return call()
        try:
            return guarded(call, what, AttackFailed)
        except AttackFailed as failed:
            if isinstance(failed.error, TrainingDiverged):  # models that the attack trained have diverged
                raise failed.error from None
            raise

    def trials(self, crafted: Crafted, chunk_size: int | None, workers: int | None, sharers: int = 1) -> Trials:
        # The number of trials per worker sets the chunk size. It is constant for an open-ended audit.
        open_ended = isinstance(self.design, OpenEnded)
        share = _OPEN_ENDED if open_ended else 2 * math.ceil(self.design.models / sharers)
        problem = cast("Problem", self.problem)
        armed = self.asked(lambda: self.attack.arm(self.run, problem, crafted.facts), "arming the canary")
        trainer = Trainer(
            self.run,
            armed.problem,
            armed.canary,
            models=share,
            chunk_size=chunk_size,
            workers=workers,
            double=True if armed.double else None,
        )

        def chunks(models: IntArray, present: BoolArray, progress: TrainingProgress | None) -> Iterator[ScoredTrials]:
            watches: dict[tuple[int, bool], Watch] = {}
            make_watch = armed.watch

            def watch(step: int, chunk: TrainedChunk) -> None:
                key = int(chunk.models[0]), bool(chunk.present[0])
                if step == 0 and make_watch:
                    watches[key] = make_watch()
                watches[key].see(step, chunk.parameters)

            began = monotonic()
            shown = {"on_release" if armed.released_only else "on_iterate": watch if make_watch else None}
            for chunk in trainer.chunks(models, present, self.seed, progress, **shown):
                key = int(chunk.models[0]), bool(chunk.present[0])
                score = watches.pop(key).scores if make_watch else partial(armed.score, chunk.parameters)
                scores = self.asked(score, f"the scores of {len(chunk.models)} models")
                accuracies = self._accuracies(armed.problem, chunk.parameters, len(chunk.models))
                yield ScoredTrials.of(chunk.models, chunk.present, scores, accuracies, seconds=monotonic() - began)
                began = monotonic()

        return Trials(trainer.chunk_size, chunks)

    def _accuracies(self, armed: Problem, parameters: PyTree, count: int) -> FloatArray | None:
        if self.test is None or self.problem is None or armed.parameters is not self.problem.parameters:
            return None  # the attack trains a model of its own
        models = [armed.model(jax.tree.map(lambda leaf, i=i: leaf[i], parameters)) for i in range(count)]
        return np.array([accuracy(model, *self.test) for model in models])

    def cost(self) -> Cost:
        return shipped_cost(self.run, self.problem, models_to_craft(self.attack), self.design.trials)


class TrainsReferences:
    """A trainer of reference models, which are never scored. Implements ``attacks.attack.References``."""

    def __init__(self, seed: int, progress: bool | None) -> None:
        self._seed, self._progress = seed, progress

    def __call__(
        self,
        run: DPSGD,
        problem: Problem,
        canary: Canary | None = None,
        *,
        models: int,
        present: bool = False,
        purpose: int = 0,
        seen: Callable[[PyTree], FloatArray] | None = None,
    ) -> PyTree:
        numbers = _FIRST_REFERENCE + purpose * 2**24 + np.arange(models)
        looks: dict[int, dict[int, FloatArray]] = {}  # keys: first model of a chunk, then step

        def look(step: int, chunk: TrainedChunk) -> None:
            if step and seen is not None:
                looks.setdefault(int(chunk.models[0]), {})[step] = seen(chunk.parameters)

        trained = train(
            run,
            problem,
            canary,
            models=numbers,
            present=present,
            seed=self._seed,
            release="last_iterate_only",
            on_release=look if seen else None,
            progress=self._progress,
        )
        if seen is None:
            return trained.parameters
        return np.concatenate([np.stack(list(looks[first].values()), axis=1) for first in sorted(looks)])


def shipped_cost(run: DPSGD, problem: Problem | None, references: int, models: int) -> Cost:
    """Estimate the cost of training this many models from a few timed steps."""
    total = references + models
    if problem is None:
        return Cost(total, references, _AROUND, peak_bytes(), "for a problem that is not timed")
    seconds, steps = _seconds_a_model(run, problem)
    return Cost(total, references, seconds * total + _AROUND, peak_bytes(), f"from {steps} timed steps")


def _seconds_a_model(run: DPSGD, problem: Problem) -> tuple[float, int]:
    # Two timings of different length separate the cost per step from the fixed cost of a chunk.
    few = min(_STEPS, run.steps)
    began = monotonic()
    first = _timed(run.prefix(few), problem)
    more = min(run.steps, max(2 * few, int(few * _LONG / max(monotonic() - began, 1e-9))))
    if more == few:
        return first, few
    second = _timed(run.prefix(more), problem)
    return second + (run.steps - more) * max(second - first, 0.0) / (more - few), more


def _timed(run: DPSGD, problem: Problem) -> float:
    trainer = Trainer(run, problem, GradientCanary(np.zeros(flatten_one(problem).size, np.float32)))
    count, began = trainer.chunk_size * trainer.workers, 0.0
    for _ in range(2):  # the first pass includes JAX's compilation
        began = monotonic()
        for _ in trainer.chunks(np.arange(count), np.zeros(count, bool), 0):
            pass
    return (monotonic() - began) / count


@dataclass(frozen=True, eq=False)
class OneTraining(_OnShippedTrainer):
    """One model with many canaries. All canaries are in one chunk."""

    problem: Problem
    attack: OneRun

    def craft(self, progress: bool | None) -> Crafted:
        references = TrainsReferences(self.seed, progress)
        facts = self.attack.craft_many(self.run, self.problem, references, self.design.models)
        expected, words = self.attack.expected(facts), self.attack.words(facts)
        return Crafted(facts, expected, words, second_moment=self._second_moment(progress))

    def trials(self, crafted: Crafted, chunk_size: int | None, workers: int | None, sharers: int = 1) -> Trials:
        def chunks(models: IntArray, present: BoolArray, progress: TrainingProgress | None) -> Iterator[ScoredTrials]:
            facts, began = crafted.facts, monotonic()
            problem = self.attack.trained_problem(self.run, self.problem, facts, present)
            trained = train(self.run, problem, models=1, seed=self.seed, progress=False)
            scores = self.attack.scores(self.run, self.problem, facts, trained.parameters)
            right = None if self.test is None else np.full(len(models), accuracy(trained.model(0), *self.test))
            if progress:
                progress.advanced(len(models), self.run.steps, finished=True)
            yield ScoredTrials.of(models, present, scores, right, seconds=monotonic() - began)

        return Trials(self.design.models, chunks)

    def cost(self) -> Cost:
        return shipped_cost(self.run, self.problem, models_to_craft(self.attack), 1)
