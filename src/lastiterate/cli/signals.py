"""Ctrl-C and SIGTERM: one sentence and an exit status, from the first moment of the program to its last.

This module is loaded before everything else, so it imports little. It raises no exception: an exception in a callback
of JAX is lost, and JAX crashes at exit if it is interrupted while it is imported or compiles.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

STATUSES = {signal.SIGINT: 130, signal.SIGTERM: 143}

_sentence = "stopped"
_leaving = threading.Lock()
_before: dict[signal.Signals, object] = {}


def watch() -> None:
    """Exit on these signals from now on, even while the main thread is inside a library and handles no signal."""
    _install()
    atexit.register(_be_done)
    if sys.platform == "win32" or not _before:
        return
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    threading.Thread(target=_listen, args=(heard,), daemon=True).start()


@contextmanager
def leaving_with(sentence: str) -> Iterator[None]:
    """Print this sentence if a signal stops the program inside the context."""
    global _sentence
    before, _sentence = _sentence, sentence
    new = _install()
    try:
        yield
    except KeyboardInterrupt:  # raised by somebody who has handlers of his own
        leave(signal.SIGINT)
    finally:
        _sentence = before
        for number in new:
            signal.signal(number, _before.pop(number))  # type: ignore[arg-type]


def leave(number: int) -> NoReturn:
    """Print the sentence, remove temporary files, and end the process at once."""
    with suppress(OSError, ValueError, RuntimeError):  # nobody reads it, or somebody is writing right now
        on_terminal = sys.stderr.isatty()  # where ^C stands in the line, and a progress bar hides the cursor
        sys.stderr.write(f"\x1b[?25h\n{_sentence}\n" if on_terminal else f"{_sentence}\n")
        sys.stderr.flush()
    if (scratch := sys.modules.get("lastiterate.common.atomic_write")) is not None:
        scratch.remove_all()
    os._exit(STATUSES[signal.Signals(number)])


def _install() -> list[signal.Signals]:
    """Handle the signals that have Python's default handler. Ignored signals, as in background jobs, stay ignored."""
    if threading.current_thread() is not threading.main_thread():
        return []
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    new = [number for number, handler in usual.items() if signal.getsignal(number) is handler]
    for number in new:
        _before[number] = signal.signal(number, _handle)
    return new


def _handle(number: int, frame: FrameType | None) -> None:
    if _leaving.acquire(blocking=False):  # else the listener is about to end this process
        leave(number)


def _listen(heard: int) -> None:
    """Read signal numbers from the wakeup pipe, which the C handler writes even while Python is busy."""
    while data := os.read(heard, 1):
        if data[0] in list(_before) and signal.getsignal(data[0]) is _handle:
            _handle(data[0], None)


def _be_done() -> None:
    """Ignore signals while Python exits, since all output is written by then."""
    for number in _before:
        signal.signal(number, signal.SIG_IGN)


def _forget() -> None:
    """Restore the signal handlers in a forked process, whose signals must not reach the parent's wakeup pipe."""
    with suppress(ValueError):  # no thread of ours
        signal.set_wakeup_fd(-1)
    for number, handler in _before.items():
        if signal.getsignal(number) is _handle:
            signal.signal(number, handler)  # type: ignore[arg-type]
    _before.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
