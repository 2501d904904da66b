"""The ``lastiterate`` program: its list of commands, lazy loading, and its own help."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand, TyperOption

from lastiterate import __version__
from lastiterate.cli.exit_status import PlainGroup

if TYPE_CHECKING:
    from _collections_abc import dict_items, dict_values


# Lazy loading: a command is imported when it is called, since most commands import much that others do not need.

Foreign: TypeAlias = Any  # Typer's commands, contexts and options

# Summaries in the order of the list. Each equals the first line of the command's own help.
SUMMARIES = {
    "epsilon": "Epsilon of the released model, by three analyses.",
    "delta": "Delta of the released model, by three analyses.",
    "calibrate": "The least noise that reaches a target epsilon.",
    "plan": "Compare batch sizes by the noise that each needs.",
    "explore": "Explore runs in the browser: move a slider, see epsilon.",
    "check": "Check training code against its declared settings.",
    "power": "Compute the power of an audit, and how many models it needs.",
    "audit": "Attack a training, and see what leaks.",
    "audit-lm": "Attack the fine-tuning of a language model, and see what leaks.",
    "report": "Report on a stored audit, or compare several.",
    "watch": "Watch audits in the browser, finished and running.",
    "estimate": "Estimate an empirical epsilon from your own attack's scores.",
    "probe": "A counterexample of the paper: analyse it, run it, attack its last iterates.",
    "reproduce": "Recompute a figure or table of the paper.",
}


_HOMES = {
    "delta": "epsilon",
    "plan": "calibrate",
    "explore": "serve",
    "watch": "serve",
}  # commands whose module has another name


class LazyCommands(dict[str, Foreign]):
    """The commands by name, imported on first use."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(SUMMARIES))

    def __getitem__(self, name: str) -> Foreign:
        if super().__getitem__(name) is None:
            self[name] = _load(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Foreign = None) -> Foreign:
        if name not in self:
            return default
        return self[name]

    def values(self) -> dict_values[str, Foreign]:
        return {name: self[name] for name in self}.values()

    def items(self) -> dict_items[str, Foreign]:
        return {name: self[name] for name in self}.items()


class LazyGroup(PlainGroup):
    """The group of all commands. Listing them loads none."""

    def __init__(self, **options: Foreign) -> None:
        super().__init__(**options)
        self.commands = LazyCommands()

    def get_params(self, ctx: Foreign) -> Foreign:
        return _read_plainly(super().get_params(ctx))

    def format_commands(self, ctx: Foreign, formatter: Foreign) -> None:
        """Write the list of commands, with summaries cut to the width."""
        room = formatter.width - 6 - max(map(len, SUMMARIES))
        brief = {name: TyperCommand(name, help=words).get_short_help_str(room) for name, words in SUMMARIES.items()}
        with formatter.section("Commands"):
            formatter.write_dl(list(brief.items()))


class PlainCommand(TyperCommand):
    """A command whose options are parsed by our own parsers."""

    def get_params(self, ctx: Foreign) -> Foreign:
        return _read_plainly(super().get_params(ctx))


def _load(name: str) -> Foreign:
    word = name.replace("-", "_")
    one = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    one.command(name, cls=PlainCommand)(getattr(import_module(f"lastiterate.cli.{_HOMES.get(word, word)}"), word))
    return typer.main.get_command(one)


def _read_plainly(parameters: Foreign) -> Foreign:
    """Make options bypass pydantic, which typer loads even for absent options: a fifth of a quick command's time.

    Versions of typer without ``_runtime_param`` do not use pydantic.
    """
    for parameter in parameters:
        if isinstance(parameter, TyperOption) and not parameter.multiple and parameter.nargs == 1:
            parameter._runtime_param = _Plainly()  # type: ignore[assignment]
    return parameters


class _Plainly:
    """A converter of option values: by our parser, or to a text or a path; typer converts everything else."""

    def coerce(self, value: Foreign, param: Foreign, ctx: Foreign) -> Foreign:
        if value is None:
            return None
        parser = param.type_descriptor.parameter_info.parser
        if parser is not None:
            return parser(value)
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
    """What does a model trained with DP-SGD leak, when only the final model is released?

    Predict it before training: the last-iterate heuristic (it predicts, it does not guarantee), beside the standard
    composition analysis (a guarantee) and the full-batch baseline. Audit it by training models with and without a
    canary, and telling them apart. Probe its limits: counterexamples in which the heuristic is too low.

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
