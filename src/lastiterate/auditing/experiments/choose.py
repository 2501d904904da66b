"""The choice of an experiment from the arguments of an audit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.attacks.adversarial import Adversarial, facts_of
from lastiterate.attacks.attack import Attack, BringsProblem, known_fields, require_attackable
from lastiterate.auditing.design import OpenEnded, Paired, Quality
from lastiterate.auditing.experiments.protocol import Cost, Crafted, Experiment, Trials
from lastiterate.auditing.identity import Identity, identify
from lastiterate.auditing.stores.audit_record import ScoredTrials
from lastiterate.common.system import process_peak_bytes
from lastiterate.common.types import BoolArray, IntArray

if TYPE_CHECKING:
    from lastiterate.common.progress import TrainingProgress
from lastiterate.common.types import IntegerArray, RealArray
from lastiterate.common.validation import as_array, instance, integer, told
from lastiterate.run import DPSGD, require_basic

# Exact draws: nothing is trained. Released iterates are drawn from their distribution, which is known.

_CHUNK = 65_536  # draws at a time
_SECONDS_A_DRAW = 1e-6


@dataclass(frozen=True, eq=False)
class ExactDraws:
    """Scores drawn by ``attack.sample``; nothing is trained."""

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
    """Chunks of draws. The draws of a chunk depend only on the seed and the chunk's first model number."""

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


@dataclass(frozen=True, eq=False)
class Given:
    """The arguments of an audit other than its problem.

    Attributes:
        attack: the attack; None: the default attack for the problem.
        models: number of models per world, or of canaries in one model.
        test: images and labels for the accuracy of the models.
        data: description of the problem for the report; if empty, a default description.
        open_ended: whether the audit may be looked at, stopped and continued at any time. ``models`` is then the
            initial number.
    """

    run: DPSGD
    attack: object
    models: int
    seed: int
    test: tuple[RealArray, IntegerArray] | None = None
    data: str = ""
    open_ended: bool = False

    def paired(self) -> Paired:
        """Return the design of many models in two worlds."""
        return OpenEnded(self.models, self.models) if self.open_ended else Paired(self.models)

    def __post_init__(self) -> None:
        require_basic(self.run, "this audit", knows=("noise_filter", *known_fields(self.attack)))
        require_attackable(self.run, self.attack)
        instance("data", self.data, str, "words that say what the problem is")
        integer("models", self.models)
        integer("seed", self.seed, 0, 2**63 - 1)
        if self.test is not None and not _are_images_and_labels(self.test):
            raise ValueError(f"test must be a pair of arrays, images and their labels, or None, got {told(self.test)}")


def _are_images_and_labels(test: object) -> bool:
    if not isinstance(test, (tuple, list)) or len(test) != 2:
        return False
    images, labels = (as_array("test", each) for each in test)
    return bool(
        images.dtype.kind in "biuf" and images.ndim and labels.dtype.kind in "iu" and labels.shape == images.shape[:1]
    )


@singledispatch
def experiment_on(problem: object, given: Given) -> Experiment:
    """Return the experiment on a problem.

    A framework registers its own type of problem, such as ``experiment_on.register(TextProblem, ...)`` in ``lm/``.
    A function is a user's trainer. All other problems are for the shipped trainer.
    """
    if callable(problem) and not isinstance(problem, type):
        from lastiterate.auditing.experiments.user_trainer import UserTrainings

        return UserTrainings.of(problem, given)

    return shipped_experiment(problem, given)


# Shipped trainer: the experiment for a problem and an attack.


def shipped_experiment(problem: object, given: Given) -> Experiment:
    """Return the experiment on a ``training.Problem``, or on None if the attack brings its own problem."""
    if isinstance(given.attack, Adversarial) and given.attack.iterates == "exact":
        return ExactDraws(given.run, given.attack, given.paired(), given.seed, given.data or "no data")
    from lastiterate.attacks import GradientSpace, OneRun
    from lastiterate.auditing.experiments.shipped_trainer import OneTraining, TrainedModels
    from lastiterate.training import Problem

    if problem is not None and not isinstance(problem, Problem):
        raise ValueError(f"problem must be a training.Problem, a lm.TextProblem or a trainer, got {told(problem)}")
    attack = GradientSpace() if given.attack is None else given.attack
    if isinstance(attack, type) or not isinstance(attack, (Attack, OneRun)):
        raise ValueError(
            f"attack must be one of lastiterate.attacks for a problem, or have craft, arm, expected and words, got "
            f"{told(attack)}"
        )
    if problem is None and not isinstance(attack, BringsProblem):
        raise ValueError("problem must be a training.Problem or a trainer for this attack, got None")
    if isinstance(attack, OneRun):
        assert problem is not None
        return OneTraining(given.run, problem, attack, given.models, given.seed, given.test, given.data)
    return TrainedModels(given.run, problem, attack, given.paired(), given.seed, given.test, given.data)
