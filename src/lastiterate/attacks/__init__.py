"""Attacks of the paper and others, one file each: a crafter makes the canary, a distinguisher scores the models.

A new attack is a file, an entry of its module in ``_HOMES``, and an entry of its command-line name in ``NAMED``.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from lastiterate.common.validation import one_of

if TYPE_CHECKING:
    from lastiterate.attacks.adversarial import Adversarial
    from lastiterate.attacks.all_iterates import AllIterates
    from lastiterate.attacks.attack import Armed, Attack, Expected, References, Words
    from lastiterate.attacks.displacement import Displacement
    from lastiterate.attacks.gradient_space import GradientSpace
    from lastiterate.attacks.input_space import InputSpace
    from lastiterate.attacks.one_run import OneRun

_HOMES = {
    "Adversarial": "adversarial",
    "AllIterates": "all_iterates",
    "Armed": "attack",
    "Attack": "attack",
    "Displacement": "displacement",
    "Expected": "attack",
    "GradientSpace": "gradient_space",
    "InputSpace": "input_space",
    "OneRun": "one_run",
    "References": "attack",
    "Words": "attack",
}

__all__ = [
    "NAMED",
    "Adversarial",
    "AllIterates",
    "Armed",
    "Attack",
    "Displacement",
    "Expected",
    "GradientSpace",
    "InputSpace",
    "NamedAttack",
    "OneRun",
    "References",
    "Words",
    "named_attack",
]


@dataclass(frozen=True)
class NamedAttack:
    """An attack with a command-line name.

    Attributes:
        kind: name of its class.
        argument: first argument of the class; None: no argument.
        others: what the other examples may be instead of natural ones; None: nothing else.
    """

    kind: str
    argument: str | None = None
    others: Literal["blank", "zero"] | None = None

    def make(self, others: str | None = None) -> object:
        """Return the attack, among these other examples."""
        if others is not None:
            one_of("others", others, ("natural", "blank", "zero"))
        given = [] if self.argument is None else [self.argument]
        among = [] if self.others is None else [others or "natural"]
        return getattr(import_module(f"lastiterate.attacks.{_HOMES[self.kind]}"), self.kind)(*given, *among)


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
    """Return the attack with this command-line name, among these other examples."""
    return NAMED[one_of("attack", attack, NAMED)].make(others)


def __getattr__(name: str) -> object:
    """Load an attack on first use: attacks on shipped models need JAX, the one for users' trainers does not."""
    if name not in _HOMES:
        raise AttributeError(f"module 'lastiterate.attacks' has no attribute {name!r}")
    return getattr(import_module(f"lastiterate.attacks.{_HOMES[name]}"), name)
