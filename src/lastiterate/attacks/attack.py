"""What an attack is: a crafter, which makes the canary, and a distinguisher, which scores what was trained.

The crafter may train models of its own first (``References``): they are never counted in the audit, so that whatever
was chosen by looking at them (a direction, a centre, a threshold) costs no confidence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from lastiterate.run import DPSGD
from lastiterate.values import Array

if TYPE_CHECKING:
    from lastiterate.training import Problem
    from lastiterate.training.problem import Canary

Facts = dict[str, Any]  # plain values, which a store can keep


@dataclass(frozen=True)
class Expected:
    """What the linear analysis expects of the scores, from which thresholds follow before any model is trained.

    kind "linear": N(0, spread^2) without the canary and signal S / s + N(0, spread^2) with it, where S is how much of
    the canary is in the model and s the noise. kind "likelihood-ratio": the log of the likelihood ratio over all steps.
    kind "none": nothing is known, and thresholds must come from the scores themselves.
    """

    kind: Literal["linear", "likelihood-ratio", "none"]
    signal: float = 1.0
    spread: float = 1.0


@dataclass(frozen=True, eq=False)
class Armed:
    """An attack that is ready: everything that a chunk of models needs.

    Attributes:
        problem: what is trained; attacks on adversarial data replace the user's.
        canary: what is present in one world and absent in the other.
        score: the distinguisher: released parameters of some models, a pytree with a leading axis, to their scores.
        watch: makes, for one chunk of models, the distinguisher that is shown every iterate, and scores instead.
        double: train in float64, whatever JAX is set to.
    """

    problem: Problem
    canary: Canary
    score: Callable[[Any], Array]
    watch: Callable[[], Watch] | None = None
    double: bool = False


class Watch(Protocol):
    """A distinguisher that sees all iterates of a chunk of models, one after the other, the initial one first."""

    def see(self, step: int, parameters: Any) -> None: ...
    def scores(self) -> Array: ...


class References(Protocol):
    """Trains models that are not counted; ``purpose`` keeps their randomness apart. Returns released parameters."""

    def __call__(
        self,
        run: DPSGD,
        problem: Problem,
        canary: Canary | None = None,
        *,
        models: int,
        present: bool = False,
        purpose: int = 0,
    ) -> Any: ...


class Attack(Protocol):
    """Crafter and distinguisher. Implementations are frozen dataclasses, whose fields describe them in the store.

    One with a true ``brings_problem`` arms a problem of its own and is given None for the user's.
    """

    def craft(self, run: DPSGD, problem: Problem, references: References) -> Facts:
        """Look at models without (or with) the canary, and decide all that has to be decided."""

    def arm(self, run: DPSGD, problem: Problem, facts: Facts) -> Armed:
        """The canary and the distinguisher that the facts determine."""

    def expected(self, facts: Facts) -> Expected:
        """What the linear analysis expects of the scores."""

    def words(self, facts: Facts) -> Words:
        """The attack for people."""


def fair_coins(canaries: int, seed: int) -> Array:
    """Which of the canaries of one run are in; it depends on the audit's seed alone."""
    return np.random.default_rng([seed, 1]).random(canaries) < 0.5


@dataclass(frozen=True)
class Words:
    """An attack in plain words: one line, the unit of its scores, and what readers should know."""

    attack: str
    unit: str
    caveats: tuple[str, ...] = ()
