"""The interface of attacks: a crafter, which makes the canary, and a distinguisher, which scores trained models.

The crafter may train models of its own first (``References``). These models are never counted in the audit, so that
choices that depend on them (a direction, a centre, a threshold) cost no confidence.
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

Facts: TypeAlias = Fields  # plain values, which a store can hold


@dataclass(frozen=True)
class LinearScores:
    """Expected scores N(0, spread^2) without the canary, and signal S / s + N(0, spread^2) with it.

    S is the amount of the canary in the model, and s the noise of the run. This is Theorem 1 of the paper for a
    distinguisher that sees a share of the canary and more than the noise. Thresholds follow before any model is
    trained.
    """

    signal: float = 1.0
    spread: float = 1.0


@dataclass(frozen=True)
class LikelihoodRatio:
    """The log-likelihood ratio over all steps, as if every iterate had been released.

    With ``released`` the ratio is over the blocks between the iterates that the run releases. ``signal`` is the share
    of the canary that the attack sees, over the spread of its observations without the canary. ``noise`` is the true
    noise as a share of the noise that the run declares.
    """

    released: bool = False
    signal: float = 1.0
    noise: float = 1.0


@dataclass(frozen=True)
class Unknown:
    """Scores of unknown distribution: thresholds must come from the scores themselves."""


ExpectedScores: TypeAlias = LinearScores | LikelihoodRatio | Unknown


def Expected(  # noqa: N802 - formerly a class
    kind: Literal["linear", "likelihood-ratio", "none"],
    signal: float = 1.0,
    spread: float = 1.0,
    released: bool = False,
) -> ExpectedScores:
    """Return the scores that the linear analysis expects, by the name of their kind."""
    match one_of("kind", kind, ("linear", "likelihood-ratio", "none")):
        case "linear":
            return LinearScores(signal, spread)
        case "likelihood-ratio":
            return LikelihoodRatio(released, signal)
        case _:
            return Unknown()


def expected_fields(expected: ExpectedScores) -> Fields:
    """Return the arguments of ``Expected`` that give this value."""
    match expected:
        case LinearScores(signal, spread):
            return {"kind": "linear", "signal": signal, "spread": spread}
        case LikelihoodRatio(released, signal):
            return {"kind": "likelihood-ratio", **({"released": True, "signal": signal} if released else {})}
        case Unknown():
            return {"kind": "none"}


@dataclass(frozen=True, eq=False)
class Armed:
    """An attack that is ready, with everything that a chunk of models needs.

    Attributes:
        problem: the problem to train; attacks on adversarial data replace the user's problem.
        canary: the canary, present in one world and absent in the other.
        score: the distinguisher: maps released parameters of some models, a pytree with a leading axis, to their
            scores.
        watch: makes a distinguisher for one chunk of models that sees every iterate and replaces ``score``.
        double: train in float64, regardless of JAX's setting.
        released_only: ``watch`` sees only the initial iterate and those that the run releases.
    """

    problem: Problem
    canary: Canary
    score: Callable[[PyTree], FloatArray]
    watch: Callable[[], Watch] | None = None
    double: bool = False
    released_only: bool = False


class Watch(Protocol):
    """A distinguisher that sees iterates of a chunk of models one after the other, the initial iterate first."""

    def see(self, step: int, parameters: PyTree) -> None: ...
    def scores(self) -> FloatArray: ...


class References(Protocol):
    """A function that trains models that are not counted. Returns the last iterates.

    ``purpose`` separates the randomness of different uses. With ``seen``, the result is the value of ``seen`` at each
    released iterate instead: [models, releases], or more axes.
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
    """A crafter and a distinguisher. Implementations are frozen dataclasses; the store keeps their fields."""

    def craft(self, run: DPSGD, problem: Problem, references: References) -> Facts:
        """Train models without (or with) the canary, and return all choices of the attack."""

    def arm(self, run: DPSGD, problem: Problem, facts: Facts) -> Armed:
        """Return the canary and the distinguisher that the facts determine."""

    def expected(self, facts: Facts) -> ExpectedScores:
        """Return what the linear analysis expects of the scores."""

    def words(self, facts: Facts) -> Words:
        """Describe the attack for people."""


class BringsProblem:
    """An attack that brings its own problem: it gets None in place of the user's problem."""


@dataclass(frozen=True)
class Words:
    """A description of an attack: one line, the unit of its scores, and caveats for readers."""

    attack: str
    unit: str
    caveats: tuple[str, ...] = ()


def models_to_craft(attack: object) -> int:
    """Return the number of uncounted models that a crafter trains: its ``to_craft`` or ``references``."""
    return int(getattr(attack, "to_craft", getattr(attack, "references", 0)))


def require_attackable(run: DPSGD, attack: object) -> None:
    """Raise if the optimizer is Adam and the attack states by ``needs_sgd`` why it needs SGD."""
    why = None if isinstance(attack, type) else getattr(attack, "needs_sgd", None)
    if why and is_adam(run.optimizer):
        raise ValueError(f"optimizer must be a lastiterate.SGD for {type(attack).__name__}, got Adam: {why}")


def known_fields(attack: object) -> tuple[str, ...]:
    """Return the fields of a run beyond the basic ones that an attack supports: its ``knows``.

    Without an attack, all fields are returned: the attacks that suit a problem support them, and a trainer that returns
    scores must do so, too.
    """
    if attack is None:
        return *TRAINED, "min_separation"
    return () if isinstance(attack, type) else tuple(getattr(attack, "knows", ()))
