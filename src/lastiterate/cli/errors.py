"""Bad input is one plain sentence on stderr and exit status 2, whoever noticed it: typer, an option or an analysis."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from lastiterate.extras import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Sequence

# The base of typer's own usage errors. Some versions take it from click, some carry it themselves.
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]

BAD_INPUT, BROKEN = 2, 3


class OptionError(typer.BadParameter):
    """A bad value of an option, whose message is a whole sentence that already names the option."""

    def format_message(self) -> str:
        """The message alone, without typer's preamble."""
        return self.message


class PlainGroup(TyperGroup):
    """The commands, with errors for people and scripts alike: no box, no usage, no traceback."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **options: Any
    ) -> Any:
        """Run a command and, as a program, exit with its status."""
        if not options.pop("standalone_mode", True):
            return super().main(args, prog_name, standalone_mode=False, **options)
        try:
            status = super().main(args, prog_name, standalone_mode=False, **options)
        except _UsageError as error:
            sys.exit(_say(error.format_message()))  # type: ignore[attr-defined]
        except (ValueError, OSError, ArithmeticError, MissingExtra) as error:
            sys.exit(_say(str(error)))
        except MemoryError:
            sys.exit(_say("the run needs more memory than there is: describe it with fewer distinct steps"))
        except typer.Abort:
            sys.exit(_say("stopped", status=130))
        except (typer.Exit, SystemExit):
            raise
        except Exception:
            # Not 1, Python's usual, which says that a claim is refuted.
            traceback.print_exc()
            sys.exit(BROKEN)
        sys.exit(status if isinstance(status, int) else 0)


def _say(message: str, status: int = BAD_INPUT) -> int:
    print(" ".join(message.split()), file=sys.stderr)
    return status
