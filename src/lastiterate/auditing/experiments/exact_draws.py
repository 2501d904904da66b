"""Nothing is trained: released iterates are drawn from their distribution, known where the data are adversarial."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.arrays import BoolArray, IntArray
from lastiterate.attacks.adversarial import Adversarial, facts_of
from lastiterate.auditing.design import OpenEnded, Paired, Quality
from lastiterate.auditing.experiments.protocol import Cost, Crafted, Trials
from lastiterate.auditing.identity import Identity, identify
from lastiterate.auditing.stores.trials import ScoredTrials
from lastiterate.machine import process_peak_bytes
from lastiterate.run import DPSGD

if TYPE_CHECKING:
    from lastiterate.training_progress import TrainingProgress

_CHUNK = 65_536  # draws at a time
_SECONDS_A_DRAW = 1e-6


@dataclass(frozen=True, eq=False)
class ExactDraws:
    """Scores of ``attack.sample``."""

    run: DPSGD
    attack: Adversarial
    design: Paired
    seed: int
    data: str
    quality: Quality | None = None

    def identity(self) -> Identity:
        return identify(self.run, None, self.attack, self.design, self.seed)

    def craft(self, progress: bool | None) -> Crafted:
        facts = facts_of(self.run)
        return Crafted(facts, self.attack.expected(facts), self.attack.words(facts))

    def trials(self, crafted: Crafted, chunk_size: int | None, workers: int | None, sharers: int = 1) -> Trials:
        return _Draws(self, chunk_size or _CHUNK)

    def cost(self) -> Cost:
        basis = "last iterates are drawn, not trained"
        total = self.design.trials
        return Cost(total, 0, _SECONDS_A_DRAW * total, process_peak_bytes(), basis)


@dataclass(frozen=True, eq=False)
class _Draws:
    """A chunk's draws depend on the seed and on its first number."""

    experiment: ExactDraws
    chunk_size: int

    def chunks(self, models: IntArray, present: BoolArray, progress: TrainingProgress | None) -> Iterator[ScoredTrials]:
        experiment = self.experiment
        for begin in range(0, len(models), self.chunk_size):
            part = slice(begin, begin + self.chunk_size)
            began = monotonic()
            generator = np.random.default_rng([experiment.seed, int(models[begin])])
            there = present[part]
            if isinstance(experiment.design, OpenEnded):  # whole chunks, so that more models leave these as they are
                there = np.resize(there, self.chunk_size)
            scores = experiment.attack.sample(experiment.run, there, generator)[: len(present[part])]
            yield ScoredTrials.of(models[part], present[part], scores, seconds=monotonic() - began)
