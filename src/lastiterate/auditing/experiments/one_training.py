"""One single training with many canaries, by the shipped trainer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.arrays import BoolArray, IntArray, IntegerArray, RealArray
from lastiterate.attacks.attack import models_to_craft
from lastiterate.attacks.one_run import OneRun
from lastiterate.auditing.design import OneModel, Quality
from lastiterate.auditing.experiments.protocol import Cost, Crafted, Trials
from lastiterate.auditing.experiments.trained_models import (
    TrainsReferences,
    describe_problem,
    second_moment_of,
    shipped_cost,
)
from lastiterate.auditing.identity import Identity, identify
from lastiterate.auditing.stores.trials import ScoredTrials
from lastiterate.run import DPSGD
from lastiterate.training import Problem, train
from lastiterate.training.models import accuracy

if TYPE_CHECKING:
    from lastiterate.training_progress import TrainingProgress


@dataclass(frozen=True, eq=False)
class OneTraining:
    """``models`` canaries in one model; other attributes as in ``TrainedModels``."""

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
    """The one chunk is all canaries of the one model."""

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
