"""The one place that decides which experiment an audit is, from what it was given."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

from lastiterate.arrays import IntegerArray, RealArray
from lastiterate.attacks.attack import known_fields, require_attackable
from lastiterate.auditing.design import OpenEnded, Paired
from lastiterate.auditing.experiments.protocol import Experiment
from lastiterate.run import DPSGD, require_basic
from lastiterate.values import as_array, instance, integer, told


@dataclass(frozen=True, eq=False)
class Given:
    """What an audit was given beside its problem.

    Attributes:
        attack: None: what suits the problem.
        models: a world, or canaries of the one model.
        test: images and labels for the accuracy of the models.
        data: what the problem is, for people; empty: to be described by what it is.
        open_ended: one may look at any time, stop and go on, so that ``models`` are only those to begin with.
    """

    run: DPSGD
    attack: object
    models: int
    seed: int
    test: tuple[RealArray, IntegerArray] | None = None
    data: str = ""
    open_ended: bool = False

    def paired(self) -> Paired:
        """The design of many models in two worlds."""
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
    """The experiment on a problem.

    Another framework registers its kind of problem: ``experiment_on.register(TextProblem, ...)`` in ``lm/`` is an
    example. A function is a user's trainer, and everything else is for the shipped trainer.
    """
    if callable(problem) and not isinstance(problem, type):
        from lastiterate.auditing.experiments.users import UserTrainings

        return UserTrainings.of(problem, given)
    from lastiterate.auditing.experiments.shipped import shipped_experiment

    return shipped_experiment(problem, given)
