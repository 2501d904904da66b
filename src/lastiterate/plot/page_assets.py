"""Styles of web pages, a cache of their scripts, and escaping of texts in pictures and pages.

``BASE`` is the style that all pages share: on a desktop, on a phone, in dark mode and in print.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from contextlib import suppress
from typing import Any

from lastiterate.common.atomic_write import write_whole
from lastiterate.common.system import cache_folder
from lastiterate.common.types import Fields
from lastiterate.formatting import printable

BASE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --soft: #5a5a5a; --line: #d9dbde; --paper: #fff; --shade: #f4f5f6;
  --card: #fff; --mark: #fdeeb5; --accent: #0072b2; --blue: #00649c; --orange: #a84800; --green: #006e50;
  --bad: #a3290c; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --soft: #adb0b4; --line: #3a3d41; --paper: #16181a; --shade: #202327; --card: #1d1f22;
    --mark: #5a4a10; --accent: #56b4e9; --blue: #56b4e9; --orange: #f08a48; --green: #3cc79c; --bad: #ff8f70; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 Helvetica, Arial, "Liberation Sans", "DejaVu Sans", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
p, li, dd { max-width: 46rem; overflow-wrap: anywhere; }
a { color: var(--blue); }
.soft { color: var(--soft); }
.verdict { border-left: .4rem solid; padding: .7rem 1rem; background: var(--shade); }
.verdict p { margin: .3rem 0; }
.verdict .word { font-size: 1.15rem; font-weight: bold; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; }
th, td { text-align: left; vertical-align: top; padding: .4rem .9rem .4rem 0; border-bottom: 1px solid var(--line); }
thead th { color: var(--soft); font-weight: normal; vertical-align: bottom; }
tbody th { font-weight: bold; } td { font-variant-numeric: tabular-nums; }
dl { margin: 1rem 0; } dt { color: var(--soft); margin-top: .6rem; } dd { margin: 0; }
figure { margin: 1rem 0; padding: .8rem; background: var(--card); border: 1px solid var(--line); border-radius: 4px; }
figcaption { font-size: .95rem; margin-bottom: .4rem; } figcaption strong { display: block; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 12rem), 1fr)); gap: 1rem;
  margin: .9rem 0; }
.tile { border: 1px solid var(--line); border-top: 3px solid var(--soft); border-radius: 4px;
  padding: .7rem .9rem .8rem; background: var(--card); }
.tile.prediction { border-top-color: var(--blue); } .tile.guarantee { border-top-color: var(--orange); }
.tile.comparison { border-top-color: var(--green); } .tile.found { border-top-color: var(--ink); }
.tile h3, .tile .title { margin: 0 0 .3rem; font-size: .95rem; font-weight: bold; } .tile p { margin: .2rem 0 0; }
.tile .soft { font-size: .86rem; line-height: 1.35; }
.tile .value { font-size: 1.9rem; line-height: 1.25; font-variant-numeric: tabular-nums; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); gap: 1rem; }
.figures figure { margin: 0; min-width: 0; overflow: hidden; }
.figures .soft { font-size: .86rem; line-height: 1.35; display: block; }
pre { background: var(--shade); padding: .8rem; overflow-x: auto; border-radius: 4px; }
button, input, select { font: inherit; color: inherit; background: var(--card); border: 1px solid #8a8d91;
  border-radius: 4px; padding: .25rem .5rem; min-width: 0; }
button { cursor: pointer; padding: .3rem .8rem; } button:hover { background: var(--shade); }
button.quiet { padding: .05rem .5rem; font-size: .85rem; }
input[type="range"] { padding: 0; width: 100%; accent-color: var(--accent); margin: .15rem 0 .1rem; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
@media print { :root { --ink: #000; --soft: #444; --line: #bbb; --paper: #fff; --shade: #fff; --card: #fff; } }
"""

STYLE = (
    BASE
    + """
thead th:nth-child(2) { white-space: nowrap; } td { min-width: 4.5rem; }
@media (max-width: 40rem) { table { font-size: .85rem; } thead th:nth-child(2) { white-space: normal; } }
figure { background: #fff; } figcaption { color: #1c1c1c; } figcaption .soft { color: #555; }
figure img, figure svg { display: block; max-width: 100%; height: auto; margin: 0 auto; }
figure .chart.vega-embed { display: block; }
@media print {
  main { max-width: none; padding: 0; } figure, tr, .verdict { break-inside: avoid; } body { font-size: 11pt; }
  table { font-size: 8.5pt; } pre { white-space: pre-wrap; }
}
"""
)


# Script cache: bundled scripts in the user's cache folder, because bundling is the slowest part of a page. Cached
# scripts go into pages, so they are trusted only if they are complete and the user's own.


def kept_scripts(name: str) -> str | None:
    """Return the cached scripts of this name, or None if there are none that can be trusted."""
    try:
        with (cache_folder("scripts") / f"{name}.js").open("rb") as file:
            if not _is_ours(os.fstat(file.fileno())):
                return None
            digest, _, content = file.read().partition(b"\n")
            return content.decode() if digest == _digest(content) else None
    except (OSError, ValueError, RuntimeError):
        return None


def keep_scripts(name: str, content: bytes) -> None:
    """Cache the scripts, if possible."""
    with suppress(OSError, ValueError, RuntimeError):  # no home or a full disk: the scripts are bundled again
        folder = cache_folder("scripts")
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{name}.js", _digest(content) + b"\n" + content, "cache")


def _digest(content: bytes) -> bytes:
    return b"// sha256 " + hashlib.sha256(content).hexdigest().encode()


def _is_ours(about: os.stat_result) -> bool:
    """Return whether only the user can have written the file."""
    if sys.platform == "win32":
        return True
    return about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


# Escaping: texts of others (names of data, attacks, files) are shown, whatever they contain, and never run. Every
# specification goes through `harmless` before it is drawn or put into a page.

# Channels whose title is shown by an axis or by a legend. The titles of other channels are keys of tooltips.
_AXES = {"x", "y", "x2", "y2"}
_LEGENDS = {"color", "fill", "stroke", "shape", "size", "opacity", "fillOpacity", "strokeOpacity", "strokeDash"}


def harmless(spec: Fields) -> Fields:
    """Return the specification with texts that can be drawn, and with titles that cannot end an expression.

    A control character makes the engine abort its process. Vega-Lite writes the titles of channels into expressions,
    for tooltips and screen readers. Vega-Lite escapes quotation marks in these titles, but not backslashes.
    """
    done: Fields = _cleaned(spec)
    return done


def for_script(value: object) -> str:
    """Return JSON for a script element, with characters escaped that could end the element or begin a comment."""
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
    """Return a channel, or several, with backslashes escaped in the title for expressions, not in the title shown."""
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
