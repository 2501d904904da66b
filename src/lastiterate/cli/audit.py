"""The command ``lastiterate audit``, and the steps that it shares with ``audit-lm``: plan, dry run and audit."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastiterate.attacks import NAMED
from lastiterate.cli import option_values as values
from lastiterate.cli.audit_options import AttackName, AuditOptions, EngineOptions, Others, QuestionOptions, resumable
from lastiterate.cli.exit_status import OptionError
from lastiterate.cli.option_values import unfold
from lastiterate.cli.options import Json, MethodOptions, SizeOptions, choice, option
from lastiterate.cli.output import audit_files, check_apart, check_page, given_files, store_files, talk_on_stderr
from lastiterate.common.validation import integer

if TYPE_CHECKING:
    from pathlib import Path

    from lastiterate.auditing.audit_target import Subject
    from lastiterate.auditing.engines.engine import Engine
    from lastiterate.auditing.evidence.estimates import Question
    from lastiterate.auditing.evidence.one_run.one_run_power import OneRunPlan
    from lastiterate.cli.output import Files
    from lastiterate.common.types import Fields
    from lastiterate.optimizer import SGD
    from lastiterate.run import DPSGD


# Shared steps of ``audit`` and ``audit-lm``: the run, the number of models, the audit and the dry run.


@dataclass(frozen=True)
class Planned:
    """The planned size of an audit.

    Attributes:
        count: models per world, or canaries of one run.
        one_run: the expected result of an audit of one run; None: unknown, or models in two worlds.
        remark: a sentence about an automatic choice of ``count``.
    """

    count: int
    one_run: OneRunPlan | None = None
    remark: str | None = None


def described_run(
    size: SizeOptions,
    method: MethodOptions,
    options: AuditOptions,
    examples: int | None,
    usual: Callable[[float], SGD] | None = None,
) -> DPSGD | None:
    """Return the run that the options describe; None if they describe no run. ``usual`` is as in ``with_defaults``."""
    from lastiterate.auditing.audit_target import with_defaults

    noise, clip_norm = options.noise_multiplier, options.clip_norm
    given = any(vars(size).values())
    if not given:
        usual_training = replace(method, **released_fields(MethodOptions())) == MethodOptions()
        if (
            noise is not None
            or clip_norm is not None
            or not usual_training
            or (method != MethodOptions() and not examples)
        ):
            raise OptionError(
                "--steps and --sample-rate, or --batch-size and --epochs, must be given with other options of the run"
            )
        return None
    if size.dataset_size is None and (size.batch_size or size.epochs) and examples:
        size = replace(size, dataset_size=examples)
    run = size.run(1.0 if noise is None else noise, method)
    run = run.replace(clip_norm=1.0 if clip_norm is None else clip_norm)
    return with_defaults(run, calibrated=noise is not None, examples=examples, usual=usual)


def released_fields(method: MethodOptions) -> Fields:
    """Return the options that do not affect training: releases, group size and neighbours."""
    return {name: getattr(method, name) for name in ("releases", "group_size", "neighbours")}


def planned_canaries(subject: Subject, attack: Any, models: int | str | None, question: Question) -> Planned:
    """Return the number of canaries for one run, and the expected result if the attack's scores are predictable."""
    from lastiterate.attacks.attack import LinearScores
    from lastiterate.auditing.evidence.one_run.one_run_power import OneRunPlan, best_guesses, best_plan

    models = None if isinstance(models, str) else models  # "auto" is the default for one run
    if not isinstance(attack.expected({"signal": 1.0}), LinearScores):
        return Planned(attack.most_canaries(subject.problem) if models is None else models)
    asked = question.delta, question.confidence
    if models is None:
        plan = best_plan(subject.run, attack.most_canaries(subject.problem), "one-run-fdp", *asked)
    else:
        guesses = best_guesses(subject.run, models, "one-run-fdp", *asked)
        plan = OneRunPlan(subject.run, models, guesses, *asked)
    return Planned(plan.canaries, plan)


def planned_models(subject: Subject, attack: object, models: int | str, question: Question) -> Planned:
    """Return the number of models per world. "auto" chooses the number and adds a remark."""
    if not isinstance(models, str):
        return Planned(models)
    from lastiterate.auditing.evidence.audit_power import models_for

    chosen, words = models_for(subject.run, question, is_known=attack is not None)
    return Planned(chosen, remark=words)


def perform(
    subject: Subject,
    attack: Any,
    planned: Planned,
    options: AuditOptions,
    engine: str | Engine,
    question: Question,
    inputs: Files,
    json: bool,
) -> int:
    """Audit the subject, show the result, and return the exit status. Ctrl-C prints how to resume."""
    from lastiterate.auditing.run_audit import conduct
    from lastiterate.auditing.stopping_rules import read_until
    from lastiterate.cli.audit_output import finish

    until = read_until(options.until)
    is_open = question.validity == "anytime"
    if until is not None and not is_open:
        raise OptionError("--until needs --anytime: who stops early has not fixed the number of models")
    experiment = subject.experiment(attack, planned.count, options.seed, is_open)
    store = options.store or subject.default_store(experiment)
    check_audit(store, options, inputs, json)
    with resumable(store), talk_on_stderr():
        remarks = [planned.remark] if planned.remark else []
        result = conduct(experiment, question, store, engine, until=until, remarks=remarks)
    return finish(result, question, options.output, options.strict, json)


