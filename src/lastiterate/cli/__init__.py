"""The command line. Commands read options, call the analyses and print. No other package imports this one."""

_ANALYSES = ("epsilon", "delta", "calibrate", "plan", "power", "estimate")


def main() -> None:
    """Run the ``lastiterate`` command."""
    import gc
    import os
    import sys

    from lastiterate import __version__
    from lastiterate.cli.signals import watch

    watch()
    # Imported objects are hardly ever freed: collecting garbage among them takes a tenth of a quick command's time.
    gc.set_threshold(50_000, 10, 10)
    if sys.argv[1:] == ["--version"]:  # without loading the app
        print(__version__)
        return
    if sys.argv[1:2] and sys.argv[1] in _ANALYSES:
        # Matrix products of analyses are small: idle BLAS threads would take a quarter of the processor time.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    from lastiterate.cli.app import app

    app(prog_name="lastiterate")
