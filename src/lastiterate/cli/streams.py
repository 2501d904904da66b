"""Stdout is for results: whatever is printed while models are trained goes to stderr."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress

_OUT, _ERR = 1, 2


@contextmanager
def talk_on_stderr() -> Iterator[None]:
    """What a user's code prints meanwhile goes to stderr; also what compiled code and processes that it starts print.

    So the one JSON object on stdout stays alone there.
    """
    _flush()
    kept = None
    with suppress(OSError):  # one of them is closed
        kept = os.dup(_OUT)
        os.dup2(_ERR, _OUT)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _flush()
        if kept is not None:
            os.dup2(kept, _OUT)
            os.close(kept)


def _flush() -> None:
    """Let nothing that was printed before come out later, and elsewhere: not Python's output, and not that of C."""
    for stream in (sys.stdout, sys.__stdout__):
        with suppress(OSError, ValueError, AttributeError):  # a pipe that is gone, a closed stream, none at all
            stream.flush()  # type: ignore[union-attr]
    with suppress(OSError, TypeError, AttributeError):  # where C's library cannot be asked like this
        ctypes.CDLL(None).fflush(None)
