"""The drawing program. It runs in its own process, because the browser engine of vl-convert can crash.

The program is started as a file (``renderer.py``). It imports nothing of this package, so that it starts at once.
"""

import base64
import json
import signal
import sys
from typing import Any


def main() -> None:
    """Read the pictures to draw as JSON from stdin. Write the files' contents in base 64, one per line, to stdout."""
    asked = json.load(sys.stdin.buffer)
    _limit(asked["seconds"])
    sys.path += [folder for folder in asked["path"] if folder not in sys.path]
    try:
        drawn = [_draw(kind, spec, asked["scale"]) for kind, spec in asked["pictures"]]
    except Exception as error:  # any error of the engine: the parent process reports it in a sentence
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        sys.exit(" ".join(lines[:2])[:300] or type(error).__name__)
    sys.stdout.buffer.write(b"".join(base64.b64encode(content) + b"\n" for content in drawn))


def _limit(seconds: float) -> None:
    """Disable core dumps, and end the process after some seconds even if its parent was killed."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _draw(kind: str, spec: Any, scale: float) -> bytes:
    import vl_convert

    match kind:
        case "png":
            return bytes(vl_convert.vegalite_to_png(spec, scale=scale))
        case "svg":
            return str(vl_convert.vegalite_to_svg(spec)).encode()
        case "pdf":
            return bytes(vl_convert.vegalite_to_pdf(spec))
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).encode()  # kind "scripts"


if __name__ == "__main__":
    main()
