"""The command ``lastiterate audit``, and the steps that it shares with ``audit-lm``: plan, dry run and audit."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lastiterate.attacks import NAMED
from lastiterate.cli.app import OptionError
from lastiterate.cli.audit_options import (
    AttackName,
    AuditOptions,
    EngineOptions,
    Others,
    QuestionOptions,
    find_attack,
    parse_models,
    resumable,
)
from lastiterate.cli.options import Json, MethodOptions, Option, PerStep, SizeOptions, unfold
from lastiterate.cli.output import Files, audit_files, check_apart, check_page, given_files, store_files, talk_on_stderr
from lastiterate.common.validation import integer

if TYPE_CHECKING:
    from pathlib import Path

    from lastiterate.auditing.audit_target import Subject
    from lastiterate.auditing.engines.engine import Engine
    from lastiterate.auditing.evidence.estimates import Question
    from lastiterate.auditing.evidence.one_run.one_run_power import OneRunPlan
    from lastiterate.common.types import Fields
    from lastiterate.optimizer import SGD
    from lastiterate.run import DPSGD


# Shared steps of ``audit`` and ``audit-lm``: the run, the number of models, the audit and the dry run.


@dataclass(frozen=True)
class Planned:
    """The planned size of an audit."""

    count: int  # models per world, or canaries of one run
    one_run: OneRunPlan | None = None  # expected result of a one-run audit, if known
    remark: str | None = None  # a sentence about an automatic choice of the count


def described_run(
    size: SizeOptions,
    method: MethodOptions,
    noise: PerStep | None,
    clip_norm: float | None,
    examples: int | None,
    usual: Callable[[float], SGD] | None = None,
) -> DPSGD | None:
    """Return the run that the options describe, or None if no option is given. ``usual`` is as in ``with_defaults``."""
    from lastiterate.auditing.audit_target import with_defaults

    if not any(vars(size).values()):
        is_usual = replace(method, **_released_options(MethodOptions())) == MethodOptions()
        is_default = method == MethodOptions() or (is_usual and examples)
        if noise is not None or clip_norm is not None or not is_default:
            raise OptionError(
                "--steps and --sample-rate, or --batch-size and --epochs, must be given with other options of the run"
            )
        return None
    if size.dataset_size is None and (size.batch_size or size.epochs) and examples:
        size = replace(size, dataset_size=examples)
    run = size.run(1.0 if noise is None else noise, method)
    run = run.replace(clip_norm=1.0 if clip_norm is None else clip_norm)
    return with_defaults(run, calibrated=noise is not None, examples=examples, usual=usual)


def _released_options(method: MethodOptions) -> Fields:
    """Return the options that do not affect training: releases, group size and neighbours."""
    return {name: getattr(method, name) for name in ("releases", "group_size", "neighbours")}


def plan_audit(
    subject: Subject, attack: Any, models: int | str | None, usual: int, question: Question, *, is_one_run: bool
) -> Planned:
    """Return the size of an audit, and for a one-run audit the expected result if the scores are predictable."""
    if not is_one_run:
        if models != "auto":
            return Planned(usual if models is None else int(models))
        from lastiterate.auditing.evidence.audit_power import models_for

        chosen, words = models_for(subject.run, question, is_known=attack is not None)
        return Planned(chosen, remark=words)
    from lastiterate.attacks.attack import LinearScores
    from lastiterate.auditing.evidence.one_run.one_run_power import OneRunPlan, best_guesses, best_plan

    given = models if isinstance(models, int) else None  # "auto" is the default for one run
    if not isinstance(attack.expected({"signal": 1.0}), LinearScores):
        return Planned(attack.most_canaries(subject.problem) if given is None else given)
    asked = question.delta, question.confidence
    if given is None:
        plan = best_plan(subject.run, attack.most_canaries(subject.problem), "one-run-fdp", *asked)
    else:
        guesses = best_guesses(subject.run, given, "one-run-fdp", *asked)
        plan = OneRunPlan(subject.run, given, guesses, *asked)
    return Planned(plan.canaries, plan)


def perform(
    subject: Subject,
    attack: Any,
    planned: Planned,
    options: AuditOptions,
    engine: str | Engine,
    question: Question,
    inputs: Files,
    json: bool,
    unseen: Callable[[], list[str]] | None = None,
) -> int:
    """Audit the subject, show the result, and return the exit status. Ctrl-C prints how to resume.

    With --dry-run, print the plan instead. ``unseen`` returns the tokens from which a canary text can be made.
    """
    if options.dry_run:
        _rehearse(subject, attack, planned, json, question, unseen and unseen())
        return 0
    from lastiterate.auditing.evidence.report import report
    from lastiterate.auditing.load_evidence import evidence_in
    from lastiterate.auditing.run_audit import collected
    from lastiterate.auditing.stopping_rules import read_until
    from lastiterate.cli.report import finish

    until = read_until(options.until)
    is_open = question.validity == "anytime"
    if until is not None and not is_open:
        raise OptionError("--until needs --anytime: a bound for a fixed number of models does not allow stopping early")
    experiment = subject.experiment(attack, planned.count, options.seed, is_open)
    store = options.store or subject.default_store(experiment)
    check_audit(store, options, inputs, json)
    with resumable(store), talk_on_stderr():
        remarks = [planned.remark] if planned.remark else []
        with collected(experiment, question, store, engine, None, until, remarks, options.about) as kept:
            result = report(evidence_in(kept), question)
    return finish(result, question, options.output, options.strict, json, details=options.details)


def check_audit(store: Path, options: AuditOptions, inputs: Files, json: bool) -> None:
    """Raise an error if the store and the pictures would overwrite each other or an input file."""
    folder = options.output or (None if json else store.parent)
    pictures = audit_files(store, folder) if folder else []
    check_apart({"--store": store_files(store), "the pictures": pictures}, inputs)


def _rehearse(
    subject: Subject, attack: Any, planned: Planned, json: bool, question: Question, unseen: list[str] | None
) -> None:
    """Print a dry run: models, time, memory and power of the audit, and the tokens available for canaries."""
    from lastiterate.cli.output import print_json, print_note
    from lastiterate.compare_analyses import run_fields
    from lastiterate.formatting import describe, spell_down
    from lastiterate.labels import OWN_COIN

    models, one_run = planned.count, planned.one_run
    with talk_on_stderr():
        plan = subject.experiment(attack, models, 0).cost()
    found = {} if one_run else _detectable(subject, attack, models, question)
    if planned.remark:
        print(planned.remark, file=sys.stderr)
    if json:
        tokens = {} if unseen is None else {"unseen_tokens": unseen}
        forecast: dict[str, Any] = {"detectable": found}
        if one_run:
            median = {name: one_run.median(name) for name in ("one-run", "one-run-fdp", "one-run-last-iterate")}
            counts = {"canaries": one_run.canaries, "guesses": one_run.guesses, "right_guesses": one_run.accuracy}
            forecast = {"one_run": {**counts, "median": median}}
        print_json({**run_fields(subject.run), "data": subject.words, **vars(plan), **tokens, **forecast})
        return
    if unseen is not None:
        some = ", ".join([*map(ascii, unseen[:8]), *(["..."] if unseen[8:] else [])])
        print_note(f"{len(unseen):,} tokens never occur in the data: {some} (--json lists all)")
    time = f"{plan.seconds:.0f} seconds" if plan.seconds < 100 else f"{plan.seconds / 60:.0f} minutes"
    trained = "one model" if plan.models == 1 else f"{plan.models:,} models"
    uncounted = f", {plan.reference_models:,} of them not counted" if plan.reference_models else ""
    print_note(
        f"{subject.words}: {describe(subject.run)}\n"
        f"{trained} of {subject.run.steps:,} steps{uncounted}\n"
        f"about {time} and {plan.bytes / 2**30:.1f} GiB of memory here ({plan.basis})\n"
        "Dry run: nothing was trained to the end or saved."
    )
    if one_run:
        free, gaussian = (spell_down(one_run.median(method), 3) for method in ("one-run", "one-run-fdp"))
        print_note(
            f"{one_run.canaries:,} canaries; the attack would guess {one_run.guesses:,} of them. If losses are linear "
            f"(a heuristic), {100 * one_run.accuracy:.0f}% of the guesses are right, and half of the audits find an "
            f"epsilon of at least {free} for any mechanism and {gaussian} for a Gaussian one; {OWN_COIN}"
        )
        return
    seen = ", ".join(
        f"{'infinite' if value is None else spell_down(value, 3)} ({name})" for name, value in found.items()
    )
    print_note(
        f"power: with {models:,} models per world, 80% of audits by a perfect attack find at least {seen}, if losses "
        "are linear (a heuristic)"
    )


def _detectable(subject: Subject, attack: object, models: int, question: Question) -> dict[str, float | None]:
    """Return for each method the epsilon that 80% of audits by a perfect attack reach, or None if it is infinite."""
    from lastiterate.attacks import AllIterates
    from lastiterate.attacks.attack import LikelihoodRatio, LinearScores, support_of
    from lastiterate.auditing.evidence.audit_power import forecast_of
    from lastiterate.auditing.evidence.score_signal import Kind
    from lastiterate.supported_runs import RELEASES

    sees_all = isinstance(attack, AllIterates)
    sees_released = subject.run.release_count > 1 and RELEASES in support_of(attack).features
    expected = LikelihoodRatio(sees_released) if sees_all or sees_released else LinearScores()
    kind = Kind.ALL_ITERATES if sees_all else Kind.LAST_ITERATE
    forecast = forecast_of(subject.run, models, question, expected, is_known=attack is not None)
    found = {method: forecast.reached(method) for method in question.methods_for(subject.run, kind)}
    return {method: value if math.isfinite(value) else None for method, value in found.items()}


MODELS = 512


@unfold
def audit(
    size: SizeOptions,
    method_: MethodOptions,
    question: QuestionOptions,
    engine: EngineOptions,
    options: AuditOptions,
    data: Annotated[
        str,
        Option(
            "Training data: the embedded digits (default), an .npz file, idx files or CIFAR-10's folder.",
            "digits|PATH",
        ),
    ] = "digits",
    feature_norm: Annotated[
        float | None,
        "Public bound on the norm of features, if the .npz file holds features. Larger ones are scaled down to it.",
    ] = None,
    model: Annotated[Literal["mlp", "logistic", "ridge", "cnn", "wide-resnet"], "The model (default: mlp)."] = "mlp",
    trainer: Annotated[
        str | None,
        Option("Your own trainer, instead of the built-in one: (seed, canary) -> score or parameters.", "FILE.py:NAME"),
    ] = None,
    attack: AttackName = None,
    others: Others = None,
    models: Annotated[
        int | str | None,
        Option(
            (
                f"Models per world (default: {MODELS}; auto: enough to detect training with half of the noise), "
                "or canaries of one run."
            ),
            "INTEGER|auto",
            parse_models,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Attack a training run, and see what leaks.

    The command crafts a canary, trains models with and without the canary, and lets an attack tell their last iterates
    apart. Without arguments, it trains a small network on the embedded digits. A stopped audit resumes with the same
    command.

    \b
    Exit status 1: the claim is refuted. 4: the verdict is inconclusive (with a claim, or --strict).

    \b
    Example:
      lastiterate audit
      lastiterate audit --attack mislabelled --models 1024 --store runs/mislabelled.sqlite
      lastiterate audit --releases 10
    """
    if isinstance(models, int):
        integer("models", models)
    from lastiterate.auditing.audit_target import find_subject

    asked = question.question()
    check_page(options.output)
    if trainer and (attack in NAMED or others):
        raise OptionError(
            "--others and the named attacks do not apply to --trainer: give --attack FILE.py:CLASS, define attack in "
            "the trainer's file, or let the trainer return scores"
        )
    inputs = {
        "--data": given_files(data),
        "--trainer": given_files(trainer and trainer.rpartition(":")[0]),
        "--attack": given_files(attack and attack.rpartition(":")[0]),
    }
    if options.store is not None:
        check_audit(options.store, options, inputs, json)
    with talk_on_stderr():
        noise, clip_norm = options.noise_multiplier, options.clip_norm
        described = partial(described_run, size, method_, noise, clip_norm)
        subject = find_subject(data, model, trainer, described, feature_norm)
        if not any(vars(size).values()):  # default training; only releases, group size or neighbours are given
            given = {name: value for name, value in _released_options(method_).items() if value is not None}
            subject = subject.protecting(**given)
        if trainer and attack and subject.attack is not None:
            raise OptionError(f"the attack must be given either by --attack or in {trainer!a}, not by both")
        chosen = subject.attack if trainer and not attack else find_attack(attack or "quiet", others)
    is_one_run = False
    if not trainer:  # built-in training needs JAX
        from lastiterate.attacks import OneRun

        is_one_run = isinstance(chosen, OneRun)
    planned = plan_audit(subject, chosen, models, MODELS, asked, is_one_run=is_one_run)
    raise typer.Exit(perform(subject, chosen, planned, options, engine.find(), asked, inputs, json))
