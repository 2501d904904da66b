"""What an attack is: a crafter, which makes the canary, and a distinguisher, which scores what was trained.

The crafter may train models of its own first (``References``): they are never counted in the audit, so that whatever
was chosen by looking at them (a direction, a centre, a threshold) costs no confidence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from lastiterate.common.types import Fields, FloatArray
from lastiterate.common.validation import one_of
from lastiterate.optimizer import is_adam
from lastiterate.run import DPSGD, TRAINED

if TYPE_CHECKING:
    from jaxtyping import PyTree

    from lastiterate.training import Problem
    from lastiterate.training.problem import Canary

Facts: TypeAlias = Fields  # plain values, which a store can keep


@dataclass(frozen=True)
class LinearScores:
    """N(0, spread^2) without the canary, and signal S / s + N(0, spread^2) with it.

    S is how much of the canary is in the model, and s the noise of the run: Theorem 1 of the paper, for a distinguisher
    that sees a share of the canary and more than the noise. Thresholds follow before any model is trained.
    """

    signal: float = 1.0
    spread: float = 1.0


@dataclass(frozen=True)
class LikelihoodRatio:
    """The log of the likelihood ratio over all steps, as if every iterate had been released.

    With ``released``, over what is between the iterates that the run does release. ``signal`` is the share of the
    canary that the attack sees, over the spread of what it sees without it, and ``noise`` what there is of the noise
    that the run describes.
    """

    released: bool = False
    signal: float = 1.0
    noise: float = 1.0


@dataclass(frozen=True)
class Unknown:
    """Nothing is known of the scores: thresholds must come from the scores themselves."""


ExpectedScores: TypeAlias = LinearScores | LikelihoodRatio | Unknown


def Expected(  # noqa: N802 - it reads as the class it was
    kind: Literal["linear", "likelihood-ratio", "none"],
    signal: float = 1.0,
    spread: float = 1.0,
    released: bool = False,
) -> ExpectedScores:
    """What the linear analysis expects of the scores, by its name."""
    match one_of("kind", kind, ("linear", "likelihood-ratio", "none")):
        case "linear":
            return LinearScores(signal, spread)
        case "likelihood-ratio":
            return LikelihoodRatio(released, signal)
        case _:
            return Unknown()


def expected_fields(expected: ExpectedScores) -> Fields:
    """The arguments of ``Expected`` that give this."""
    match expected:
        case LinearScores(signal, spread):
            return {"kind": "linear", "signal": signal, "spread": spread}
        case LikelihoodRatio(released, signal):
            return {"kind": "likelihood-ratio", **({"released": True, "signal": signal} if released else {})}
        case Unknown():
            return {"kind": "none"}


@dataclass(frozen=True, eq=False)
class Armed:
    """An attack that is ready: everything that a chunk of models needs.

    Attributes:
        problem: what is trained; attacks on adversarial data replace the user's.
        canary: what is present in one world and absent in the other.
        score: the distinguisher: released parameters of some models, a pytree with a leading axis, to their scores.
        watch: makes, for one chunk of models, the distinguisher that is shown every iterate, and scores instead.
        double: train in float64, whatever JAX is set to.
        released_only: the one that watches is shown the initial iterate and those that the run releases, no others.
    """

    problem: Problem
    canary: Canary
    score: Callable[[PyTree], FloatArray]
    watch: Callable[[], Watch] | None = None
    double: bool = False
    released_only: bool = False


class Watch(Protocol):
    """A distinguisher that sees iterates of a chunk of models, one after the other, the initial one first."""

    def see(self, step: int, parameters: PyTree) -> None: ...
    def scores(self) -> FloatArray: ...


class References(Protocol):
    """Trains models that are not counted; ``purpose`` keeps their randomness apart. Returns the last iterates.

    With ``seen``, what this sees of each released iterate instead: [models, releases], or more axes.
    """

    def __call__(
        self,
        run: DPSGD,
        problem: Problem,
        canary: Canary | None = None,
        *,
        models: int,
        present: bool = False,
        purpose: int = 0,
        seen: Callable[[PyTree], FloatArray] | None = None,
    ) -> PyTree: ...


@runtime_checkable
class Attack(Protocol):
    """Crafter and distinguisher. Implementations are frozen dataclasses, whose fields describe them in the store."""

    def craft(self, run: DPSGD, problem: Problem, references: References) -> Facts:
        """Look at models without (or with) the canary, and decide all that has to be decided."""

    def arm(self, run: DPSGD, problem: Problem, facts: Facts) -> Armed:
        """The canary and the distinguisher that the facts determine."""

    def expected(self, facts: Facts) -> ExpectedScores:
        """What the linear analysis expects of the scores."""

    def words(self, facts: Facts) -> Words:
        """The attack for people."""


class BringsProblem:
    """An attack that arms a problem of its own: it is given None for the user's."""


@dataclass(frozen=True)
class Words:
    """An attack in plain words: one line, the unit of its scores, and what readers should know."""

    attack: str
    unit: str
    caveats: tuple[str, ...] = ()


def models_to_craft(attack: object) -> int:
    """How many models a crafter trains that are not counted, by its own word: ``to_craft`` or ``references``."""
    return int(getattr(attack, "to_craft", getattr(attack, "references", 0)))


def require_attackable(run: DPSGD, attack: object) -> None:
    """Refuse Adam for attacks that say by their ``needs_sgd`` why they are none on it."""
    why = None if isinstance(attack, type) else getattr(attack, "needs_sgd", None)
    if why and is_adam(run.optimizer):
        raise ValueError(f"optimizer must be a lastiterate.SGD for {type(attack).__name__}, got Adam: {why}")


def known_fields(attack: object) -> tuple[str, ...]:
    """Which fields of a run beyond the basic ones an attack knows what to do with, by its own word: ``knows``.

    All of them where none is given: those that suit a problem know them, and so must a trainer that returns scores.
    """
    if attack is None:
        return *TRAINED, "min_separation"
    return () if isinstance(attack, type) else tuple(getattr(attack, "knows", ()))
