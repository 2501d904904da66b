"""``lastiterate watch``: audits in the browser, finished and as they run."""

from pathlib import Path
from typing import Annotated

import typer

from lastiterate.cli.options import Json
from lastiterate.cli.serving import ServerOptions
from lastiterate.cli.unfold import unfold

FolderArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Where the stores of audits are.", show_default=False)
]


@unfold
def watch(folder: FolderArgument, server: ServerOptions, json: Json = False) -> None:
    """Audits in the browser, finished and as they run.

    Shows the stores (.sqlite) in a folder and below it, and opens a browser there. Nothing is trained, and no store is
    changed. It runs until you stop it. With --json it prints its address and opens no browser.

    \b
    Example:
      lastiterate watch runs/
    """
    from lastiterate.cli.errors import OptionError

    if not folder.is_dir():
        raise OptionError(f"FOLDER must be a folder that exists, got {str(folder)!r}")
    server.serve("/audits", folder, json)
