"""``lastiterate audit``: attack a training, and put what was found beside what was predicted."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastiterate.cli import values
from lastiterate.cli.audit_options import AttackName, Others, Output, QuestionOptions, Strict
from lastiterate.cli.errors import OptionError
from lastiterate.cli.options import Json, MethodOptions, PerStepOption, SizeOptions, option
from lastiterate.cli.training_options import EngineOptions, resumable
from lastiterate.cli.unfold import unfold

if TYPE_CHECKING:
    from lastiterate.auditing.subject import Subject

Data = Annotated[
    str,
    option("--data", None, "digits|PATH", "The embedded digits (default), an .npz file, idx files or CIFAR-10's own."),
]
Model = Annotated[
    str,
    option(
        "--model",
        values.one_of("mlp", "logistic", "cnn", "wide-resnet"),
        "mlp|logistic|cnn|wide-resnet",
        "What is trained (default: mlp).",
    ),
]
Trainer = Annotated[
    str | None,
    option("--trainer", None, "FILE.py:NAME", "Your own trainer, (seed, canary) -> score or parameters, instead."),
]
Noise = Annotated[
    PerStepOption | None,
    option("--noise-multiplier", values.per_step, "NUMBER", "Noise sigma (default: for epsilon 8 by composition)."),
]
ClipNorm = Annotated[float | None, option("--clip-norm", values.number, "NUMBER", "Clipping norm (default: 1).")]
Models = Annotated[
    int | None,
    option("--models", values.integer, "INTEGER", "Models a world (default: 512), or canaries of the one run."),
]
Seed = Annotated[int, option("--seed", values.integer, "INTEGER", "Of all randomness (default: 0).")]
StorePath = Annotated[
    Path | None,
    option("--store", None, "FILE.sqlite", "Keeps every score; resumed if it exists (default: in runs/)."),
]
DryRun = Annotated[bool, option("--dry-run", None, None, "Say what would be trained, and how long it would take.")]


@unfold
def audit(
    size: SizeOptions,
    method_: MethodOptions,
    question: QuestionOptions,
    engine: EngineOptions,
    data: Data = "digits",
    model: Model = "mlp",
    trainer: Trainer = None,
    noise_multiplier: Noise = None,
    clip_norm: ClipNorm = None,
    attack: AttackName = None,
    others: Others = None,
    models: Models = None,
    seed: Seed = 0,
    store: StorePath = None,
    output: Output = None,
    strict: Strict = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Attack a training, and see what leaks.

    Without arguments: a small network on the embedded digits. A canary is crafted, models are trained with and without
    it, and their last iterates are told apart. The same command again resumes where it was stopped.

    \b
    Exit status 1: the claim about the training is refuted.

    \b
    Example:
      lastiterate audit
      lastiterate audit --attack mislabelled --models 1024 --store runs/mislabelled.sqlite
    """
    from lastiterate.auditing.subject import find_subject
    from lastiterate.cli.audit_options import find_attack
    from lastiterate.cli.audit_output import finish
    from lastiterate.cli.pictures import check_folder

    asked = question.question()
    if output is not None:
        check_folder(output, ["audit.html"])
    if trainer and (attack or others):
        raise OptionError("--attack and --others do not apply to --trainer: its file defines attack, or returns scores")
    named = attack or "quiet"
    count = models if models is not None else (1000 if named.startswith("one-run") else 512)
    with _ending_at_once():
        subject = find_subject(data, model, trainer, lambda n: _run(size, method_, noise_multiplier, clip_norm, n))
        chosen = subject.attack if trainer else find_attack(named, others)
        where = store or subject.default_store(chosen, count, seed)
    computer = engine.find()
    if dry_run:
        _rehearse(subject, chosen, count, json)
        return
    result = _audit(subject, chosen, count, seed, where, computer, asked)
    raise typer.Exit(finish(result, output, strict, json))


@contextmanager
def _ending_at_once() -> Iterator[None]:
    """Ctrl-C ends the program here without further ado. JAX, interrupted while it is imported, would crash."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # as in the background of a script
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _run(size: SizeOptions, method: MethodOptions, noise: Any, clip_norm: float | None, examples: int | None) -> Any:
    """The run that the options describe; None: they describe none."""
    from lastiterate.auditing.subject import with_defaults

    given = any(vars(size).values())
    if not given:
        if noise is not None or clip_norm is not None or method != MethodOptions():
            raise OptionError(
                "--steps and --sample-rate, or --batch-size and --epochs, must be given with other options of the run"
            )
        return None
    if size.dataset_size is None and (size.batch_size or size.epochs) and examples:
        size = replace(size, dataset_size=examples)
    run = size.run(1.0 if noise is None else noise, method)
    run = run.replace(clip_norm=1.0 if clip_norm is None else clip_norm)
    return with_defaults(run, calibrated=noise is not None, examples=examples)


def _audit(subject: "Subject", attack: Any, models: int, seed: int, store: Path, engine: Any, question: Any) -> Any:
    import lastiterate

    with resumable(store):
        return lastiterate.audit(
            subject.run,
            subject.problem,
            attack,
            models,
            seed,
            store,
            engine,
            **vars(question),
            test=subject.test,
            data=subject.words,
        )


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 100 else f"{seconds / 60:.0f} minutes"


def _rehearse(subject: "Subject", attack: Any, models: int, json: bool) -> None:
    from lastiterate.answers import run_fields
    from lastiterate.auditing.rehearsal import rehearse
    from lastiterate.cli.output import print_json, print_note
    from lastiterate.plot.words import describe

    plan = rehearse(subject.run, subject.problem, attack, models)
    if json:
        print_json({**run_fields(subject.run), "data": subject.words, **vars(plan)})
        return
    print_note(
        f"{subject.words}: {describe(subject.run)}\n"
        f"{plan.models:,} models of {subject.run.steps:,} steps, {plan.reference_models:,} of them not counted\n"
        f"about {_duration(plan.seconds)} and {plan.bytes / 2**30:.1f} GiB of memory here ({plan.basis})\n"
        "nothing was trained to the end, and nothing is kept"
    )
