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
    # Imported objects are hardly ever freed, and garbage collection would take 10% of the time of a quick command.
    gc.set_threshold(50_000, 10, 10)
    if sys.argv[1:] == ["--version"]:  # without loading the app
        try:
            print(__version__, flush=True)
        except OSError:
            os._exit(3)  # the output cannot be written
        return
    if sys.argv[1:2] and sys.argv[1] in _ANALYSES:
        # Analyses multiply only small matrices, and idle BLAS threads would take 25% of the processor time.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    from lastiterate.cli.app import app

    app(prog_name="lastiterate")
