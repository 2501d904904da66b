"""The command line. Commands read options, ask the analyses and print; nothing imports this package."""


def main() -> None:
    """Run the ``lastiterate`` command."""
    import gc

    from lastiterate.cli.stopping import watch

    watch()
    # Hardly anything that is imported ever goes: looking for garbage among it takes a tenth of a quick command's time.
    gc.set_threshold(50_000, 10, 10)

    from lastiterate.cli.app import app

    app(prog_name="lastiterate")
