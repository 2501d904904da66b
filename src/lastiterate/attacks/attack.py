"""The interface of attacks: a crafter, which makes the canary, and a distinguisher, which scores trained models.

The crafter may train reference models first (``References``). The audit never counts reference models, so choices that
depend on them (a direction, a centre, a threshold) do not lower the confidence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from lastiterate.common.types import Fields, FloatArray
from lastiterate.common.validation import one_of
from lastiterate.run import DPSGD
from lastiterate.supported_runs import (
    BALLS_IN_BINS,
    BASIC,
    COMBINATIONS,
    CORRELATED_NOISE,
    LINEAR,
    RELEASES,
    TRUNCATED,
    Support,
)

if TYPE_CHECKING:
    from jaxtyping import PyTree

    from lastiterate.training import Problem
    from lastiterate.training.problem import Canary

Facts: TypeAlias = Fields  # plain values, which a store can hold


@dataclass(frozen=True)
class LinearScores:
    """Expected scores: N(0, spread^2) without the canary, and signal * S / s + N(0, spread^2) with the canary.

    S is the amount of the canary in the model, and s is the standard deviation of the run's noise. ``signal`` is the
    share of the canary that the attack sees. Theorem 1 of the paper is the case ``signal`` = ``spread`` = 1.
    """

    signal: float = 1.0
    spread: float = 1.0


@dataclass(frozen=True)
class LikelihoodRatio:
    """The log-likelihood ratio over all steps, as if every iterate had been released.

    If ``released`` is true, the ratio is over the blocks of steps between released iterates. ``signal`` is the share of
    the canary that the attack sees, divided by the standard deviation of its observations without the canary. ``noise``
    is the true noise divided by the declared noise.
    """

    released: bool = False
    signal: float = 1.0
    noise: float = 1.0


@dataclass(frozen=True)
class Unknown:
    """Scores of unknown distribution. Thresholds must be chosen from observed scores."""


ExpectedScores: TypeAlias = LinearScores | LikelihoodRatio | Unknown


def Expected(  # noqa: N802 - formerly a class
    kind: Literal["linear", "likelihood-ratio", "none"],
    signal: float = 1.0,
    spread: float = 1.0,
    released: bool = False,
) -> ExpectedScores:
    """Return the expected scores of this kind."""
    match one_of("kind", kind, ("linear", "likelihood-ratio", "none")):
        case "linear":
            return LinearScores(signal, spread)
        case "likelihood-ratio":
            return LikelihoodRatio(released, signal)
        case _:
            return Unknown()


def expected_fields(expected: ExpectedScores) -> Fields:
    """Return the arguments with which ``Expected`` returns this value."""
    match expected:
        case LinearScores(signal, spread):
            return {"kind": "linear", "signal": signal, "spread": spread}
        case LikelihoodRatio(released, signal):
            return {"kind": "likelihood-ratio", **({"released": True, "signal": signal} if released else {})}
        case Unknown():
            return {"kind": "none"}


@dataclass(frozen=True, eq=False)
class Armed:
    """An attack that is ready to train and score models.

    Attributes:
        problem: the problem to train; attacks on adversarial data replace the user's problem.
        score: maps released parameters of some models, a pytree with a leading axis, to their scores.
        watch: makes a distinguisher for one chunk of models that sees every iterate and replaces ``score``.
        double: train in float64, regardless of JAX's setting.
        released_only: ``watch`` sees only the initial iterate and the released iterates.
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
    """A function that trains reference models, which the audit does not count, and returns their last iterates.

    Calls with different values of ``purpose`` use independent randomness. If the function ``seen`` is given, the result
    is the value of ``seen`` at each released iterate instead: [models, releases], or more axes.
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
        """Return the distribution of the scores that the linear analysis predicts."""

    def words(self, facts: Facts) -> Words:
        """Describe the attack in words."""


class BringsProblem:
    """An attack that makes its own training problem. It receives None in place of the user's problem.

    By default it makes no choices before training, and the distribution of its scores is not known.
    """

    def craft(self, run: DPSGD, problem: object, references: References) -> Facts:
        return {}

    def expected(self, facts: Facts) -> ExpectedScores:
        return Unknown()


@dataclass(frozen=True)
class Words:
    """A description of an attack: one line, the unit of its scores, and caveats for readers."""

    attack: str
    unit: str
    caveats: tuple[str, ...] = ()


def models_to_craft(attack: object) -> int:
    """Return the number of reference models that a crafter trains: its ``to_craft`` or ``references``."""
    return int(getattr(attack, "to_craft", getattr(attack, "references", 0)))


ONE_EXAMPLE = BASIC | {BALLS_IN_BINS, TRUNCATED, CORRELATED_NOISE} | COMBINATIONS  # default of ``supports``


def support_of(attack: object) -> Support:
    """Return the ``supports`` of an attack. The default is a canary of one example and one released iterate.

    ``attack`` is None for the default attack on a problem, and for trainers that return scores.
    """
    if attack is None:
        return Support("this audit", LINEAR | {RELEASES} | COMBINATIONS)
    declared = None if isinstance(attack, type) else getattr(attack, "supports", None)
    return declared if isinstance(declared, Support) else Support(f"the attack {type(attack).__name__}", ONE_EXAMPLE)


# Attacks with command-line names.


@dataclass(frozen=True)
class NamedAttack:
    """An attack with a command-line name."""

    kind: str  # name of its class
    argument: str | None = None  # first argument of the class
    others: Literal["blank", "zero"] | None = None  # allowed kind of other examples, besides natural ones

    def make(self, others: str | None = None) -> object:
        import lastiterate.attacks

        if others is not None:
            one_of("others", others, ("natural", "blank", "zero"))
        given = [] if self.argument is None else [self.argument]
        among = [] if self.others is None else [others or "natural"]
        return getattr(lastiterate.attacks, self.kind)(*given, *among)


NAMED = {
    "quiet": NamedAttack("GradientSpace", "quiet"),
    "layers": NamedAttack("GradientSpace", "layers"),
    "dirac": NamedAttack("GradientSpace", "dirac"),
    "random": NamedAttack("GradientSpace", "random"),
    "adversarial": NamedAttack("Adversarial", "exact"),
    "adversarial-trained": NamedAttack("Adversarial", "trained"),
    "mislabelled": NamedAttack("InputSpace", "mislabelled", "blank"),
    "blank": NamedAttack("InputSpace", "blank", "blank"),
    "clipbkd": NamedAttack("InputSpace", "clipbkd", "blank"),
    "all-iterates": NamedAttack("AllIterates", None, "zero"),
    "one-run": NamedAttack("OneRun", "gradient"),
    "one-run-mislabelled": NamedAttack("OneRun", "mislabelled"),
}


def named_attack(attack: str, others: str | None = None) -> object:
    """Return the attack with this command-line name. ``others`` is the kind of the other examples."""
    return NAMED[one_of("attack", attack, NAMED)].make(others)
