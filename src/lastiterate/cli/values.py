"""Options' texts become values: each function takes an option's name, for its complaints, and gives a parser.

Ranges are left to the objects that the values are for; they name what is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastiterate.cli.errors import OptionError
from lastiterate.vocabulary import THRESHOLDS

if TYPE_CHECKING:
    from collections.abc import Callable


def integer(option: str) -> Callable[[str], int]:
    """A whole number: 1.5 and 1e5 are refused, as a mistyped step count should not pass."""

    def parse(text: str) -> int:
        try:
            return int(str(text))
        except ValueError:
            raise OptionError(f"{option} must be an integer, got {text!r}") from None

    return parse


def number(option: str) -> Callable[[str], float]:
    """A number."""

    def parse(text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise OptionError(f"{option} must be a number, got {text!r}") from None

    return parse


def per_step(option: str) -> Callable[[str], float | list[float]]:
    """One number for all steps, or one for each, separated by commas."""
    one = number(option)

    def parse(text: str) -> float | list[float]:
        return [one(part) for part in text.split(",")] if "," in text else one(text)

    return parse


def integers(option: str) -> Callable[[str], list[int]]:
    """Whole numbers separated by commas."""
    one = integer(option)

    def parse(text: str) -> list[int]:
        return [one(part) for part in text.split(",")]

    return parse


def one_of(*allowed: str) -> Callable[[str], Callable[[str], str]]:
    """One of a few words."""

    def of(option: str) -> Callable[[str], str]:
        def parse(text: str) -> str:
            if text not in allowed:
                raise OptionError(f"{option} must be one of {', '.join(allowed)}, got {text!r}")
            return text

        return parse

    return of


def threshold(option: str) -> Callable[[str], float | str]:
    """A number, or how the threshold is chosen."""

    def parse(text: str) -> float | str:
        if text in THRESHOLDS:
            return text
        try:
            return float(text)
        except ValueError:
            raise OptionError(f"{option} must be a number or one of {', '.join(THRESHOLDS)}, got {text!r}") from None

    return parse


def average(option: str) -> Callable[[str], str | float]:
    """The word uniform, or the decay of an exponential moving average."""

    def parse(text: str) -> str | float:
        if text == "uniform":
            return text
        try:
            return float(text)
        except ValueError:
            raise OptionError(f"{option} must be uniform or a decay in (0, 1), got {text!r}") from None

    return parse
