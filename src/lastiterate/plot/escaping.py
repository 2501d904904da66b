"""Texts of others (names of data, attacks, files) in pictures: they are shown, whatever they contain, and do nothing.

Every specification goes through here before it is drawn or put into a page.
"""

from __future__ import annotations

import json
from typing import Any

from lastiterate.fields import Fields
from lastiterate.wording import printable

# Channels whose title is shown by an axis; that of every other is shown by a legend, or is a key of a tooltip.
_AXES = {"x", "y", "x2", "y2"}
_LEGENDS = {"color", "fill", "stroke", "shape", "size", "opacity", "fillOpacity", "strokeOpacity", "strokeDash"}


def harmless(spec: Fields) -> Fields:
    """The specification with texts that can be drawn, and with titles that end no expression.

    The engine ends its process over a control character. Vega-Lite writes the titles of channels into expressions,
    for tooltips and screen readers, with their quotation marks escaped, but not their backslashes.
    """
    done: Fields = _cleaned(spec)
    return done


def for_script(value: object) -> str:
    """JSON that may stand in a script element: what would end that element, or begin a comment, is escaped."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e")


def _cleaned(value: Any) -> Any:
    match value:
        case str():
            return printable(value)
        case list() | tuple():
            return [_cleaned(each) for each in value]
        case dict():
            cleaned = {printable(key): _cleaned(each) for key, each in value.items()}
            if isinstance(encoding := cleaned.get("encoding"), dict):
                cleaned["encoding"] = {name: _channel(name, each) for name, each in encoding.items()}
            return cleaned
    return value


def _channel(name: str, definition: Any) -> Any:
    """A channel, or several: the title for expressions has its backslashes escaped, the one that is shown has not."""
    if isinstance(definition, list):
        return [_channel(name, each) for each in definition]
    if not isinstance(definition, dict):
        return definition
    guide = "axis" if name in _AXES else "legend" if name in _LEGENDS else None
    shown = definition.get("title")
    if guide and isinstance(own := definition.get(guide), dict):
        shown = own.get("title", shown)
    if shown is None or "\\" not in "".join(shown):
        return definition
    escaped = {**definition, "title": _escaped(shown)}
    if guide and definition.get(guide, {}) is not None:
        escaped[guide] = {**(definition.get(guide) or {}), "title": shown}
    return escaped


def _escaped(title: str | list[str]) -> str | list[str]:
    return title.replace("\\", "\\\\") if isinstance(title, str) else [line.replace("\\", "\\\\") for line in title]
