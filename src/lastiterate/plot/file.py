"""Charts become files: checked before anything is computed, written whole or not at all."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

from lastiterate.plot.escaping import for_script, harmless
from lastiterate.plot.rendering import Kind, Spec, render, scripts, time_limit
from lastiterate.whole_file import check_writable, write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from lastiterate.plot.style import Picture

FORMATS = ("png", "svg", "pdf", "html")

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>lastiterate</title>
</head>
<body>
<div id="picture"></div>
<script type="application/json" id="spec">{spec}</script>
<script>{scripts}</script>
<script>
const spec = JSON.parse(document.getElementById("spec").textContent);
vegaEmbed("#picture", spec, {{mode: "vega-lite"}});
</script>
</body>
</html>
"""


def check_target(path: Path) -> None:
    """Refuse a file that could not be drawn or written later, so that nobody waits for a picture in vain."""
    if path.suffix[1:].lower() not in FORMATS:
        raise ValueError(f"the plot's file must end in {', '.join(f'.{kind}' for kind in FORMATS)}, got {str(path)!r}")
    if sentence := missing_libraries():
        raise ValueError(sentence)
    time_limit()
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
    kind, spec = path.suffix[1:].lower(), harmless(chart.to_dict())
    write_whole(path, _page(spec) if kind == "html" else render(cast("Kind", kind), spec)[0], "plot")


def _page(spec: Spec) -> bytes:
    """A page that carries its scripts: it works without a network."""
    return _PAGE.format(spec=for_script(spec), scripts=scripts()).encode()
