"""How a command ends. Bad input is one plain sentence on stderr and status 2, whoever noticed it; what broke is 3.

Status 1 says that a claim is refuted, and nothing else does: neither Python's nor typer's own use of it gets out.
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
