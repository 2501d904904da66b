"""Options that are not on a command line: what is typed into a page is read as if it were, with the same complaints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from lastiterate.cli import option_values as values
from lastiterate.cli.exit_status import OptionError
from lastiterate.cli.options import ConvexOptions, MethodOptions, SizeOptions
from lastiterate.run import DPSGD

if TYPE_CHECKING:
    from lastiterate.compare_analyses import Curves

_Options = TypeVar("_Options", SizeOptions, MethodOptions, ConvexOptions)
_KINDS = (SizeOptions, MethodOptions, ConvexOptions)
_Value = TypeVar("_Value")


def run_of(texts: Mapping[str, str]) -> DPSGD:
    """The run that options of these names and texts describe; a ValueError is the command line's sentence."""
    known = {field.name for kind in _KINDS for field in fields(kind)} | {"noise_multiplier"}
    for name in texts:
        if name not in known:
            raise ValueError(f"there is no option {_spelled(name)}")
    if "noise_multiplier" not in texts:
        raise ValueError("--noise-multiplier must be given")
    return _told(lambda: _run(texts))


def curves_of(texts: Mapping[str, str]) -> Curves:
    """The analyses that need more than the run, by the options of these names and texts."""
    return _told(lambda: _options(ConvexOptions, texts).curves())


def number_of(name: str, text: str) -> float:
    """The number that the text of an option is."""
    return _told(lambda: values.number(_spelled(name))(text))


def integers_of(name: str, text: str) -> list[int]:
    """Whole numbers with commas between them."""
    return _told(lambda: values.integers(_spelled(name))(text))


def _run(texts: Mapping[str, str]) -> DPSGD:
    noise = values.per_step("--noise-multiplier")(texts["noise_multiplier"])
    return _options(SizeOptions, texts).run(noise, _options(MethodOptions, texts))


def _options(kind: type[_Options], texts: Mapping[str, str]) -> _Options:
    hints = get_type_hints(kind, include_extras=True)
    given: dict[str, Any] = {name: _read(hints[name], text) for name, text in texts.items() if name in hints}
    return kind(**given)


def _read(hint: Any, text: str) -> object:
    """What typer would make of the text."""
    option = hint.__metadata__[0]
    if option.parser is not None:
        return option.parser(text)
    return text == "true" if hint.__origin__ is bool else text


def _told(read: Callable[[], _Value]) -> _Value:
    try:
        return read()
    except OptionError as error:
        raise ValueError(error.message) from None


def _spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"
