"""What a store says about its audit, as JSON: the same after years, or refused with what differs."""

from __future__ import annotations

import json
from itertools import islice, zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lastiterate.fields import Fields

_ABSENT = object()
_SHOWN = 3  # differences that a refusal names
_SHORT = 60  # characters of a value in it


def as_json(name: str, value: object) -> str:
    """A dictionary as text, or a refusal that calls it by its name."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a dictionary, got {value!r}")
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be made of what JSON has: {error}") from None


def check_same(path: Path, held: Fields, wanted: Fields) -> None:
    """Refuse to continue what a store holds with something else, and say what is not the same."""
    differing = list(islice(differences(held, wanted), _SHOWN + 1))
    if differing:
        more = " and more" if len(differing) > _SHOWN else ""
        raise ValueError(
            f"the store {str(path)!r} holds another audit ({'; '.join(differing[:_SHOWN])}{more}): "
            "name another store, or repeat what was asked for then"
        )


def differences(held: object, wanted: object, name: str = "") -> Iterator[str]:
    """Where two JSON values differ, each in a few words."""
    if isinstance(held, dict) and isinstance(wanted, dict):
        for key in [*held, *(key for key in wanted if key not in held)]:
            inner = f"{name}.{key}" if name else key
            yield from differences(held.get(key, _ABSENT), wanted.get(key, _ABSENT), inner)
    elif isinstance(held, list) and isinstance(wanted, list):
        for index, (one, other) in enumerate(zip_longest(held, wanted, fillvalue=_ABSENT)):
            yield from differences(one, other, f"{name}[{index}]")
    elif held != wanted and repr(held) != repr(wanted):  # NaN is itself here
        yield f"{name} is {_short(held)} there and {_short(wanted)} here"


def _short(value: object) -> str:
    text = "absent" if value is _ABSENT else repr(value)
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}..."
