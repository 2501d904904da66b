"""``lastiterate audit``: attack a training, and put what was found beside what was predicted."""

from typing import Annotated

import typer

from lastiterate.attacks import NAMED
from lastiterate.cli import values
from lastiterate.cli.audit_actions import (
    check_audit,
    described_run,
    perform,
    planned_canaries,
    planned_models,
    rehearse,
    released_fields,
)
from lastiterate.cli.audit_options import AttackName, AuditOptions, Others, QuestionOptions
from lastiterate.cli.errors import OptionError
from lastiterate.cli.options import Json, MethodOptions, SizeOptions, choice, option
from lastiterate.cli.outputs import given_files
from lastiterate.cli.pictures import check_page
from lastiterate.cli.streams import talk_on_stderr
from lastiterate.cli.training_options import EngineOptions
from lastiterate.cli.unfold import unfold
from lastiterate.values import integer

Data = Annotated[
    str,
    option("--data", None, "digits|PATH", "The embedded digits (default), an .npz file, idx files or CIFAR-10's own."),
]
Model = Annotated[str, choice("--model", ("mlp", "logistic", "cnn", "wide-resnet"), "What is trained (default: mlp).")]
Trainer = Annotated[
    str | None,
    option("--trainer", None, "FILE.py:NAME", "Your own trainer, (seed, canary) -> score or parameters, instead."),
]
MODELS = 512
Models = Annotated[
    int | str | None,
    option(
        "--models",
        values.models,
        "INTEGER|auto",
        f"Models a world (default: {MODELS}; auto: as many as find half of the noise), or canaries (planned).",
    ),
]


@unfold
def audit(
    size: SizeOptions,
    method_: MethodOptions,
    question: QuestionOptions,
    engine: EngineOptions,
    options: AuditOptions,
    data: Data = "digits",
    model: Model = "mlp",
    trainer: Trainer = None,
    attack: AttackName = None,
    others: Others = None,
    models: Models = None,
    json: Json = False,
) -> None:
    """Attack a training, and see what leaks.

    Without arguments: a small network on the embedded digits. A canary is crafted, models are trained with and without
    it, and their last iterates are told apart. The same command again resumes where it was stopped.

    \b
    Exit status 1: the claim about the training is refuted. 4: the scores cannot tell (with a claim, or --strict).

    \b
    Example:
      lastiterate audit
      lastiterate audit --attack mislabelled --models 1024 --store runs/mislabelled.sqlite
      lastiterate audit --releases 10
    """
    if isinstance(models, int):
        integer("models", models)
    from lastiterate.auditing.subject import find_subject
    from lastiterate.cli.audit_options import find_attack

    asked = question.question()
    check_page(options.output)
    if trainer and (attack in NAMED or others):
        raise OptionError(
            "--others and the named attacks do not apply to --trainer: give --attack FILE.py:CLASS, define attack in "
            "the trainer's file, or return scores"
        )
    inputs = {
        "--data": given_files(data),
        "--trainer": given_files(trainer and trainer.rpartition(":")[0]),
        "--attack": given_files(attack and attack.rpartition(":")[0]),
    }
    if options.store is not None:
        check_audit(options.store, options, inputs, json)
    with talk_on_stderr():
        subject = find_subject(data, model, trainer, lambda n: described_run(size, method_, options, n))
        if not any(vars(size).values()):  # the usual training, protecting others or releasing more
            given = {name: value for name, value in released_fields(method_).items() if value is not None}
            subject = subject.protecting(**given)
        if trainer and attack and subject.attack is not None:
            raise OptionError(f"the attack must be given either by --attack or in {trainer!a}, not by both")
        chosen = subject.attack if trainer and not attack else find_attack(attack or "quiet", others)
    if not trainer and _is_one_run(chosen):
        planned = planned_canaries(subject, chosen, models, asked)
    else:
        planned = planned_models(subject, chosen, MODELS if models is None else models, asked)
    computer = engine.find()
    if options.dry_run:
        rehearse(subject, chosen, planned, json, asked)
        return
    raise typer.Exit(perform(subject, chosen, planned, options, computer, asked, inputs, json))


def _is_one_run(attack: object) -> bool:
    from lastiterate.attacks import OneRun

    return isinstance(attack, OneRun)
