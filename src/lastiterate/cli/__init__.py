"""The command line. Commands read options, ask the analyses and print; nothing imports this package."""


def main() -> None:
    """Run the ``lastiterate`` command."""
    from lastiterate.cli.stopping import watch

    watch()

    from lastiterate.cli.app import app

    app(prog_name="lastiterate")