def check_audit(store: Path, options: AuditOptions, inputs: Files, json: bool) -> None:
    """Raise an error if the store and the pictures would overwrite each other or an input file."""
    folder = options.output or (None if json else store.parent)
    pictures = audit_files(store, folder) if folder else []
    check_apart({"--store": store_files(store), "the pictures": pictures}, inputs)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 100 else f"{seconds / 60:.0f} minutes"


def rehearse(
    subject: Subject,
    attack: Any,
    planned: Planned,
    json: bool,
    question: Question,
    unseen: list[str] | None = None,
) -> None:
    """Print a dry run: models, time, memory and power of the audit, and the tokens available for canaries."""
    from lastiterate.cli.output import print_json, print_note
    from lastiterate.compare_analyses import run_fields
    from lastiterate.formatting import describe

    models, one_run = planned.count, planned.one_run
    with talk_on_stderr():
        plan = subject.experiment(attack, models, 0).cost()
    found = {} if one_run else _detectable(subject, attack, models, question)
    if planned.remark:
        print(planned.remark, file=sys.stderr)
    if json:
        tokens = {} if unseen is None else {"unseen_tokens": unseen}
        outlook = {"one_run": _one_run_fields(one_run)} if one_run else {"detectable": found}
        print_json({**run_fields(subject.run), "data": subject.words, **vars(plan), **tokens, **outlook})
        return
    if unseen is not None:
        some = ", ".join([*map(ascii, unseen[:8]), *(["..."] if unseen[8:] else [])])
        print_note(f"{len(unseen):,} tokens never occur in the data: {some} (--json lists all)")
    print_note(
        f"{subject.words}: {describe(subject.run)}\n"
        f"{plan.models:,} models of {subject.run.steps:,} steps, {plan.reference_models:,} of them not counted\n"
        f"about {_duration(plan.seconds)} and {plan.bytes / 2**30:.1f} GiB of memory here ({plan.basis})\n"
        "Dry run: nothing was trained to the end or saved."
    )
    print_note(_one_run_words(one_run) if one_run else _detectable_words(found, models))


def _detectable(subject: Subject, attack: object, models: int, question: Question) -> dict[str, float | None]:
    """Return the epsilon that 80% of audits by a perfect attack reach, for each method; None: infinite."""
    from lastiterate.attacks import AllIterates
    from lastiterate.attacks.attack import LikelihoodRatio, LinearScores, known_fields
    from lastiterate.auditing.evidence.audit_power import outlook_of
    from lastiterate.auditing.evidence.score_signal import Kind

    sees_all = isinstance(attack, AllIterates)
    sees_released = subject.run.release_count > 1 and "releases" in known_fields(attack)
    expected = LikelihoodRatio(sees_released) if sees_all or sees_released else LinearScores()
    kind = Kind.ALL_ITERATES if sees_all else Kind.LAST_ITERATE
    outlook = outlook_of(subject.run, models, question, expected, is_known=attack is not None)
    found = {method: outlook.reached(method) for method in question.methods_for(subject.run, kind)}
    return {method: value if math.isfinite(value) else None for method, value in found.items()}


def _detectable_words(found: dict[str, float | None], models: int) -> str:
    from lastiterate.formatting import spell_down

    seen = ", ".join(
        f"{'infinite' if value is None else spell_down(value, 3)} ({name})" for name, value in found.items()
    )
    return (
        f"power: with {models:,} models a world, 80% of audits by a perfect attack find at least {seen}, if losses are "
        "linear (a heuristic)"
    )


def _one_run_fields(plan: OneRunPlan) -> dict[str, Any]:
    return {
        "canaries": plan.canaries,
        "guesses": plan.guesses,
        "right_guesses": plan.accuracy,
        "median": {method: plan.median(method) for method in ("one-run", "one-run-fdp", "one-run-last-iterate")},
    }


def _one_run_words(plan: OneRunPlan) -> str:
    from lastiterate.formatting import spell_down
    from lastiterate.registry import OWN_COIN

    median = _one_run_fields(plan)["median"]
    free, gaussian = (spell_down(median[method], 3) for method in ("one-run", "one-run-fdp"))
    return (
        f"{plan.canaries:,} canaries, of which {plan.guesses:,} would be guessed, {100 * plan.accuracy:.0f}% of them "
        f"rightly if losses are linear (a heuristic); then half of the audits find an epsilon of at least "
        f"{free} for any mechanism and {gaussian} for a Gaussian one; "
        f"{OWN_COIN}"
    )


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
    from lastiterate.auditing.audit_target import find_subject
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
        if not any(vars(size).values()):  # the default training, with other releases, group size or neighbours
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
