"""Options that commands share are dataclasses: a command takes one as a parameter, its fields become options."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable


def unfold(command: Callable[..., None]) -> Callable[..., None]:
    """Show typer a function whose dataclass parameters are replaced by their fields."""
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
    """What typer is shown: where an option has a parser the type does not matter, and typer knows few types."""
    metadata = getattr(annotation, "__metadata__", ())
    if any(getattr(each, "parser", None) for each in metadata):
        annotation = Annotated[Any, *metadata]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
