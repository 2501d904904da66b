"""Parsers of option texts, and ``unfold``, which turns dataclasses of options into options of a command.

Each function takes an option's name, for error messages, and returns a parser. Ranges are checked later, by the objects
that use the values.
"""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from lastiterate.attacks import NAMED
from lastiterate.cli.exit_status import OptionError
from lastiterate.common.validation import written_integer, written_number
from lastiterate.data.files import PARSED, BadFile, decoding, find, read_all
from lastiterate.registry import THRESHOLDS

if TYPE_CHECKING:
    from collections.abc import Callable


def integer(option: str) -> Callable[[str], int]:
    """Parse a whole number. 1.5, 1e5 and 1_000 are refused, so that a mistyped step count does not pass."""

    def parse(text: str) -> int:
        whole = written_integer(str(text))  # typer passes defaults unconverted
        if whole is None:
            raise OptionError(f"{option} must be an integer in plain digits, got {text!a}")
        return whole

    return parse


def number(option: str) -> Callable[[str], float]:
    """Parse a number."""

    def parse(text: str) -> float:
        value = written_number(str(text))
        if value is None:
            raise OptionError(f"{option} must be a finite number in plain digits, got {text!a}")
        return value

    return parse


def models(option: str) -> Callable[[str], int | str]:
    """Parse a whole number, or the word auto."""
    whole = integer(option)

    def parse(text: str) -> int | str:
        if str(text) != "auto" and written_integer(str(text)) is None:
            raise OptionError(f"{option} must be an integer in plain digits, or auto, got {text!a}")
        return "auto" if text == "auto" else whole(text)

    return parse


def per_step(option: str) -> Callable[[str], float | list[float]]:
    """Parse one number for all steps, or one per step, separated by commas."""
    one = number(option)

    def parse(text: str) -> float | list[float]:
        return [one(part) for part in text.split(",")] if "," in text else one(text)

    return parse


def rates(option: str) -> Callable[[str], float | list[float]]:
    """Parse sample rates as ``per_step`` does; a rate may also be a fraction of whole numbers, such as 1/3."""

    def one(text: str) -> float:
        above, _, below = text.partition("/")
        whole = [written_integer(part) for part in (above, below)]
        if "/" not in text:
            return number(option)(text)
        if whole[0] is None or not whole[1]:
            raise OptionError(f"{option} must be a finite number in plain digits or a fraction as 1/3, got {text!a}")
        return whole[0] / whole[1]

    def parse(text: str) -> float | list[float]:
        return [one(part) for part in str(text).split(",")] if "," in str(text) else one(str(text))

    return parse


def coefficients(option: str) -> Callable[[str], list[float]]:
    """Parse numbers separated by commas, or a text file of numbers separated by commas, blanks or lines."""
    one = number(option)

    def parse(text: str) -> list[float]:
        if written_number(text.partition(",")[0]) is not None:
            return [one(part) for part in text.split(",")]
        try:
            path = find(text, "file")
        except (OSError, ValueError):
            raise OptionError(
                f"{option} must be numbers separated by commas, or a file of them, got {text!a}"
            ) from None
        try:
            with decoding(path, "a text file of numbers") as file:
                words = read_all(file, path, PARSED).decode().replace(",", " ").split()
        except BadFile as error:
            raise OptionError(f"{option} cannot be read: {error}") from None
        if not words:
            raise OptionError(f"{option} must be a file of numbers, got one without any: {text!a}")
        return [one(word) for word in words]

    return parse


def integers(option: str) -> Callable[[str], list[int]]:
    """Parse whole numbers separated by commas."""
    one = integer(option)

    def parse(text: str) -> list[int]:
        return [one(part) for part in text.split(",")]

    return parse


def one_or_more(option: str) -> Callable[[str], int | list[int]]:
    """Parse one whole number, or several separated by commas."""
    one = integer(option)

    def parse(text: str) -> int | list[int]:
        return [one(part) for part in text.split(",")] if "," in text else one(text)

    return parse


def one_of(*allowed: str) -> Callable[[str], Callable[[str], str]]:
    """Parse one of the allowed words."""

    def of(option: str) -> Callable[[str], str]:
        def parse(text: str) -> str:
            if text not in allowed:
                raise OptionError(f"{option} must be one of {', '.join(allowed)}, got {text!a}")
            return text

        return parse

    return of


def attack(option: str) -> Callable[[str], str]:
    """Parse the name of an attack, or FILE.py:CLASS."""

    def parse(text: str) -> str:
        if text not in NAMED and ":" not in text:
            raise OptionError(f"{option} must be FILE.py:CLASS or one of {', '.join(NAMED)}, got {text!a}")
        return text

    return parse


def threshold(option: str) -> Callable[[str], float | str]:
    """Parse a threshold: a number, or the name of a way to choose it."""

    def parse(text: str) -> float | str:
        if text in THRESHOLDS:
            return text
        value = written_number(str(text))
        if value is None:
            raise OptionError(f"{option} must be a finite number or one of {', '.join(THRESHOLDS)}, got {text!a}")
        return value

    return parse


def average(option: str) -> Callable[[str], str | float]:
    """Parse the word uniform, or the decay of an exponential moving average."""

    def parse(text: str) -> str | float:
        if text == "uniform":
            return text
        value = written_number(str(text))
        if value is None:
            raise OptionError(f"{option} must be uniform or a decay in (0, 1), got {text!a}")
        return value

    return parse


# Groups of options: dataclasses that commands share; each field becomes an option.


def unfold(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with each dataclass parameter replaced by its fields, for typer."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    shown: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            types = get_type_hints(groups[name], include_extras=True)
            shown += [_option(field.name, types[field.name], field.default) for field in fields(groups[name])]
        else:
            shown.append(_option(name, hints[name], parameter.default))

    @wraps(command)
    def unfolded(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given)

    unfolded.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    unfolded.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return unfolded


def _option(name: str, annotation: Any, default: object) -> inspect.Parameter:
    """Return a parameter for typer. Options with a parser get type Any, since typer supports few types."""
    metadata = getattr(annotation, "__metadata__", ())
    if any(getattr(each, "parser", None) for each in metadata):
        annotation = Annotated[Any, *metadata]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
