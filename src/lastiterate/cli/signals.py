"""Handling of Ctrl-C and SIGTERM: print one sentence and exit with a status, at any time during the program.

This module is loaded before everything else, so it imports little. The handlers raise no exception, because JAX loses
exceptions in its callbacks, and crashes at exit if an exception interrupts its import or a compilation.
"""

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
    """Exit on Ctrl-C and SIGTERM from now on, even while the main thread is busy inside a library."""
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
    except KeyboardInterrupt:  # raised by a signal handler of other code
        leave(signal.SIGINT)
    finally:
        _sentence = before
        for number in new:
            signal.signal(number, _before.pop(number))  # type: ignore[arg-type]


def leave(number: int) -> NoReturn:
    """Print the sentence, remove temporary files, and end the process at once."""
    with suppress(OSError, ValueError, RuntimeError):  # stderr is closed, or another thread is writing to it
        on_terminal = sys.stderr.isatty()  # a terminal shows ^C in the line, and a progress bar hides the cursor
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
    """Restore the signal handlers in a forked process, so that its signals do not reach the parent's pipe."""
    with suppress(ValueError):  # not in the main thread
        signal.set_wakeup_fd(-1)
    for number, handler in _before.items():
        if signal.getsignal(number) is _handle:
            signal.signal(number, handler)  # type: ignore[arg-type]
    _before.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
