"""The command line. Commands read options, ask the analyses and print; nothing imports this package."""

_ANALYSES = ("epsilon", "delta", "calibrate", "plan", "power", "estimate")


def main() -> None:
    """Run the ``lastiterate`` command."""
    import gc
    import os
    import sys

    from lastiterate import __version__
    from lastiterate.cli.signals import watch

    watch()
    # Hardly anything that is imported ever goes: looking for garbage among it takes a tenth of a quick command's time.
    gc.set_threshold(50_000, 10, 10)
    if sys.argv[1:] == ["--version"]:  # without loading what reads options
        print(__version__)
        return
    if sys.argv[1:2] and sys.argv[1] in _ANALYSES:
        # Their products are small: threads that wait for larger ones take a quarter of the processor time.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    from lastiterate.cli.app import app

    app(prog_name="lastiterate")
