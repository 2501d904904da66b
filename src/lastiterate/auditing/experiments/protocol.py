"""The protocol of experiments, through which engine, store and report use an audit of any framework."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol

from lastiterate.attacks.attack import Expected, ExpectedScores, Facts, Words, expected_fields
from lastiterate.auditing.design import Design, Quality
from lastiterate.auditing.identity import Identity
from lastiterate.auditing.stores.audit_record import ScoredTrials
from lastiterate.common.types import BoolArray, Fields, IntArray
from lastiterate.run import DPSGD
from lastiterate.trainers.adam_second_moment import SecondMoment

if TYPE_CHECKING:
    from lastiterate.common.progress import TrainingProgress


@dataclass(frozen=True)
class Crafted:
    """The crafter's decisions, made before the first audited model is trained.

    Attributes:
        facts: values that the attack needs in later sessions, as plain values.
        expected: the distribution of scores that the linear analysis expects.
        words: description of the attack for the report.
        quality_before: quality of the model before training, if it is measured.
        second_moment: Adam's second moment on reference models, if it is measured.
    """

    facts: Facts
    expected: ExpectedScores
    words: Words
    quality_before: float | None = None
    second_moment: SecondMoment | None = None

    def fields(self) -> Fields:
        """Return the decisions as JSON values."""
        measured: Fields = {} if self.second_moment is None else {"second_moment": self.second_moment.fields()}
        return measured | {
            "facts": self.facts,
            "expected": expected_fields(self.expected),
            "words": asdict(self.words),
            "quality_before": self.quality_before,
        }

    @classmethod
    def of_fields(cls, fields: Fields) -> Crafted:
        """Read the decisions from JSON values."""
        words = fields["words"]
        told = Words(words["attack"], words["unit"], tuple(words["caveats"]))
        measured = fields.get("second_moment")
        moment = None if measured is None else SecondMoment.of_fields(measured)
        return cls(fields["facts"], Expected(**fields["expected"]), told, fields["quality_before"], moment)


@dataclass(frozen=True)
class Cost:
    """The estimated cost of an audit on this machine.

    Attributes:
        models: number of models to train in total.
        reference_models: number of these that are trained for crafting only and have no score in the audit.
        seconds: estimated wall time in seconds.
        bytes: estimated memory in bytes.
        basis: description of what the estimate is based on.
    """

    models: int
    reference_models: int
    seconds: float
    bytes: int
    basis: str


class Trials(Protocol):
    """The trials of an experiment, which trains and scores models by their numbers, a chunk at a time."""

    @property
    def chunk_size(self) -> int:
        """The number of trials that are trained together. Scores may depend on it, so it is fixed in the store."""

    def chunks(self, models: IntArray, present: BoolArray, progress: TrainingProgress | None) -> Iterator[ScoredTrials]:
        """Yield chunks of these trials as they finish, in any order."""


class Experiment(Protocol):
    """The training and scoring of an audit, without engine, store and report. It can be sent to other processes."""

    @property
    def run(self) -> DPSGD:
        """The run that is trained and that predictions are for."""

    @property
    def design(self) -> Design:
        """The planned trials."""

    @property
    def quality(self) -> Quality | None:
        """The measure of the models' quality; None if it is not measured."""

    @property
    def data(self) -> str:
        """The description of model and data for the report."""

    def identity(self) -> Identity:
        """Return all that determines the scores, as plain values."""

    def craft(self, progress: bool | None) -> Crafted:
        """Craft the canary, if necessary from reference models, and return all decisions."""

    def trials(self, crafted: Crafted, chunk_size: int | None, workers: int | None, sharers: int = 1) -> Trials:
        """Return the trainer and distinguisher.

        Args:
            crafted: the decisions of ``craft``, from this or an earlier session.
            chunk_size: trials per chunk. None: a size that suits this machine.
            workers: number of chunks trained at a time. None: one per core.
            sharers: number of processes that share the trials, as on a cluster.
        """

    def cost(self) -> Cost:
        """Estimate the cost on this machine, from a few real steps or one real model if anything is trained."""
