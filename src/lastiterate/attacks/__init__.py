"""Attacks of the paper and beyond, one file each: a crafter makes the canary, a distinguisher scores the models."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

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
    "Adversarial",
    "AllIterates",
    "Armed",
    "Attack",
    "Displacement",
    "Expected",
    "GradientSpace",
    "InputSpace",
    "OneRun",
    "References",
    "Words",
]


def __getattr__(name: str) -> object:
    """Load an attack when it is asked for: those on shipped models need JAX, the one for users' trainers does not."""
    if name not in _HOMES:
        raise AttributeError(f"module 'lastiterate.attacks' has no attribute {name!r}")
    return getattr(import_module(f"lastiterate.attacks.{_HOMES[name]}"), name)
