"""Charts become files: checked before anything is computed, written whole or not at all."""

from __future__ import annotations

import io
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, cast, get_args

from lastiterate.whole_file import check_writable, write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from lastiterate.plot.style import Picture

Format = Literal["png", "svg", "pdf", "html"]
FORMATS = get_args(Format)

_SHARP = 2.0  # on a dense screen; of PNG only


def check_target(path: Path) -> None:
    """Refuse a file that could not be drawn or written later, so that nobody waits for a picture in vain."""
    if path.suffix[1:].lower() not in FORMATS:
        raise ValueError(f"the plot's file must end in {', '.join(f'.{kind}' for kind in FORMATS)}, got {str(path)!r}")
    if sentence := missing_libraries():
        raise ValueError(sentence)
    check_writable(path, "plot")


def missing_libraries() -> str | None:
    """Why nothing can be drawn here, and what to do about it; None: all is there."""
    for module in ("altair", "vl_convert"):
        if sys.modules.get(module, module) is None or find_spec(module) is None:
            return f'plots need {module}, which is not installed: pip install "lastiterate[plot]"'
    return None


def save(chart: Picture, path: Path) -> None:
    """Draw an altair chart into a file of the format that its name ends in."""
    check_target(path)
    kind = cast("Format", path.suffix[1:].lower())
    drawn = io.StringIO() if kind in ("html", "svg") else io.BytesIO()
    # A page carries its scripts: it works without a network.
    chart.save(drawn, format=kind, scale_factor=_SHARP if kind == "png" else 1.0, inline=kind == "html")
    content = drawn.getvalue()
    write_whole(path, content.encode() if isinstance(content, str) else content, "plot")
