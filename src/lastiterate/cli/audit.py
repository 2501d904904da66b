"""``lastiterate audit``: attack a training, and put what was found beside what was predicted."""

from typing import Annotated

import typer

from lastiterate.cli import values
from lastiterate.cli.audit_actions import described_run, ending_at_once, perform, rehearse
from lastiterate.cli.audit_options import (
    AttackName,
    ClipNorm,
    DryRun,
    Noise,
    Others,
    Output,
    QuestionOptions,
    Seed,
    StorePath,
    Strict,
)
from lastiterate.cli.errors import OptionError
from lastiterate.cli.options import Json, MethodOptions, SizeOptions, option
from lastiterate.cli.training_options import EngineOptions
from lastiterate.cli.unfold import unfold

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
Models = Annotated[
    int | None,
    option("--models", values.integer, "INTEGER", "Models a world (default: 512), or canaries of the one run."),
]


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
    with ending_at_once():
        subject = find_subject(
            data, model, trainer, lambda n: described_run(size, method_, noise_multiplier, clip_norm, n)
        )
        chosen = subject.attack if trainer else find_attack(named, others)
        where = store or subject.default_store(chosen, count, seed)
    computer = engine.find()
    if dry_run:
        rehearse(subject, chosen, count, json)
        return
    result = perform(subject, chosen, count, seed, where, computer, asked)
    raise typer.Exit(finish(result, output, strict, json))
