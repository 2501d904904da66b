"""The ``lastiterate`` program: its commands and what it says about itself."""

from __future__ import annotations

from typing import Annotated

import typer

from lastiterate import __version__
from lastiterate.cli.commands import LazyGroup

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
