"""The ``lastiterate`` program: its commands and what it says about itself."""

from __future__ import annotations

from typing import Annotated

import typer

from lastiterate.cli.audit import audit
from lastiterate.cli.audit_lm import audit_lm
from lastiterate.cli.calibrate import calibrate
from lastiterate.cli.check import check
from lastiterate.cli.delta import delta
from lastiterate.cli.epsilon import epsilon
from lastiterate.cli.errors import PlainGroup
from lastiterate.cli.estimate import estimate
from lastiterate.cli.explore import explore
from lastiterate.cli.plan import plan
from lastiterate.cli.power import power
from lastiterate.cli.probe import probe
from lastiterate.cli.report import report
from lastiterate.cli.reproduce import reproduce
from lastiterate.cli.watch import watch

app = typer.Typer(
    cls=PlainGroup,
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
        from importlib.metadata import version as installed

        print(installed("lastiterate"))
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


_ANALYSES = (epsilon, delta, calibrate, plan, explore)
_AUDITS = (check, power, audit, audit_lm, report, watch, estimate)
for command in (*_ANALYSES, *_AUDITS, probe, reproduce):
    app.command()(command)
