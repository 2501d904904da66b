"""``lastiterate explore``: runs in the browser, with sliders, and what each leaks."""

from lastiterate.cli.options import Json
from lastiterate.cli.serving import ServerOptions
from lastiterate.cli.unfold import unfold


@unfold
def explore(server: ServerOptions, json: Json = False) -> None:
    """Runs in the browser: move a slider, see epsilon.

    Starts a page on this machine, which answers as you change the run, and opens a browser there. It runs until you
    stop it. With --json it prints its address and opens no browser.

    \b
    Example:
      lastiterate explore
      lastiterate explore --port 8000 --no-browser
    """
    server.serve("/", None, json)
