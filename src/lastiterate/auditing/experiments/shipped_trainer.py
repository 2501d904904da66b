"""Experiments without a user's trainer.

``TrainedModels`` trains many models with and without the canary, ``OneTraining`` trains one model with many canaries,
and ``ExactDraws`` draws last iterates from their known distribution without training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, TypeVar, cast

import jax
import numpy as np

from lastiterate.attacks.attack import Attack, BringsProblem, Watch, models_to_craft
from lastiterate.attacks.gradient_space import flatten_one
from lastiterate.attacks.one_run import OneRun
from lastiterate.auditing.design import OneModel, OpenEnded, Paired, Quality
from lastiterate.auditing.experiments.protocol import Cost, Crafted, Trials
from lastiterate.auditing.identity import Identity, identify
from lastiterate.auditing.stores.audit_record import ScoredTrials
from lastiterate.auditing.user_code import is_installed
from lastiterate.common.errors import AttackFailed, TrainingDiverged, guarded
from lastiterate.common.types import BoolArray, FloatArray, IntArray, IntegerArray, RealArray
from lastiterate.optimizer import is_adam
from lastiterate.run import DPSGD
from lastiterate.trainers.adam_second_moment import SecondMoment
from lastiterate.training import GradientCanary, Problem, Trainer, second_moment, train
from lastiterate.training.models import accuracy
from lastiterate.training.problem import Canary
from lastiterate.training.trainer import TrainedChunk, peak_bytes

if TYPE_CHECKING:
    from jaxtyping import PyTree

    from lastiterate.common.progress import TrainingProgress

_Result = TypeVar("_Result")

_STEPS = 20  # steps of the first timing
_LONG = 10.0  # seconds of the second, longer timing
_AROUND = 11.0  # seconds for loading, compiling about four programs, and the report
_OPEN_ENDED = 256  # assumed number of models for the chunk size if the number of models is open
_FIRST_REFERENCE = 2**31  # number of the first reference model; no audited model has a number this large
_WATCHED = 100  # a purpose (see ``TrainsReferences``) that no attack uses


@dataclass(frozen=True, eq=False)
class TrainedModels:
    """An attack on the shipped trainer.

    Attributes:
        problem: the problem to train on; None if the attack brings its own.
        design: the number of models in each of the two worlds.
        test: images and labels on which accuracy is measured.
        described: description of the problem for the report; if empty, the problem is described by its sizes.
    """

    run: DPSGD
    problem: Problem | None
    attack: Attack
    design: Paired
    seed: int
    test: tuple[RealArray, IntegerArray] | None = None
    described: str = ""

    @property
    def quality(self) -> Quality | None:
        return None if self.test is None else Quality("accuracy")

    @property
    def data(self) -> str:
        return self.described or describe_problem(self.problem)

    def identity(self) -> Identity:
        return identify(self.run, self.problem, self.attack, self.design, self.seed)

    def craft(self, progress: bool | None) -> Crafted:
        # An attack that brings its own problem ignores this one.
        problem, references = cast("Problem", self.problem), TrainsReferences(self.seed, progress)

        def crafted() -> Crafted:
            facts = self.attack.craft(self.run, problem, references)
            return Crafted(facts, self.attack.expected(facts), self.attack.words(facts))

        trained = None if isinstance(self.attack, BringsProblem) else self.problem
        moment = second_moment_of(self.run, trained, self.seed, progress)
        return replace(self.asked(crafted, "crafting the canary"), second_moment=moment)

    def asked(self, call: Callable[[], _Result], what: str) -> _Result:
        """Call the attack and return its answer. A user's own attack that fails raises ``AttackFailed``."""
        if is_installed(type(self.attack)):
            return call()
        try:
            return guarded(call, what, AttackFailed)
        except AttackFailed as failed:
            if isinstance(failed.error, TrainingDiverged):  # models that the attack trained have diverged
                raise failed.error from None
            raise

    def trials(self, crafted: Crafted, chunk_size: int | None, workers: int | None, sharers: int = 1) -> Trials:
        return _ModelTrials(self, crafted, chunk_size, workers, _share(self.design, sharers))

    def cost(self) -> Cost:
        references = models_to_craft(self.attack)
        return shipped_cost(self.run, self.problem, references, self.design.trials)


def second_moment_of(run: DPSGD, problem: Problem | None, seed: int, progress: bool | None) -> SecondMoment | None:
    """Measure Adam's second moment on models without the canary. None if the optimizer is not Adam or without data."""
    if not is_adam(run.optimizer) or problem is None or not problem.size:
        return None
    return second_moment(run, problem, seed=seed, first=_FIRST_REFERENCE + _WATCHED * 2**24, progress=progress)


def _share(design: Paired, sharers: int) -> int:
    """Return the number of trials per worker, which sets the chunk size. It is constant for an open-ended audit."""
    if isinstance(design, OpenEnded):
        return _OPEN_ENDED
    return 2 * math.ceil(design.models / sharers)


class TrainsReferences:
    """A trainer of reference models, whose numbers no audited model has. Implements ``attacks.attack.References``."""

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


