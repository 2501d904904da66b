"""Exit statuses and error messages of commands, and the handling of Ctrl-C and SIGTERM.

Bad input is one plain sentence on stderr and status 2. A failure is status 3. Ctrl-C is status 130, SIGTERM 143. Status
1 means only that a claim is refuted: Python's and typer's own use of status 1 never gets out.

The program loads this module first, so that signals are handled from the start.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from lastiterate.common.errors import DISK_ERRORS, Breakdown, DiskTrouble, MissingExtra, StoreLost
from lastiterate.formatting import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

# The base class of typer's usage errors, which is in click or in typer, depending on the version.
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]

BAD_INPUT, BROKEN, STOPPED = 2, 3, 130


class OptionError(typer.BadParameter):
    """A bad value of an option. The message is a whole sentence that names the option."""

    def format_message(self) -> str:
        """Return the message without typer's preamble."""
        return self.message


class PlainGroup(TyperGroup):
    """A group of commands with plain error messages: no box, no usage, no traceback for bad input."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **options: Any
    ) -> object:
        """Run a command and, in standalone mode, exit with its status."""
        if not options.pop("standalone_mode", True):
            return super().main(args, prog_name, standalone_mode=False, **options)
        for stream in (sys.stdout, sys.stderr):  # file names and tables may have characters that the encoding lacks
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            status = super().main(args, prog_name, standalone_mode=False, **options)
            sys.stdout.flush()
        except BrokenPipeError:
            status = _pipe_is_gone()
        except SystemExit as error:  # raised by typer for a broken pipe, or by other code
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
    """Redirect stdout to the null device, so that Python writes nothing to the broken pipe at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN


def _no_space(error: OSError) -> int:
    """Report a full disk. Without a file name the output itself failed, and Python must not flush it at exit."""
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
