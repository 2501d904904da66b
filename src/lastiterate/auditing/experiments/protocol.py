"""What engine, store and report know of an audit: an ``Experiment``, whatever it trains and in which framework."""

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
    """What was decided before the first model is counted.

    Attributes:
        facts: what the attack needs to know again, as plain values.
        expected: what the linear analysis expects of the scores.
        words: the attack for people.
        quality_before: of the model before training, where that is measured.
        second_moment: of Adam, on models that are not counted, where that is measured.
    """

    facts: Facts
    expected: ExpectedScores
    words: Words
    quality_before: float | None = None
    second_moment: SecondMoment | None = None

    def fields(self) -> Fields:
        """As what JSON has."""
        measured: Fields = {} if self.second_moment is None else {"second_moment": self.second_moment.fields()}
        return measured | {
            "facts": self.facts,
            "expected": expected_fields(self.expected),
            "words": asdict(self.words),
            "quality_before": self.quality_before,
        }

    @classmethod
    def of_fields(cls, fields: Fields) -> Crafted:
        """What was decided, from what was written."""
        words = fields["words"]
        told = Words(words["attack"], words["unit"], tuple(words["caveats"]))
        measured = fields.get("second_moment")
        moment = None if measured is None else SecondMoment.of_fields(measured)
        return cls(fields["facts"], Expected(**fields["expected"]), told, fields["quality_before"], moment)


@dataclass(frozen=True)
class Cost:
    """What an audit would train, and what that would take here.

    Attributes:
        models: that are trained in all.
        reference_models: those of them that only craft, and are not counted.
        seconds: that it would take.
        bytes: of memory that it would take.
        basis: what the estimate rests on, in words.
    """

    models: int
    reference_models: int
    seconds: float
    bytes: int
    basis: str


class Trials(Protocol):
    """Trains and scores models by their numbers, a chunk at a time."""

    @property
    def chunk_size(self) -> int:
        """How many trials are trained together. Scores may depend on it, so that a store keeps to it."""

    def chunks(self, models: IntArray, present: BoolArray, progress: TrainingProgress | None) -> Iterator[ScoredTrials]:
        """Chunks of these trials as they get ready, in any order."""


class Experiment(Protocol):
    """An audit without its engine, its store and its question. It can be sent to other processes."""

    @property
    def run(self) -> DPSGD:
        """What is trained, and what the predictions are for."""

    @property
    def design(self) -> Design:
        """Which trials there are."""

    @property
    def quality(self) -> Quality | None:
        """How good the models are for what they are meant to do; None: it is not measured."""

    @property
    def data(self) -> str:
        """What is trained on what, for people."""

    def identity(self) -> Identity:
        """All that determines the scores, as plain values."""

    def craft(self, progress: bool | None) -> Crafted:
        """Look at models that are not counted, and decide all that has to be decided."""

    def trials(self, crafted: Crafted, chunk_size: int | None, workers: int | None, sharers: int = 1) -> Trials:
        """Trainer and distinguisher.

        Args:
            crafted: what ``craft`` decided, now or in an earlier session.
            chunk_size: None: one that suits this machine.
            workers: how many chunks are trained at a time. None: one a core.
            sharers: how many of these share the trials, as on a cluster.
        """

    def cost(self) -> Cost:
        """What it would take here, from a few real steps."""
