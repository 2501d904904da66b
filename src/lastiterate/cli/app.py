"""The ``lastiterate`` program: its list of commands, lazy loading, exit statuses and error messages.

Bad input prints one sentence to stderr and exits with status 2. A failure exits with status 3, Ctrl-C with 130 and
SIGTERM with 143. Status 1 only means that a claim is refuted: errors of Python and typer never exit with status 1.
"""

from __future__ import annotations

import io
import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from lastiterate import __version__
from lastiterate.common.errors import DISK_ERRORS, Breakdown, DiskTrouble, MissingExtra, StoreLost
from lastiterate.common.progress import lines
from lastiterate.common.types import Foreign
from lastiterate.formatting import printable

if TYPE_CHECKING:
    from _collections_abc import dict_items, dict_values

REFUTED, BAD_INPUT, BROKEN, INCONCLUSIVE, STOPPED = 1, 2, 3, 4, 130  # exit statuses


# The base class of typer's usage errors. Depending on the version, typer or click defines this class.
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]

# Summaries of the commands, in the order of the list. Each summary equals the first line of the command's help.
SUMMARIES = {
    "epsilon": "Epsilon of the released model, and what an attacker can learn.",
    "delta": "Delta of the released model, by three analyses.",
    "calibrate": "The least noise that reaches a target.",
    "plan": "Compare batch sizes by the noise that each needs.",
    "explore": "Explore runs in the browser: move a slider, see epsilon.",
    "check": "Check training code against its declared settings.",
    "power": "Compute the power of an audit, and how many models it needs.",
    "audit": "Attack a training run, and see what leaks.",
    "audit-lm": "Attack the fine-tuning of a language model, and see what leaks.",
    "report": "Report on a stored audit, or compare several.",
    "watch": "Watch audits in the browser, finished and running.",
    "estimate": "Estimate an empirical epsilon from your own attack's scores.",
    "probe": "Analyse, run and attack a counterexample of the paper.",
    "reproduce": "Recompute a figure or table of the paper.",
    "cite": "Print BibTeX entries of this tool and of the paper.",
}

# Commands whose module is not named after the command.
_HOMES = {"delta": "epsilon", "plan": "calibrate", "explore": "serve", "watch": "serve"}


class OptionError(typer.BadParameter):
    """A bad value of an option. The message is a whole sentence that names the option."""

    def format_message(self) -> str:
        return self.message


# Lazy loading: a command is imported only when it is called, so that other commands start faster.


