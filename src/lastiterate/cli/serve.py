"""The commands ``lastiterate explore`` and ``watch``: pages about runs and audits in the browser."""

from __future__ import annotations

import sys
import threading
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from lastiterate.cli.option_values import unfold
from lastiterate.cli.options import Json, flag, integer_option, option
from lastiterate.cli.output import print_json, print_note
from lastiterate.cli.signals import leaving_with

# Server: options and start of the server, shared by ``explore`` and ``watch``.


@dataclass(frozen=True)
class ServerOptions:
    """Options for the address of the server and for opening a browser."""

    port: Annotated[int | None, integer_option("--port", "Where to listen (default: 8765, or any that is free).")] = (
        None
    )
    host: Annotated[
        str, option("--host", None, "ADDRESS", "Listen there (default: 127.0.0.1, this machine alone).")
    ] = "127.0.0.1"
    allow_remote: Annotated[
        bool, flag("--allow-remote", "Let others reach it: they can read all of it, and nobody is asked who he is.")
    ] = False
    no_browser: Annotated[bool, flag("--no-browser", "Open no browser.")] = False

    def serve(self, path: str, folder: Path | None, json: bool) -> None:
        """Print the address, open a browser, and serve until the program is stopped."""
        from lastiterate.cli.options import curves_of, integers_of, number_of, run_of
        from lastiterate.common.validation import integer
        from lastiterate.web.form_fields import Reader
        from lastiterate.web.server import address_of, is_loopback, listen, require_web, serve

        require_web()
        if self.port is not None:
            integer("port", self.port, 0, 65535)
        listening = listen(self.host, self.port, self.allow_remote)
        url = f"{address_of(listening, self.host)}{path}"
        is_remote = not is_loopback(self.host)
        if json:
            print_json({"url": url})
        else:
            print_note(f"{url}\nCtrl-C stops it.")
            if is_remote:
                print("everybody who reaches this machine can read these pages, and make it compute", file=sys.stderr)
            if not self.no_browser:
                threading.Thread(target=_open_browser, args=(url,), daemon=True).start()
        with leaving_with("stopped"):
            serve(Reader(run_of, curves_of, number_of, integers_of), listening, folder, is_remote=is_remote)


def _open_browser(url: str) -> None:
    try:
        opened = webbrowser.open(url)
    except webbrowser.Error:
        opened = False
    if not opened:
        print(f"no browser could be opened: open {url} yourself", file=sys.stderr)


@unfold
def explore(server: ServerOptions, json: Json = False) -> None:
    """Explore runs in the browser: move a slider, see epsilon.

    Starts a page on this machine, which answers as you change the run, and opens a browser there. It runs until you
    stop it. With --json it prints its address and opens no browser.

    \b
    Example:
      lastiterate explore
      lastiterate explore --port 8000 --no-browser
    """
    server.serve("/", None, json)


# ``lastiterate watch``: audits in the browser, finished and as they run.

FolderArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Where the stores of audits are.", show_default=False)
]


@unfold
def watch(folder: FolderArgument, server: ServerOptions, json: Json = False) -> None:
    """Watch audits in the browser, finished and running.

    Shows the stores (.sqlite) in a folder and below it, and opens a browser there. Nothing is trained, and no store is
    changed. It runs until you stop it. With --json it prints its address and opens no browser.

    \b
    Example:
      lastiterate watch runs/
    """
    from lastiterate.cli.exit_status import OptionError

    if not folder.is_dir():
        raise OptionError(f"FOLDER must be a folder that exists, got {str(folder)!r}")
    server.serve("/audits", folder, json)
