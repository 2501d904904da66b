"""The commands ``lastiterate explore`` and ``watch``: pages about runs and audits in the browser."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from lastiterate.cli.app import OptionError
from lastiterate.cli.options import (
    ConvexOptions,
    Json,
    MethodOptions,
    Option,
    SizeOptions,
    option_of,
    parse_integers,
    parse_number,
    parse_per_step,
    spelled,
    unfold,
)
from lastiterate.cli.output import print_json, print_note
from lastiterate.cli.signals import leaving_with
from lastiterate.common.errors import BadArgument
from lastiterate.run import DPSGD

if TYPE_CHECKING:
    from lastiterate.compare_analyses import Curves

# Options that are typed into a web page. Parsers and messages are those of the commands. Errors are a ValueError.

_Options = TypeVar("_Options", SizeOptions, MethodOptions, ConvexOptions)
_KINDS = (SizeOptions, MethodOptions, ConvexOptions)


@contextmanager
def _as_value_error() -> Iterator[None]:
    try:
        yield
    except OptionError as error:
        raise BadArgument(*error.message.split(" ", 1)) from None


@_as_value_error()
def run_of(texts: Mapping[str, str]) -> DPSGD:
    """Return the run that options describe. ``texts`` maps the names of options to their texts."""
    known = {field.name for kind in _KINDS for field in fields(kind)} | {"noise_multiplier"}
    for name in texts:
        if name not in known:
            raise ValueError(f"there is no option {spelled(name)}")
    if "noise_multiplier" not in texts:
        raise BadArgument("--noise-multiplier", "must be given")
    noise = parse_per_step("--noise-multiplier", texts["noise_multiplier"])
    return _options(SizeOptions, texts).run(noise, _options(MethodOptions, texts))


@_as_value_error()
def curves_of(texts: Mapping[str, str]) -> Curves:
    """Return the analyses that need options besides the run. ``texts`` maps the names of options to their texts."""
    return _options(ConvexOptions, texts).curves()


@_as_value_error()
def number_of(name: str, text: str) -> float:
    """Return the number in the text of an option."""
    return parse_number(spelled(name), text)


@_as_value_error()
def integers_of(name: str, text: str) -> list[int]:
    """Return the whole numbers, separated by commas, in the text of an option."""
    return parse_integers(spelled(name), text)


def _options(kind: type[_Options], texts: Mapping[str, str]) -> _Options:
    hints = get_type_hints(kind, include_extras=True)
    given: dict[str, Any] = {name: _read(name, hints[name], text) for name, text in texts.items() if name in hints}
    return kind(**given)


def _read(name: str, hint: Any, text: str) -> object:
    found = option_of(hint)
    if found is not None and found.parse is not None:
        return found.parse(spelled(name), text)
    return text == "true" if hint.__origin__ is bool else text


# The server, and the two commands.


@dataclass(frozen=True)
class ServerOptions:
    """Options for the address of the server and for opening a browser."""

    port: Annotated[int | None, "Port to listen on (default: 8765, or any free port)."] = None
    host: Annotated[str, Option("Address to listen on (default: 127.0.0.1, this machine only).", "ADDRESS")] = (
        "127.0.0.1"
    )
    allow_remote: Annotated[bool, "Let others connect, with the token. Nothing is encrypted."] = False
    no_token: Annotated[bool, "Need no token: every user of this machine can read all pages."] = False
    no_browser: Annotated[bool, "Do not open a browser."] = False

    def serve(self, path: str, folder: Path | None, json: bool) -> None:
        """Print the address, open a browser, and serve until the program is stopped."""
        from lastiterate.common.progress import tell
        from lastiterate.common.validation import integer
        from lastiterate.web.form_fields import Reader
        from lastiterate.web.server import address_of, is_loopback, listen, require_web, serve

        require_web()
        if self.port is not None:
            integer("port", self.port, 0, 65535)
        if self.no_token and self.allow_remote:
            raise OptionError("--no-token must not be given with --allow-remote: others need the token")
        listening = listen(self.host, self.port, self.allow_remote)
        token = None if self.no_token else secrets.token_urlsafe(32)
        url = address_of(listening, self.host, path, token)
        is_remote = not is_loopback(self.host)
        if json:
            print_json({"url": url})
        else:
            print_note(f"{url}\nCtrl-C stops the server.")
            if is_remote:
                print("everybody who has this address can read these pages; nothing is encrypted", file=sys.stderr)
            if token is None:
                print("without a token, every user of this machine can read these pages", file=sys.stderr)
        tell("")
        with leaving_with("stopped"), ExitStack() as afterwards:
            if not json and not self.no_browser:
                opened = url if token is None else afterwards.enter_context(_private_link(url))
                threading.Thread(target=_open_browser, args=(url, opened), daemon=True).start()
            serve(Reader(run_of, curves_of, number_of, integers_of), listening, folder, token, is_remote=is_remote)


@contextmanager
def _private_link(url: str) -> Iterator[str]:
    """Yield the address of a file that only this user can read and that leads to ``url``.

    Every user of the machine can read the arguments of the browser's process, so they must not have the token.
    """
    from lastiterate.common.atomic_write import removed_afterwards

    descriptor, name = tempfile.mkstemp(prefix="lastiterate-", suffix=".html")
    with removed_afterwards(Path(name)):
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(
                f'<!doctype html><meta http-equiv="refresh" content="0; url={url}"><a href="{url}">lastiterate</a>'
            )
        yield Path(name).as_uri()


def _open_browser(url: str, link: str) -> None:
    try:
        opened = webbrowser.open(link)
    except webbrowser.Error:
        opened = False
    if not opened:
        print(f"no browser could be opened: open {url} yourself", file=sys.stderr)


@unfold
def explore(server: ServerOptions, json: Json = False) -> None:
    """Explore runs in the browser: move a slider, see epsilon.

    Serves a page on this machine and opens it in a browser. The page answers as you change the run. The server runs
    until you stop it. Its address has a token, without which it answers nobody. With --json it prints its address
    and opens no browser.

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