class LazyCommands(dict[str, Foreign]):
    """The commands by name, imported on first use."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(SUMMARIES))

    def __getitem__(self, name: str) -> Foreign:
        if super().__getitem__(name) is None:
            word = name.replace("-", "_")
            one = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
            module = import_module(f"lastiterate.cli.{_HOMES.get(word, word)}")
            one.command(name, cls=PlainCommand)(getattr(module, word))
            self[name] = typer.main.get_command(one)
        return super().__getitem__(name)

    def get(self, name: str, default: Foreign = None) -> Foreign:
        if name not in self:
            return default
        return self[name]

    def values(self) -> dict_values[str, Foreign]:
        return {name: self[name] for name in self}.values()

    def items(self) -> dict_items[str, Foreign]:
        return {name: self[name] for name in self}.items()


class LazyGroup(TyperGroup):
    """The group of all commands, with plain error messages: no box, no usage, no traceback for bad input."""

    def __init__(self, **options: Foreign) -> None:
        super().__init__(**options)
        self.commands = LazyCommands()

    def get_params(self, ctx: Foreign) -> Foreign:
        return _read_plainly(super().get_params(ctx))

    def format_commands(self, ctx: Foreign, formatter: Foreign) -> None:
        """Write the list of commands, with summaries cut to the width, without importing any command."""
        room = formatter.width - 6 - max(map(len, SUMMARIES))
        brief = {name: TyperCommand(name, help=words).get_short_help_str(room) for name, words in SUMMARIES.items()}
        with formatter.section("Commands"):
            formatter.write_dl(list(brief.items()))

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **options: Any
    ) -> object:
        if not options.pop("standalone_mode", True):
            return super().main(args, prog_name, standalone_mode=False, **options)
        for stream in (sys.stdout, sys.stderr):  # the encoding may lack characters of file names and tables
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            with lines():
                status = super().main(args, prog_name, standalone_mode=False, **options)
            sys.stdout.flush()
        except BrokenPipeError:
            status = _pipe_is_gone()
        except SystemExit as error:  # raised by typer for a broken pipe, or by other code
            gone = isinstance(error.__context__, BrokenPipeError)
            status = _pipe_is_gone() if gone else _say(f"something called sys.exit({error.code!r})", BROKEN)
        except _UsageError as error:
            status = _say(error.format_message())  # type: ignore[attr-defined]
        except Breakdown as failed:
            with suppress(OSError, ValueError, AttributeError):
                print(failed.story, file=sys.stderr, flush=True)
            status = BROKEN
        except (DiskTrouble, StoreLost) as error:
            status = _say(str(error), BROKEN)
        except OSError as error:
            status = _no_space(error) if error.errno in DISK_ERRORS else _say(str(error))
        except (ValueError, ArithmeticError, MissingExtra) as error:
            status = _say(str(error))
        except MemoryError:
            status = _say("the run needs more memory than this machine has: describe it with fewer distinct steps")
        except typer.Abort:
            status = _say("stopped", STOPPED)
        except Exception:
            with suppress(OSError, ValueError, AttributeError):
                traceback.print_exc()
            status = BROKEN
        _end(status if isinstance(status, int) else 0)


def _pipe_is_gone() -> int:
    """Redirect stdout to the null device, so that Python writes nothing to the broken pipe at exit."""
    _to_nowhere(sys.stdout)
    return BROKEN


def _no_space(error: OSError) -> int:
    """Report a full disk. If the error has no file name, writing to stdout failed, and Python must not flush it."""
    if error.filename is None:
        _pipe_is_gone()
        return _say(f"the output cannot be written: {error.strerror}", BROKEN)
    return _say(str(error), BROKEN)


_LONG_VALUE = re.compile(r"'([^']{200})[^']+'|(\S{200})\S+")


def _say(message: str, status: int = BAD_INPUT) -> int:
    """Print a message as one line. In messages about bad input, values are cut at 200 characters."""
    if status == BAD_INPUT:
        message = _LONG_VALUE.sub(lambda found: f"'{found[1]}...'" if found[1] else f"{found[2]}...", message)
    with suppress(OSError, ValueError, AttributeError):  # stderr is full, closed or absent: the status says it
        print(printable(" ".join(message.split())), file=sys.stderr, flush=True)
    return status


def _end(status: int) -> NoReturn:
    """Exit with this status, or with ``BROKEN`` instead of 0 if the output cannot be written."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        _to_nowhere(sys.stdout)
        status = status or BROKEN
    except AttributeError:  # there is no stdout
        pass
    try:
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        _to_nowhere(sys.stderr)
    sys.exit(status)


def _to_nowhere(stream: TextIO) -> None:
    """Redirect a stream to the null device. Python would exit with status 120 if it could not flush the stream."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class PlainCommand(TyperCommand):
    """A command whose options bypass pydantic. Typer would load pydantic, which takes 20% of a quick command's time."""

    def get_params(self, ctx: Foreign) -> Foreign:
        return _read_plainly(super().get_params(ctx))


def _read_plainly(parameters: Foreign) -> Foreign:
    for parameter in parameters:
        if isinstance(parameter, (TyperOption, TyperArgument)) and not parameter.multiple and parameter.nargs == 1:
            parameter._runtime_param = _Plainly()  # type: ignore[assignment]
    return parameters


class _Plainly:
    """Converts the values of options that have a parser, or whose type is str or Path. Typer converts all other
    values.
    """

    def coerce(self, value: Foreign, param: Foreign, ctx: Foreign) -> Foreign:
        if value is None:
            return None
        parser = param.type_descriptor.parameter_info.parser
        if parser is not None:
            return parser(value)
        if param.type_descriptor.annotation is Path and value == "":
            name = param.opts[0] if isinstance(param, TyperOption) else param.metavar
            raise OptionError(f"{name} must be a path, got an empty text")
        if param.type_descriptor.annotation in (str, Path):
            return param.type_descriptor.annotation(value)
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


app = typer.Typer(
    cls=LazyGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def lastiterate(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Measure what a model trained with DP-SGD leaks if only the final model is released.

    Predict: before training, compute the last-iterate heuristic (it predicts, it does not guarantee), the standard
    composition analysis (a guarantee) and the full-batch baseline. Audit: train models with and without a canary, and
    tell them apart. Probe: study counterexamples in which the heuristic is too low.

    \b
    Example:
      lastiterate epsilon --steps 1000 --sample-rate 0.01 --noise-multiplier 1 --delta 1e-5
      lastiterate audit
      lastiterate probe zeroing
    """
    if version:
        print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
