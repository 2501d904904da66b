"""The command ``lastiterate check``: check training code against its declared settings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastiterate.cli.audit_options import AuditOptions
from lastiterate.cli.exit_status import OptionError
from lastiterate.cli.option_values import per_step, unfold
from lastiterate.cli.options import (
    Json,
    MethodOptions,
    PerStepOption,
    Plot,
    SizeOptions,
    choice,
    integer_option,
    number_option,
    option,
)

if TYPE_CHECKING:
    from lastiterate.auditing.audit_target import Subject
    from lastiterate.checking.check_result import CheckResult

Trainer = Annotated[str, option("--trainer", None, "FILE.py:NAME", "Your trainer, (seed, canary) -> parameters.")]
Noise = Annotated[
    PerStepOption | None,
    option("--noise-multiplier", per_step, "NUMBER", "Noise sigma over the clipping norm; or one per step: 1,2,3."),
]
ClipNorm = Annotated[float | None, number_option("--clip-norm", "Clipping norm (default: 1).")]
Canary = Annotated[
    str,
    choice(
        "--canary",
        ("gradient", "example"),
        "What the trainer is given: a gradient (default), or True for an example of its own.",
    ),
]
Models = Annotated[int, integer_option("--models", "Models that are trained (default: 16).")]
Error = Annotated[float, number_option("--error", "Probability of a fault in a correct training (default: 1e-3).")]
Seed = Annotated[int, integer_option("--seed", "Of all randomness (default: 0).")]
Junit = Annotated[Path | None, option("--junit", None, "FILE", "Also write a JUnit file: one test case a row.")]


@unfold
def check(
    trainer: Trainer,
    size: SizeOptions,
    method: MethodOptions,
    noise_multiplier: Noise = None,
    clip_norm: ClipNorm = None,
    canary: Canary = "gradient",
    models: Models = 16,
    error: Error = 1e-3,
    seed: Seed = 0,
    plot: Plot = None,
    junit: Junit = None,
    json: Json = False,
) -> None:
    """Check training code against its declared settings.

    A few models are trained, with canaries of made-up gradients and without. Noise, clipping, batches, steps and seeds
    are measured and compared with the run, which options describe, or run = lastiterate.DPSGD(...) in the file. The
    file may also define batch_size and initial, as lastiterate.check takes them.

    \b
    Exit status 1: a fault. 4: it cannot tell.

    \b
    Example:
      lastiterate check --trainer mine.py:train
    """
    from lastiterate.cli.output import check_apart, given_files, talk_on_stderr

    given = [path for path in (plot, junit) if path is not None]
    check_apart(
        {"--plot": _written(plot), "--junit": _written(junit)},
        {"--trainer": given_files(trainer.rpartition(":")[0])},
    )
    if given:
        _check_files(plot, junit)
    with talk_on_stderr():
        subject = _subject(trainer, size, method, noise_multiplier, clip_norm)
        result = _checked(subject, canary, models, error, seed, size.batch_size)
    raise typer.Exit(_finish(result, subject, plot, junit, json))


def _written(path: Path | None) -> list[Path]:
    """Return the file to write as a list; empty if there is none."""
    return [] if path is None else [path]


def _check_files(plot: Path | None, junit: Path | None) -> None:
    if plot is not None:
        from lastiterate.plot.chart_file import check_target

        check_target(plot)
    if junit is not None:
        from lastiterate.common.atomic_write import check_writable

        check_writable(junit, "JUnit file")


def _subject(
    trainer: str, size: SizeOptions, method: MethodOptions, noise: PerStepOption | None, clip_norm: float | None
) -> "Subject":
    from lastiterate.auditing.audit_target import find_subject
    from lastiterate.cli.audit import described_run

    if not trainer:
        raise OptionError("--trainer must be FILE.py:NAME, got ''")
    options = AuditOptions(noise_multiplier=noise, clip_norm=clip_norm)
    return find_subject("", "", trainer, lambda n: described_run(size, method, options, n))


def _checked(
    subject: "Subject", canary: str, models: int, error: float, seed: int, batch_size: float | None
) -> "CheckResult":
    import lastiterate
    from lastiterate.cli.output import tracker

    trained = iter(tracker("training")(range(models if models > 0 else 1)))
    next(trained, None)

    def told() -> None:
        next(trained, None)

    return lastiterate.check(
        subject.run,
        subject.problem,
        models,
        canary,  # type: ignore[arg-type]  # the option allows only valid words
        seed,
        error,
        batch_size=subject.batch_size if batch_size is None else batch_size,
        initial=subject.initial,
        told=told,
    )


def _finish(result: "CheckResult", subject: "Subject", plot: Path | None, junit: Path | None, json: bool) -> int:
    """Print the result, write the files, and return the status of the verdict, or else that of a failed file."""
    from lastiterate.cli.audit_output import INCONCLUSIVE, REFUTED
    from lastiterate.cli.output import Beside, pictures, print_json, write_beside
    from lastiterate.compare_analyses import run_fields

    if json:
        fields = {**run_fields(subject.run), "clip_norm": subject.run.clip_norm, "trainer": subject.words}
        print_json({**fields, **result.to_dict()})
    else:
        _print(result, subject.words)

    def write(file: Path) -> None:
        from lastiterate.checking.check_result import junit as as_junit
        from lastiterate.common.atomic_write import write_whole

        write_whole(file, as_junit(result), "JUnit file")

    beside = [] if junit is None else [Beside(junit, write, "JUnit file")]
    beside += [] if plot is None else pictures(result.plot, [plot])
    written = write_beside(beside, quiet=json)
    return {"fault": REFUTED, "cannot tell": INCONCLUSIVE}.get(result.verdict, 0) or written


def _print(result: "CheckResult", words: str) -> None:
    from lastiterate.checking.check_result import spell_or_none
    from lastiterate.cli.output import print_table
    from lastiterate.formatting import describe

    cells = [
        [
            f"{row.name}: {row.tensor}" if row.tensor else row.name,
            spell_or_none(row.measured),
            spell_or_none(row.declared),
            spell_or_none(row.low),
            spell_or_none(row.high),
            row.status,
        ]
        for row in result.rows
    ]
    said = dict.fromkeys(
        f"{row.status.capitalize()}: {row.name}{f' of {row.tensor}' if row.tensor else ''}: {row.advice}."
        for row in result.rows
        if row.status in ("fault", "cannot tell") and row.advice
    )
    notes = [*said, *result.notes, result.sentence, result.error_sentence]
    header = ("what", "measured", "declared", "low", "high", "status")
    print_table(f"{words}: {describe(result.run)}", header, cells, {1, 2, 3, 4}, notes)
