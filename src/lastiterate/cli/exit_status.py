"""How a command ends. Bad input is one plain sentence on stderr and status 2, whoever noticed it; what broke is 3.

Status 1 says that a claim is refuted, and nothing else does: neither Python's nor typer's own use of it gets out.
"""

from __future__ import annotations

import atexit
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from typer.core import TyperGroup

from lastiterate.common.errors import DISK_ERRORS, Breakdown, DiskTrouble, MissingExtra, StoreLost
from lastiterate.formatting import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

# The base of typer's own usage errors. Some versions take it from click, some carry it themselves.
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]

BAD_INPUT, BROKEN, STOPPED = 2, 3, 130


class OptionError(typer.BadParameter):
    """A bad value of an option, whose message is a whole sentence that already names the option."""

    def format_message(self) -> str:
        """The message alone, without typer's preamble."""
        return self.message


class PlainGroup(TyperGroup):
    """The commands, with errors for people and scripts alike: no box, no usage, no traceback."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **options: Any
    ) -> object:
        """Run a command and, as a program, exit with its status."""
        if not options.pop("standalone_mode", True):
            return super().main(args, prog_name, standalone_mode=False, **options)
        for stream in (sys.stdout, sys.stderr):  # names of files may hold what no encoding has, tables what few have
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            status = super().main(args, prog_name, standalone_mode=False, **options)
            sys.stdout.flush()
        except BrokenPipeError:
            status = _pipe_is_gone()
        except SystemExit as error:  # typer's answer to a broken pipe, or somebody else's attempt to end the program
            gone = isinstance(error.__context__, BrokenPipeError)
            status = _pipe_is_gone() if gone else _broke(f"something called sys.exit({error.code!r})")
        except _UsageError as error:
            status = _say(error.format_message())  # type: ignore[attr-defined]
        except Breakdown as failed:
            print(failed.story, file=sys.stderr)
            status = BROKEN
        except (DiskTrouble, StoreLost) as error:
            status = _say(str(error), BROKEN)
        except OSError as error:
            status = _no_space(error) if error.errno in DISK_ERRORS else _say(str(error))
        except (ValueError, ArithmeticError, MissingExtra) as error:
            status = _say(str(error))
        except MemoryError:
            status = _say("the run needs more memory than there is: describe it with fewer distinct steps")
        except typer.Abort:
            status = _say("stopped", STOPPED)
        except Exception:
            status = _broke()
        sys.exit(status if isinstance(status, int) else 0)


def _pipe_is_gone() -> int:
    """Whoever read the output has left: nothing is there to be told, nor to be written when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN


def _no_space(error: OSError) -> int:
    """A full disk; without the name of a file, it is that of the output, which must not be tried again at the end."""
    if error.filename is None:
        _pipe_is_gone()
        return _say(f"the output cannot be written: {error.strerror}", BROKEN)
    return _say(str(error), BROKEN)


def _broke(sentence: str | None = None) -> int:
    if sentence:
        return _say(sentence, BROKEN)
    traceback.print_exc()
    return BROKEN


def _say(message: str, status: int = BAD_INPUT) -> int:
    print(printable(" ".join(message.split())), file=sys.stderr)
    return status


# Ctrl-C and SIGTERM: one sentence and a status, from the first moment of the program to its last.
#
# This is loaded before everything else, so it imports little. No exception is raised: one that arises in a callback
# of JAX is lost, and JAX, interrupted while it is imported or compiles, crashes when Python tidies up.

STATUSES = {signal.SIGINT: 130, signal.SIGTERM: 143}

_sentence = "stopped"
_leaving = threading.Lock()
_before: dict[signal.Signals, object] = {}


def watch() -> None:
    """Leave on these signals from now on, even while the main thread is inside a library and sees no signal."""
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
    """Whoever stops the program in here is told this."""
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
    """Say the sentence, remove temporary files, and end the process at once."""
    with suppress(OSError, ValueError, RuntimeError):  # nobody reads it, or somebody is writing right now
        on_terminal = sys.stderr.isatty()  # where ^C stands in the line, and a progress bar hides the cursor
        sys.stderr.write(f"\x1b[?25h\n{_sentence}\n" if on_terminal else f"{_sentence}\n")
        sys.stderr.flush()
    if (scratch := sys.modules.get("lastiterate.common.atomic_write")) is not None:
        scratch.remove_all()
    os._exit(STATUSES[signal.Signals(number)])


def _install() -> list[signal.Signals]:
    """Take over the signals that nobody cares for: not what is ignored, as Ctrl-C in the background of a script."""
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
    """Wait for the numbers of signals, which the system's handler writes whatever Python is doing."""
    while data := os.read(heard, 1):
        if data[0] in list(_before) and signal.getsignal(data[0]) is _handle:
            _handle(data[0], None)


def _be_done() -> None:
    """The last thing of all: everything is written, and a signal that comes while Python ends does not change it."""
    for number in _before:
        signal.signal(number, signal.SIG_IGN)


def _forget() -> None:
    """In a forked process: its signals are its own affair, and must not be heard by the one that forked it."""
    with suppress(ValueError):  # no thread of ours
        signal.set_wakeup_fd(-1)
    for number, handler in _before.items():
        if signal.getsignal(number) is _handle:
            signal.signal(number, handler)  # type: ignore[arg-type]
    _before.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
