"""The command ``lastiterate check``: check training code against its declared settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lastiterate.cli import output as out
from lastiterate.cli.app import INCONCLUSIVE, REFUTED, OptionError
from lastiterate.cli.audit import described_run
from lastiterate.cli.audit_options import ClipNorm
from lastiterate.cli.options import Json, MethodOptions, Option, OptionalNoise, Plot, Seed, SizeOptions, unfold

if TYPE_CHECKING:
    from lastiterate.auditing.audit_target import Subject
    from lastiterate.checking.check_result import CheckResult


@unfold
def check(
    trainer: Annotated[str, Option("Your trainer, (seed, canary) -> parameters.", "FILE.py:NAME")],
    size: SizeOptions,
    method: MethodOptions,
    noise_multiplier: OptionalNoise = None,
    clip_norm: ClipNorm = None,
    canary: Annotated[
        Literal["gradient", "example"],
        "The canary that the trainer is given: a gradient (default), or True to add an example of its own.",
    ] = "gradient",
    models: Annotated[int, "Number of models that are trained with all steps (default: 32)."] = 32,
    error: Annotated[float, "Probability of reporting a fault in correct training (default: 1e-3)."] = 1e-3,
    seed: Seed = 0,
    plot: Plot = None,
    junit: Annotated[Path | None, Option("Also write a JUnit file: one test case per row.", "FILE")] = None,
    json: Json = False,
) -> None:
    """Check training code against its declared settings.

    The command trains a few models with and without canaries, whose gradients are made up. It measures noise, clipping,
    batches, steps and seeds, and compares them with the run. Options describe the run, or the file defines run =
    lastiterate.DPSGD(...). A trainer that takes the number of steps is also checked after one step. The file may also
    define batch_size and initial, which are arguments of lastiterate.check.

    \b
    Exit status 1: a fault. 4: a row could not be decided.

    \b
    Example:
      lastiterate check --trainer mine.py:train
    """
    import lastiterate
    from lastiterate.auditing.audit_target import find_subject
    from lastiterate.common.atomic_write import check_writable

    out.check_apart(
        {"--plot": [plot] if plot else [], "--junit": [junit] if junit else []},
        {"--trainer": out.given_files(trainer.rpartition(":")[0])},
    )
    out.check_plot(plot)
    if junit is not None:
        check_writable(junit, "JUnit file")
    if not trainer:
        raise OptionError("--trainer must be FILE.py:NAME, got ''")
    with out.talk_on_stderr():
        subject = find_subject("", "", trainer, lambda n: described_run(size, method, noise_multiplier, clip_norm, n))
        trained = iter(out.tracker("training")(range(max(models, 1))))
        next(trained, None)

        def told() -> None:
            next(trained, None)

        result = lastiterate.check(
            subject.run,
            subject.problem,
            models,
            canary,
            seed,
            error,
            batch_size=subject.batch_size if size.batch_size is None else size.batch_size,
            initial=subject.initial,
            told=told,
        )
    raise typer.Exit(_finish(result, subject, plot, junit, json))


def _finish(result: CheckResult, subject: Subject, plot: Path | None, junit: Path | None, json: bool) -> int:
    from lastiterate.checking.check_result import junit as as_junit
    from lastiterate.common.atomic_write import write_whole
    from lastiterate.compare_analyses import run_fields
    from lastiterate.formatting import describe

    if json:
        fields = {**run_fields(subject.run), "clip_norm": subject.run.clip_norm, "trainer": subject.words}
        out.print_json({**fields, **result.to_dict()})
    else:
        out.print_table(result.table(f"{subject.words}: {describe(result.run)}"))
    beside = out.pictures(result.plot, [plot] if plot else [])
    if junit is not None:
        beside.insert(
            0, out.Beside(junit, lambda file: write_whole(file, as_junit(result), "JUnit file"), "JUnit file")
        )
    written = out.write_beside(beside, quiet=json)
    return {"fault": REFUTED, "cannot tell": INCONCLUSIVE}.get(result.verdict, 0) or written
