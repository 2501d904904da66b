"""The commands ``lastiterate explore`` and ``watch``: pages about runs and audits in the browser."""

from __future__ import annotations

import sys
import threading
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from lastiterate.cli.app import OptionError
from lastiterate.cli.options import Json, Option, curves_of, integers_of, number_of, run_of, unfold
from lastiterate.cli.output import print_json, print_note
from lastiterate.cli.signals import leaving_with


@dataclass(frozen=True)
class ServerOptions:
    """Options for the address of the server and for opening a browser."""

    port: Annotated[int | None, "Port to listen on (default: 8765, or any free port)."] = None
    host: Annotated[str, Option("Address to listen on (default: 127.0.0.1, this machine only).", "ADDRESS")] = (
        "127.0.0.1"
    )
    allow_remote: Annotated[bool, "Let others connect. They can read all pages, without a password."] = False
    no_browser: Annotated[bool, "Do not open a browser."] = False

    def serve(self, path: str, folder: Path | None, json: bool) -> None:
        """Print the address, open a browser, and serve until the program is stopped."""
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
            print_note(f"{url}\nCtrl-C stops the server.")
            if is_remote:
                print("everybody who reaches this machine can read these pages and start computations", file=sys.stderr)
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

    Serves a page on this machine and opens it in a browser. The page answers as you change the run. The server runs
    until you stop it. With --json it prints its address and opens no browser.

    \b
    Example:
      lastiterate explore
      lastiterate explore --port 8000 --no-browser
    """
    server.serve("/", None, json)


@unfold
def watch(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the stores.", show_default=False)],
    server: ServerOptions,
    json: Json = False,
) -> None:
    """Watch audits in the browser, finished and running.

    Shows the stores (.sqlite) in a folder and below it, and opens a browser. Nothing is trained, and no store is
    changed. The server runs until you stop it. With --json it prints its address and opens no browser.

    \b
    Example:
      lastiterate watch runs/
    """
    if not folder.is_dir():
        raise OptionError(f"FOLDER must be a folder that exists, got {str(folder)!r}")
    server.serve("/audits", folder, json)