class _ModelTrials:
    def __init__(
        self, experiment: TrainedModels, crafted: Crafted, chunk_size: int | None, workers: int | None, share: int
    ) -> None:
        self._experiment = experiment
        run, problem = experiment.run, experiment.problem
        attack, given = experiment.attack, cast("Problem", problem)
        self._armed = experiment.asked(lambda: attack.arm(run, given, crafted.facts), "arming the canary")
        self._trainer = Trainer(
            run,
            self._armed.problem,
            self._armed.canary,
            models=share,
            chunk_size=chunk_size,
            workers=workers,
            double=True if self._armed.double else None,
        )
        self.chunk_size = self._trainer.chunk_size

    def chunks(self, models: IntArray, present: BoolArray, progress: TrainingProgress | None) -> Iterator[ScoredTrials]:
        watches: dict[tuple[int, bool], Watch] = {}
        make_watch = self._armed.watch

        def watch(step: int, chunk: TrainedChunk) -> None:
            key = int(chunk.models[0]), bool(chunk.present[0])
            if step == 0 and make_watch:
                watches[key] = make_watch()
            watches[key].see(step, chunk.parameters)

        began = monotonic()
        seed = self._experiment.seed
        shown = {"on_release" if self._armed.released_only else "on_iterate": watch if make_watch else None}
        for chunk in self._trainer.chunks(models, present, seed, progress, **shown):
            key = int(chunk.models[0]), bool(chunk.present[0])
            score = watches.pop(key).scores if make_watch else partial(self._armed.score, chunk.parameters)
            scores = self._experiment.asked(score, f"the scores of {len(chunk.models)} models")
            accuracies = self._accuracies(chunk.parameters, len(chunk.models))
            now = monotonic()
            yield ScoredTrials.of(chunk.models, chunk.present, scores, accuracies, seconds=now - began)
            began = monotonic()

    def _accuracies(self, parameters: PyTree, count: int) -> FloatArray | None:
        test, own = self._experiment.test, self._experiment.problem
        if test is None or own is None or self._armed.problem.parameters is not own.parameters:  # another model
            return None
        models = [self._armed.problem.model(jax.tree.map(lambda leaf, i=i: leaf[i], parameters)) for i in range(count)]
        return np.array([accuracy(model, *test) for model in models])


def describe_problem(problem: Problem | None) -> str:
    """Describe a problem by its sizes."""
    if problem is None:
        return "no data"
    size = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(problem.trainable))
    return f"a problem of {size:,} parameters and {problem.size:,} examples"


def shipped_cost(run: DPSGD, problem: Problem | None, references: int, models: int) -> Cost:
    """Estimate the cost of training this many models from a few timed steps."""
    if problem is None:
        return Cost(references + models, references, _AROUND, peak_bytes(), "of a problem that is not timed")
    seconds, steps = _seconds_a_model(run, problem)
    total = references + models
    return Cost(total, references, seconds * total + _AROUND, peak_bytes(), f"from {steps} steps trained")


def _seconds_a_model(run: DPSGD, problem: Problem) -> tuple[float, int]:
    """Return the estimated seconds per model and the number of timed steps.

    Two timings of different length separate the cost per step from the fixed cost of a chunk.
    """
    few = min(_STEPS, run.steps)
    began = monotonic()
    first = _timed(run.prefix(few), problem)
    more = min(run.steps, max(2 * few, int(few * _LONG / max(monotonic() - began, 1e-9))))
    if more == few:
        return first, few
    second = _timed(run.prefix(more), problem)
    return second + (run.steps - more) * max(second - first, 0.0) / (more - few), more


def _timed(run: DPSGD, problem: Problem) -> float:
    """Return the seconds per model when all cores train."""
    trainer = Trainer(run, problem, GradientCanary(np.zeros(flatten_one(problem).size, np.float32)))
    count = trainer.chunk_size * trainer.workers
    seconds = 0.0
    for _ in range(2):  # the first pass includes JAX's compilation
        began = monotonic()
        for _ in trainer.chunks(np.arange(count), np.zeros(count, bool), 0):
            pass
        seconds = monotonic() - began
    return seconds / count


# One training: a single model with many canaries.


@dataclass(frozen=True, eq=False)
class OneTraining:
    """One model with ``models`` canaries. The other attributes are those of ``TrainedModels``."""

    run: DPSGD
    problem: Problem
    attack: OneRun
    models: int
    seed: int
    test: tuple[RealArray, IntegerArray] | None = None
    described: str = ""

    @property
    def design(self) -> OneModel:
        return OneModel(self.models, self.seed)

    @property
    def quality(self) -> Quality | None:
        return None if self.test is None else Quality("accuracy")

    @property
    def data(self) -> str:
        return self.described or describe_problem(self.problem)

    def identity(self) -> Identity:
        return identify(self.run, self.problem, self.attack, self.design, self.seed)

    def craft(self, progress: bool | None) -> Crafted:
        references = TrainsReferences(self.seed, progress)
        facts = self.attack.craft_many(self.run, self.problem, references, self.models)
        moment = second_moment_of(self.run, self.problem, self.seed, progress)
        return Crafted(facts, self.attack.expected(facts), self.attack.words(facts), second_moment=moment)

    def trials(self, crafted: Crafted, chunk_size: int | None, workers: int | None, sharers: int = 1) -> Trials:
        return _Canaries(self, crafted, self.models)

    def cost(self) -> Cost:
        return shipped_cost(self.run, self.problem, models_to_craft(self.attack), 1)


@dataclass(frozen=True, eq=False)
class _Canaries:
    """The trials of one training: a single chunk with all canaries."""

    experiment: OneTraining
    crafted: Crafted
    chunk_size: int

    def chunks(self, models: IntArray, present: BoolArray, progress: TrainingProgress | None) -> Iterator[ScoredTrials]:
        this, facts, began = self.experiment, self.crafted.facts, monotonic()
        problem = this.attack.trained_problem(this.run, this.problem, facts, present)
        trained = train(this.run, problem, models=1, seed=this.seed, progress=False)
        scores = this.attack.scores(this.run, this.problem, facts, trained.parameters)
        right = None if this.test is None else np.full(len(models), accuracy(trained.model(0), *this.test))
        if progress:
            progress.advanced(len(models), this.run.steps, finished=True)
        yield ScoredTrials.of(models, present, scores, right, seconds=monotonic() - began)
