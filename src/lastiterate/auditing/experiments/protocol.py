"""The base class of experiments. Engines, stores and reports use it for all frameworks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from lastiterate.auditing.design import Design, Quality
from lastiterate.auditing.identity import Identity, identify
from lastiterate.auditing.stores.audit_record import Crafted, ScoredTrials
from lastiterate.common.progress import TrainingProgress
from lastiterate.common.types import BoolArray, IntArray
from lastiterate.run import DPSGD


@dataclass(frozen=True)
class Cost:
    """The estimated cost of an audit on this machine. ``models`` includes the reference models, which have no score."""

    models: int
    reference_models: int
    seconds: float
    bytes: int
    basis: str


Chunks: TypeAlias = Callable[[IntArray, BoolArray, TrainingProgress | None], Iterator[ScoredTrials]]


class Trials(NamedTuple):
    """The number of trials that are trained together, and the function that trains and scores them.

    Scores may depend on the chunk size, so it is fixed in the store. Chunks are yielded as they finish, in any order.
    """

    chunk_size: int
    chunks: Chunks


@dataclass(frozen=True, eq=False)
class Experiment(ABC):
    """The training and scoring of an audit. An experiment can be pickled and sent to other processes."""

    run: DPSGD
    problem: Any  # the model and data, or the user's trainer
    attack: Any
    design: Design
    seed: int
    described: str = ""  # description of the problem for the report; a default is used if this is empty

    @property
    def quality(self) -> Quality | None:
        """The measure of the models' quality, or None if quality is not measured."""
        return None

    @property
    def data(self) -> str:
        return self.described

    def identity(self) -> Identity:
        return identify(self.run, self.problem, self.attack, self.design, self.seed)

    @abstractmethod
    def craft(self, progress: bool | None) -> Crafted:
        """Craft the canary. Some attacks train reference models first."""

    @abstractmethod
    def trials(self, crafted: Crafted, chunk_size: int | None, workers: int | None, sharers: int = 1) -> Trials:
        """Return the function that trains and scores. ``crafted`` may be from an earlier session.

        By default, ``chunk_size`` suits this machine, and ``workers`` is the number of cores.
        ``sharers`` is the number of processes that share the trials, as on a cluster.
        """

    @abstractmethod
    def cost(self) -> Cost:
        """Estimate the cost on this machine by timing a few steps or one model."""
