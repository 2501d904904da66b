"""Trials: models that are trained and scored, in chunks. What the audit's trainer is depends on what it is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from lastiterate.auditing.stores.trials import StoredTrials
from lastiterate.auditing.user_trainer import UserTrials
from lastiterate.run import DPSGD
from lastiterate.values import Array

if TYPE_CHECKING:
    from lastiterate.training_progress import TrainingProgress

EXACT_CHUNK = 65_536  # draws of last iterates at a time


@dataclass(frozen=True, eq=False)
class Job:
    """What an audit trains and scores: everything but which models. It can be sent to other processes.

    Attributes:
        problem: a ``training.Problem``, an ``OwnTrainer``, a user's trainer ``(seed, canary) -> score | parameters``,
            or None where the attack needs neither.
        facts: what the crafter found.
        chunk_size: None until it has been chosen.
        test: images and labels on which accuracy is measured.
    """

    run: DPSGD
    problem: Any
    attack: Any
    facts: dict[str, Any]
    seed: int
    models: int
    chunk_size: int | None = None
    test: tuple[Array, Array] | None = None

    def planned(self) -> tuple[Array, Array]:
        """The trials: numbers and worlds, both worlds in turn; or every canary of the one run."""
        if is_one_run(self.attack):
            return np.arange(self.models), self.attack.coins(self.models, self.seed)
        return np.repeat(np.arange(self.models), 2), np.tile([True, False], self.models)

    def trials(self, workers: int | None = None) -> Trials:
        """The trainer and distinguisher for this job, compiled where that applies."""
        if brings_trainer(self.problem):
            return self.problem.trials(self, workers)
        if is_users(self.problem):
            return UserTrials(self)
        if is_one_run(self.attack):
            return OneRunTrials(self)
        if not getattr(self.attack, "trains", True):
            return ExactTrials(self)
        return ModelTrials(self, workers)


class Trials(Protocol):
    """Trains and scores models by their numbers, a chunk at a time."""

    @property
    def chunk_size(self) -> int: ...
    def chunks(self, models: Array, present: Array, progress: TrainingProgress | None) -> Iterator[StoredTrials]: ...


def is_users(problem: Any) -> bool:
    """Whether the problem is a user's own trainer."""
    return callable(problem)


class OwnTrainer(Protocol):
    """A problem with a trainer of its own, such as a language model; its attacks are of its own kind, too."""

    @property
    def words(self) -> str: ...
    def default_attack(self) -> Any: ...
    def check(self, attack: Any) -> None:
        """Refuse an attack that is not for this kind of problem."""

    def references(self, seed: int, progress: bool | None) -> Any:
        """What the crafter is given to train models that are not counted."""

    def trials(self, job: Job, workers: int | None) -> Trials: ...
    def perplexity_before(self) -> float | None:
        """Of the model before training, where its quality is measured so."""

    def seconds_a_step(self, run: DPSGD) -> float:
        """What one step of one model takes when an audit trains them."""


def brings_trainer(problem: Any) -> bool:
    """Whether the problem is an ``OwnTrainer``."""
    return hasattr(problem, "trials")


def is_one_run(attack: Any) -> bool:
    """Whether the attack puts many canaries into one model, each by the toss of a coin."""
    return hasattr(attack, "coins")


class ModelTrials:
    """The shipped trainer."""

    def __init__(self, job: Job, workers: int | None) -> None:
        from lastiterate.training import Trainer

        self._job = job
        self._armed = job.attack.arm(job.run, job.problem, job.facts)
        subject = job.run, self._armed.problem, self._armed.canary
        double = True if self._armed.double else None
        self._trainer = Trainer(
            *subject, models=2 * job.models, chunk_size=job.chunk_size, workers=workers, double=double
        )
        self.chunk_size = self._trainer.chunk_size

    def chunks(self, models: Array, present: Array, progress: TrainingProgress | None) -> Iterator[StoredTrials]:
        watches: dict[tuple[int, bool], Any] = {}

        def watch(step: int, chunk: Any) -> None:
            key = int(chunk.models[0]), bool(chunk.present[0])
            if step == 0:
                watches[key] = self._armed.watch()
            watches[key].see(step, chunk.parameters)

        began = monotonic()
        watching = watch if self._armed.watch else None
        for chunk in self._trainer.chunks(models, present, self._job.seed, progress, watching):
            key = int(chunk.models[0]), bool(chunk.present[0])
            scores = watches.pop(key).scores() if watching else self._armed.score(chunk.parameters)
            accuracies = self._accuracies(chunk.parameters, len(chunk.models))
            seconds = np.full(len(chunk.models), (monotonic() - began) / len(chunk.models))
            began = monotonic()
            yield StoredTrials(chunk.models, chunk.present, scores, accuracies, seconds)

    def _accuracies(self, parameters: Any, count: int) -> Array:
        test = self._job.test
        own = self._job.problem
        if test is None or own is None or self._armed.problem.parameters is not own.parameters:  # another model
            return np.full(count, np.nan)
        import jax

        from lastiterate.training.models import accuracy

        models = [self._armed.problem.model(jax.tree.map(lambda leaf, i=i: leaf[i], parameters)) for i in range(count)]
        return np.array([accuracy(model, *test) for model in models])


class ExactTrials:
    """Last iterates drawn from their distribution; a chunk's draws depend on the seed and its first number."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.chunk_size = job.chunk_size or EXACT_CHUNK

    def chunks(self, models: Array, present: Array, progress: TrainingProgress | None) -> Iterator[StoredTrials]:
        for begin in range(0, len(models), self.chunk_size):
            part = slice(begin, begin + self.chunk_size)
            began = monotonic()
            generator = np.random.default_rng([self._job.seed, int(models[begin])])
            scores = self._job.attack.sample(self._job.run, present[part], generator)
            seconds = np.full(len(scores), (monotonic() - began) / len(scores))
            yield StoredTrials(models[part], present[part], scores, np.full(len(scores), np.nan), seconds)


class OneRunTrials:
    """One model with about half of the canaries; its chunk is all of them."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.chunk_size = job.models

    def chunks(self, models: Array, present: Array, progress: TrainingProgress | None) -> Iterator[StoredTrials]:
        from lastiterate.training import train
        from lastiterate.training.models import accuracy

        job, began = self._job, monotonic()
        problem = job.attack.trained_problem(job.run, job.problem, job.facts, present)
        trained = train(job.run, problem, models=1, seed=job.seed, progress=False)
        scores = job.attack.scores(job.run, job.problem, job.facts, trained.parameters)
        right = np.nan if job.test is None else accuracy(trained.model(0), *job.test)
        seconds = np.full(len(models), (monotonic() - began) / len(models))
        if progress:
            progress.advanced(len(models), job.run.steps, finished=True)
        yield StoredTrials(models, present, scores, np.full(len(models), right), seconds)
