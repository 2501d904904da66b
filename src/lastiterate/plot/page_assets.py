"""Styles of web pages, a cache of their scripts, and escaping of texts in pictures and pages.

``BASE`` is the style that all pages share: on a desktop, on a phone, in dark mode and in print.
"""

import hashlib
import html
import json
import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lastiterate.auditing.evidence.audit_result import KeyNumber
from lastiterate.common.atomic_write import write_whole
from lastiterate.common.system import cache_folder
from lastiterate.common.types import Fields
from lastiterate.formatting import printable, spell_down
from lastiterate.plot.style import verdict_colour

STATIC = Path(__file__).with_name("static")
BASE = (STATIC / "base.css").read_text(encoding="utf-8")


def html_page(title: str, style: str, body: str, scripts: str = "", head: str = "") -> str:
    """Return a page with the shared style ``BASE`` and the style in the file ``style``."""
    own = (STATIC / style).read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"{head}<title>{title}</title>\n<style>{BASE}{own}</style>\n</head>\n<body>\n<main>\n{body}</main>\n{scripts}"
        "</body>\n</html>\n"
    )


def verdict_box(verdict: str, headline: str, strength: str, reason: str) -> str:
    """Return a box with the verdict in words, in its colour, with its strength and its reason."""
    words = "".join(f"<p>{escape(each)}</p>" for each in (strength, reason))
    return (
        f'<div class="verdict" style="border-color: {verdict_colour(verdict)}">'
        f'<p class="word">{escape(headline)}</p>{words}</div>'
    )


def tiles(numbers: Iterable[KeyNumber], delta: str) -> str:
    """Return the three numbers as tiles. All digits are in the tooltip."""
    words = f"Epsilon, at delta {delta}: how much an attacker can learn about one example. Smaller is more private."
    made = "".join(
        f'<article class="tile {each.kind}"><p class="title">{_TILES[each.kind]}</p>'
        f'<p class="value"{_exact(each.epsilon)}>{escape(each.text)}</p>'
        f'<p class="soft">{escape(each.words)}</p></article>'
        for each in numbers
    )
    return f'<p class="soft unit">{words}</p><div class="tiles">{made}</div>'


_TILES = {
    "guarantee": "Guaranteed <span>what you may promise</span>",
    "prediction": "Predicted <span>what to expect</span>",
    "found": "Found <span>what an attack showed</span>",
}


def _exact(epsilon: float | None) -> str:
    return "" if epsilon is None else f' title="{epsilon!r}"'


def strength_bar(caught: float | None, words: str, chance: str) -> str:
    """Return a bar of the noise that an audit would have caught, from none to all of the declared noise."""
    part = 0.0 if caught is None else 100.0 * caught
    at = f'<p class="mark" aria-hidden="true" style="left: {min(max(part, 5.0), 95.0):.4g}%">{spell_down(part, 2)}%</p>'
    return (
        f'<div class="strength"><p class="title">How strong was the test?</p>{at if part else ""}'
        f'<div class="bar" role="img" aria-label="{escape(words)}"><div style="width: {part:.4g}%"></div></div>'
        '<p class="scale" aria-hidden="true"><span>no noise</span><span>all declared noise</span></p>'
        f'<p class="soft">Filled: a training with only this share of the declared noise would have been caught by '
        f"{chance} of such audits. Open: a training with this share could have passed.</p></div>"
    )


def escape(text: str) -> str:
    """Escape a text for HTML."""
    return html.escape(printable(text))


# Script cache: bundled scripts in the user's cache folder, because bundling is the slowest part of a page. Pages run
# cached scripts, so a script is used only if its file is complete and belongs to the user.


def kept_scripts(name: str) -> str | None:
    """Return the cached scripts of this name, or None if they are absent or cannot be trusted."""
    try:
        with (cache_folder("scripts") / f"{name}.js").open("rb") as file:
            about = os.fstat(file.fileno())
            others = stat.S_IWGRP | stat.S_IWOTH
            if sys.platform != "win32" and (about.st_uid != os.geteuid() or about.st_mode & others):
                return None
            digest, _, content = file.read().partition(b"\n")
            return content.decode() if digest == _digest(content) else None
    except (OSError, ValueError, RuntimeError):
        return None


def keep_scripts(name: str, content: bytes) -> None:
    """Cache the scripts, if possible."""
    with suppress(OSError, ValueError, RuntimeError):  # if there is no home folder or no space, bundle again
        folder = cache_folder("scripts")
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{name}.js", _digest(content) + b"\n" + content, "cache")


def _digest(content: bytes) -> bytes:
    return b"// sha256 " + hashlib.sha256(content).hexdigest().encode()


# Escaping: names of data, attacks and files may contain any text. It must be shown and never run as code. Every chart
# specification goes through `harmless` before it is drawn or put into a page.

# Channels whose title is shown by an axis or by a legend. The titles of other channels are keys of tooltips.
_AXES = {"x", "y", "x2", "y2"}
_LEGENDS = {"color", "fill", "stroke", "shape", "size", "opacity", "fillOpacity", "strokeOpacity", "strokeDash"}


def harmless(spec: Fields) -> Fields:
    """Return the specification without control characters, and with backslashes escaped in the titles of channels.

    A control character makes the drawing engine abort its process. Vega-Lite copies the titles of channels into
    expressions, for tooltips and screen readers, and escapes quotation marks but not backslashes.
    """
    done: Fields = _cleaned(spec)
    return done


def for_script(value: object) -> str:
    """Return JSON for a script element. Characters that could end the element or begin a comment are escaped."""
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
    """Escape backslashes in the title that goes into expressions, but not in the title that is shown."""
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
    lines = [line.replace("\\", "\\\\") for line in ([shown] if isinstance(shown, str) else shown)]
    escaped = {**definition, "title": lines[0] if isinstance(shown, str) else lines}
    if guide and definition.get(guide, {}) is not None:
        escaped[guide] = {**(definition.get(guide) or {}), "title": shown}
    return escaped
