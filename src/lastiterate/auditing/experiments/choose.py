"""The choice of an experiment from the arguments of an audit."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch
from time import monotonic

import numpy as np

from lastiterate.attacks.adversarial import Adversarial, facts_of, sample_scores
from lastiterate.attacks.attack import Attack, BringsProblem, support_of
from lastiterate.auditing.design import OneModel, OpenEnded, Paired
from lastiterate.auditing.experiments.protocol import Cost, Experiment, Trials
from lastiterate.auditing.stores.audit_record import Crafted, ScoredTrials
from lastiterate.common.progress import TrainingProgress
from lastiterate.common.system import process_peak_bytes
from lastiterate.common.types import BoolArray, IntArray, IntegerArray, NumberArray
from lastiterate.common.validation import as_array, instance, integer, told
from lastiterate.run import DPSGD
from lastiterate.supported_runs import require_supported

_CHUNK = 65_536  # number of scores that are drawn at once
_SECONDS_A_DRAW = 1e-6


@dataclass(frozen=True, eq=False)
class ExactDraws(Experiment):
    """Scores drawn from their known distribution by ``sample_scores``; nothing is trained."""

    attack: Adversarial

    def craft(self, progress: bool | None) -> Crafted:
        facts = facts_of(self.run)
        return Crafted(facts, self.attack.expected(facts), self.attack.words(facts))

    def trials(self, crafted: Crafted, chunk_size: int | None, workers: int | None, sharers: int = 1) -> Trials:
        size = chunk_size or _CHUNK

        def chunks(models: IntArray, present: BoolArray, progress: TrainingProgress | None) -> Iterator[ScoredTrials]:
            for begin in range(0, len(models), size):
                part, began = slice(begin, begin + size), monotonic()
                generator = np.random.default_rng([self.seed, int(models[begin])])
                there = present[part]
                if isinstance(self.design, OpenEnded):  # whole chunks: adding models changes no earlier score
                    there = np.resize(there, size)
                scores = sample_scores(self.run, there, generator)[: len(present[part])]
                yield ScoredTrials.of(models[part], present[part], scores, seconds=monotonic() - began)

        return Trials(size, chunks)

    def cost(self) -> Cost:
        total, basis = self.design.trials, "last iterates are drawn, not trained"
        return Cost(total, 0, _SECONDS_A_DRAW * total, process_peak_bytes(), basis)


@dataclass(frozen=True, eq=False)
class Given:
    """The arguments of ``lastiterate.audit`` that describe the experiment, except the problem."""

    run: DPSGD
    attack: object
    models: int
    seed: int
    test: tuple[NumberArray, IntegerArray] | None = None
    data: str = ""
    open_ended: bool = False  # the audit may be stopped and continued at any time; ``models`` is the initial number

    def paired(self) -> Paired:
        return OpenEnded(self.models, self.models) if self.open_ended else Paired(self.models)

    def __post_init__(self) -> None:
        require_supported(self.run, support_of(self.attack))
        instance("data", self.data, str, "a description of the problem in words")
        integer("models", self.models)
        integer("seed", self.seed, 0, 2**63 - 1)
        if self.test is None:
            return
        pair = self.test if isinstance(self.test, (tuple, list)) and len(self.test) == 2 else ((), ())
        images, labels = (as_array("test", each) for each in pair)
        numeric = images.dtype.kind in "biuf" and labels.dtype.kind in "iu"
        if not numeric or not images.ndim or labels.shape != images.shape[:1]:
            raise ValueError(f"test must be a pair of arrays, images and their labels, or None, got {told(self.test)}")


@singledispatch
def experiment_on(problem: object, given: Given) -> Experiment:
    """Return the experiment on a problem. The problem is None if the attack brings its own.

    A framework registers its own type of problem, such as ``experiment_on.register(TextProblem, ...)`` in ``lm/``.
    A function is a user's trainer. All other problems are trained by ``lastiterate.training``.
    """
    if callable(problem) and not isinstance(problem, type):
        from lastiterate.auditing.experiments.user_trainer import UserTrainings

        return UserTrainings.of(problem, given)
    if isinstance(given.attack, Adversarial) and given.attack.iterates == "exact":
        return ExactDraws(given.run, None, given.attack, given.paired(), given.seed, given.data or "no data")
    from lastiterate.attacks import GradientSpace, OneRun
    from lastiterate.auditing.experiments.shipped_trainer import OneTraining, TrainedModels
    from lastiterate.training import Problem

    if problem is not None and not isinstance(problem, Problem):
        raise ValueError(f"problem must be a training.Problem, a lm.TextProblem or a trainer, got {told(problem)}")
    attack = GradientSpace() if given.attack is None else given.attack
    if isinstance(attack, type) or not isinstance(attack, (Attack, OneRun)):
        allowed = "one of lastiterate.attacks for a problem, or have craft, arm, expected and words"
        raise ValueError(f"attack must be {allowed}, got {told(attack)}")
    if problem is None and not isinstance(attack, BringsProblem):
        raise ValueError("problem must be a training.Problem or a trainer for this attack, got None")
    if isinstance(attack, OneRun):
        assert problem is not None
        design = OneModel(given.models, given.seed)
        return OneTraining(given.run, problem, attack, design, given.seed, given.data, given.test)
    return TrainedModels(given.run, problem, attack, given.paired(), given.seed, given.data, given.test)
