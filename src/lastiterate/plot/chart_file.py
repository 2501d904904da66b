"""Chart files. They are checked before anything is computed, drawn in another process, and written atomically."""

from __future__ import annotations

import base64
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from lastiterate.common.atomic_write import check_writable, write_whole
from lastiterate.common.errors import not_installed
from lastiterate.plot.page_assets import for_script, harmless, keep_scripts, kept_scripts

if TYPE_CHECKING:
    from lastiterate.plot.style import Picture


# Drawing happens in another process, with a time limit, so that a failure loses only the picture.

Kind = Literal["png", "svg", "pdf"]
Spec = dict[str, Any]

SECONDS = 120.0  # time limit of a drawing
_VARIABLE = "LASTITERATE_DRAWING_SECONDS"
_SHARP = 2.0  # scale of PNG files, for dense screens
_PROGRAM = Path(__file__).with_name("renderer.py")


class PictureFailed(RuntimeError):
    """Error for a picture that could not be drawn. The message gives the reason in a few words."""


def time_limit() -> float:
    """Return the time limit of a drawing in seconds, which an environment variable can set."""
    given = os.environ.get(_VARIABLE, "")
    try:
        seconds = float(given) if given else SECONDS
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds < math.inf:
        raise ValueError(f"{_VARIABLE} must be a number of seconds above 0, got {given!r}")
    return seconds


def render(kind: Kind, *specs: Spec) -> list[bytes]:
    """Return the pictures of Vega-Lite specifications."""
    return _ask([(kind, spec) for spec in specs])


def scripts() -> str:
    """Return the libraries for interactive pictures in a page, bundled once for each version of vl-convert."""
    name = f"vega-{version('vl-convert-python')}"
    if (kept := kept_scripts(name)) is not None:
        return kept
    (bundled,) = _ask([("scripts", {})])
    keep_scripts(name, bundled)
    return bundled.decode()


def _ask(pictures: Sequence[tuple[str, Spec]]) -> list[bytes]:
    seconds = time_limit()
    asked = json.dumps(
        {"pictures": pictures, "scale": _SHARP, "seconds": seconds, "path": sys.path}, allow_nan=False
    ).encode()
    command = [sys.executable, "-P", str(_PROGRAM)]
    try:
        done = subprocess.run(command, input=asked, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise PictureFailed(_too_long(seconds)) from None
    except OSError as error:
        raise PictureFailed(f"the drawing process cannot be started: {error.strerror}") from None
    if done.returncode < 0:
        raise PictureFailed(_killed(-done.returncode, seconds))
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise PictureFailed(lines[-1] if lines else f"the drawing process ended with status {done.returncode}")
    return [base64.b64decode(line) for line in done.stdout.splitlines()]


def _too_long(seconds: float) -> str:
    return f"drawing took more than {seconds:g} seconds (the environment variable {_VARIABLE} allows more)"


def _killed(number: int, seconds: float) -> str:
    if sys.platform != "win32" and number == signal.SIGALRM:
        return _too_long(seconds)
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"the drawing process was ended by {name}, perhaps for lack of memory"


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
    """Raise an error if the picture could not be drawn or written later."""
    if path.suffix[1:].lower() not in FORMATS:
        kinds = ", ".join(f".{kind}" for kind in FORMATS)
        raise ValueError(f"the plot's file must end in {kinds}, got {str(path)!r:.200}")
    if sentence := missing_libraries():
        raise ValueError(sentence)
    time_limit()
    check_writable(path, "plot")


def missing_libraries() -> str | None:
    """Return a text about missing libraries and how to install them, or None if nothing is missing."""
    for module in ("altair", "vl_convert"):
        if sys.modules.get(module, module) is None or find_spec(module) is None:
            return not_installed("plots", module, "plot", "need")
    return None


def save(chart: Picture, path: Path) -> None:
    """Draw an altair chart into a file, in the format of the file's suffix."""
    check_target(path)
    kind, spec = path.suffix[1:].lower(), harmless(chart.to_dict())
    if kind == "html":  # a page that contains its scripts and works without a network
        write_whole(path, _PAGE.format(spec=for_script(spec), scripts=scripts()).encode(), "plot")
    else:
        write_whole(path, render(cast("Kind", kind), spec)[0], "plot")
