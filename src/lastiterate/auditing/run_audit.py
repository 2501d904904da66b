"""The function ``lastiterate.audit``: craft a canary, train with and without it, score the models, and report."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import numpy as np

from lastiterate.attacks import named_attack
from lastiterate.attacks.attack import Unknown
from lastiterate.auditing.design import OpenEnded
from lastiterate.auditing.engines.engine import Engine, find_engine
from lastiterate.auditing.evidence.audit_result import AuditResult
from lastiterate.auditing.evidence.estimates import METHODS_OF, Estimates, Question
from lastiterate.auditing.evidence.report import report
from lastiterate.auditing.evidence.score_signal import kind_of
from lastiterate.auditing.evidence.verdict import refutation_of
from lastiterate.auditing.experiments.choose import Given, experiment_on
from lastiterate.auditing.experiments.protocol import Crafted, Experiment, Trials
from lastiterate.auditing.identity import versions
from lastiterate.auditing.load_evidence import evidence_in
from lastiterate.auditing.stopping_rules import Look, Looks, Until, Watch, read_until
from lastiterate.auditing.stores.audit_record import Record, ScoredTrials
from lastiterate.auditing.stores.error_messages import damaged
from lastiterate.auditing.stores.store import Store
from lastiterate.common.atomic_write import scratch_folder
from lastiterate.common.errors import Breakdown, TrainerFailed
from lastiterate.common.types import BoolArray, Fields, IntArray, IntegerArray, RealArray
from lastiterate.common.validation import boolean, told
from lastiterate.data.files import BadFile
from lastiterate.formatting import spell_down
from lastiterate.privacy.convex.distances import Contraction
from lastiterate.run import DPSGD


def audit(
    run: DPSGD,
    problem: object,
    attack: object = None,
    models: int = 256,
    seed: int = 0,
    store: str | Path | None = None,
    engine: str | Engine = "local",
    *,
    delta: float = 1e-5,
    confidence: float = 0.95,
    methods: Sequence[str] | None = None,
    threshold: float | str = "a-priori",
    claim_epsilon: float | None = None,
    claim_noise: float | None = None,
    test: tuple[RealArray, IntegerArray] | None = None,
    data: str = "",
    progress: bool | None = None,
    validity: str = "fixed",
    until: str | None = None,
    contraction: float | Contraction | None = None,
    fault: float = 0.5,
) -> AuditResult:
    """Train models with and without a canary, and estimate epsilon from how well an attack distinguishes them.

    Args:
        run: the run that is trained and predicted.
        problem: a ``training.Problem``, a ``lm.TextProblem``, or any trainer
            ``(seed: int, canary: bool) -> score | parameters``.
        attack: crafter and distinguisher, or a name in ``attacks.NAMED``, as on the command line. None:
            ``attacks.GradientSpace("quiet")`` for a ``training.Problem``, ``lm.UnseenTokens()`` for a
            ``lm.TextProblem``. A trainer has its own canary, and its scores are used unchanged.
        models: number of models in each of the two worlds; for ``attacks.OneRun``, number of canaries.
        seed: seed of all randomness. Equal calls give equal scores.
        store: an SQLite file that keeps every score. If it exists, the audit resumes. None: nothing is kept.
        engine: "local", "ray", or an engine object.
        delta: delta of (epsilon, delta)-DP.
        confidence: confidence of every empirical epsilon, jointly over both error rates.
        methods: methods of estimation. None: all that apply.
        threshold: "a-priori", "split", "corrected", "uncorrected" or a number.
        claim_epsilon: test this claimed epsilon instead of the run's.
        claim_noise: test the claim that training had this noise multiplier.
        test: images and labels for the accuracy of the models.
        data: description of the problem, for reports.
        progress: show a progress bar on stderr. None: if stderr is a terminal.
        validity: "fixed": the number of models is fixed, and results hold only for all of them. "anytime": results hold
            at any time; the audit may stop and continue with more ``models`` and the same store.
        until: condition that ends the audit early, with validity "anytime": "refuted", "minutes=30", "epsilon=3", or
            several of them, separated by commas.
        contraction: contraction of steps with convex losses, as for ``lastiterate.convex``. The report then includes
            its guarantee for the last iterate.
        fault: noise of a faulty training that this audit must be able to refute, as a share of the declared noise. If
            the power to refute it is below 80%, the verdict is "inconclusive".
    """
    question = Question(delta, confidence, methods, threshold, claim_epsilon, claim_noise, validity, contraction, fault)
    ends = read_until(until)
    if ends is not None and validity != "anytime":
        raise ValueError(f"validity must be 'anytime' with until, got {validity!r}: who stops early has fixed nothing")
    if progress is not None:
        boolean("progress", progress)
    if store is not None and (not isinstance(store, (str, Path)) or not str(store) or "\0" in str(store)):
        raise ValueError(f"store must be the path of a file, or None to keep nothing, got {told(store)}")
    chosen = named_attack(attack) if isinstance(attack, str) else attack
    given = Given(run, chosen, models, seed, test, data, open_ended=validity == "anytime")
    experiment = experiment_on(problem, given)
    try:
        return conduct(experiment, question, store, engine, progress, ends)
    except TrainerFailed as failed:
        if not isinstance(failed.error, Exception):  # a trainer must not end the caller's program
            raise
        failed.error.add_note(failed.story)
        raise failed.error from None


def conduct(
    experiment: Experiment,
    question: Question,
    store: str | Path | None = None,
    engine: str | Engine = "local",
    progress: bool | None = None,
    until: Until | None = None,
    remarks: Sequence[str] = (),
) -> AuditResult:
    """Run the missing trials of an experiment, and report. A failure of the trainer raises ``TrainerFailed``.

    Remarks are for people. They are printed after the last check that could refuse the audit.
    """
    said = [*remarks, *([remark] if (remark := question.remark(experiment.run)) else [])]
    try:
        with collected(experiment, question, store, engine, progress, until, said) as kept:
            result = report(evidence_in(kept), question)
    except Breakdown as failed:
        failed.kept = failed.kept if store else "nothing is kept without a store"
        raise
    return result if store else replace(result, store=None)


@contextmanager
def collected(
    experiment: Experiment,
    question: Question | None = None,
    store: str | Path | None = None,
    engine: str | Engine = "local",
    progress: bool | None = None,
    until: Until | None = None,
    remarks: Sequence[str] = (),
) -> Iterator[Store]:
    """Yield the store with all trials of an experiment, for callers that evaluate the scores themselves."""
    computer = find_engine(engine)
    asked = question or Question()
    asked.check(experiment.run, kind_of(experiment.design, Unknown()))
    with scratch_folder() as scratch:
        with _open(store or scratch / "audit.sqlite", experiment) as kept:
            _fill(experiment, kept, computer, asked, progress, until, remarks)
            yield kept
        if store:
            kept.check_kept()


def _fill(
    experiment: Experiment,
    store: Store,
    engine: Engine,
    question: Question,
    progress: bool | None,
    until: Until | None,
    remarks: Sequence[str],
) -> None:
    """Craft the canary and run the missing trials of a store. Every chunk is stored as soon as it is scored."""
    planned = experiment.design.trials
    watch = None if until is None else Watch(until)
    held = store.crafted
    if held is not None and (
        not len(_missing(experiment, store, held["chunk_size"])[0])
        or (watch and _reason_to_stop(watch, store, question))
    ):
        _say(remarks)
        return
    began = monotonic()
    try:
        with engine.running():
            crafted, trials = _prepare(experiment, store, engine, question, progress)
            said = [*remarks, *_other_versions(store)]
            _train(experiment, store, crafted, trials, question, progress, watch, said)
    except Breakdown as failed:
        done = len(store.done())
        failed.kept = f"{done} of {planned} trials are stored in {store.path}" if done else "no trial was stored"
        raise
    finally:
        store.add_seconds(monotonic() - began)


def _say(remarks: Sequence[str]) -> None:
    for remark in remarks:
        print(remark, file=sys.stderr)


def _other_versions(store: Store) -> list[str]:
    """Return a remark if trials were stored with other package versions, on which scores may depend."""
    here = versions()
    for used in store.versions():
        names = [name for name in here if used.get(name, here[name]) != here[name]]
        if names:
            differing = "; ".join(f"{name} {used[name]}, here {here[name]}" for name in names)
            return [f"trials in the store {str(store.path)!r} were trained with {differing}: scores may differ"]
    return []


def _prepare(
    experiment: Experiment, store: Store, engine: Engine, question: Question, progress: bool | None
) -> tuple[Crafted, Trials]:
    """Return the crafter's facts, new or from an earlier session, and the trials that use them."""
    if (held := store.crafted) is not None:
        crafted = Crafted.of_fields(held)
        try:
            return crafted, engine.prepare(experiment, crafted, held["chunk_size"])
        except (LookupError, TypeError, AttributeError) as error:  # facts that do not fit the attack
            raise BadFile(damaged(store.path)) from error
    crafted = experiment.craft(progress)
    question.check(experiment.run, kind_of(experiment.design, crafted.expected))
    trials = engine.prepare(experiment, crafted, None)
    store.set_crafted({**crafted.fields(), "chunk_size": trials.chunk_size})
    return crafted, trials


def _train(
    experiment: Experiment,
    store: Store,
    crafted: Crafted,
    trials: Trials,
    question: Question,
    progress: bool | None,
    watch: Watch | None,
    remarks: Sequence[str],
) -> None:
    from lastiterate.common.progress import TrainingProgress

    models, present = _missing(experiment, store, trials.chunk_size)
    one_by_one = trials.chunk_size == 1 < len(models)  # as with a user's trainer, which may fail on its first model
    if not one_by_one:
        _say(remarks)
    looks, stored = Looks(), experiment.design.trials - len(models)
    with TrainingProgress(len(models), experiment.run.steps, progress) as bar:
        for chunk in trials.chunks(models, present, bar):
            store.add(_new(store, chunk) if isinstance(experiment.design, OpenEnded) else chunk)
            if one_by_one and stored == experiment.design.trials - len(models):
                _say(remarks)
            stored += len(chunk)
            if bar.is_shown and looks.due(stored):
                bar.note = looks.look(lambda: _look(experiment, crafted, store, question), stored)
            if watch and (reason := _reason_to_stop(watch, store, question)):
                print(f"stopped after {len(store.done()):,} trials: {reason}", file=sys.stderr)
                return


def _new(store: Store, chunk: ScoredTrials) -> ScoredTrials:
    """Return the trials that are not stored yet. An extended audit trains a partly stored chunk again as a whole."""
    done = store.done()
    trials = zip(chunk.models.tolist(), chunk.present.tolist(), strict=True)
    return chunk.at(np.flatnonzero([trial not in done for trial in trials]))


def _reason_to_stop(watch: Watch, store: Store, question: Question) -> str | None:
    """Return the reason to stop an anytime-valid audit now, or None."""

    def look() -> Look | None:
        evidence = evidence_in(store)
        if not evidence.prefix:
            return None
        run, kind, claim = evidence.run, kind_of(evidence.design, evidence.expected), question.claim(evidence.run)
        horizon = evidence.design.horizon if isinstance(evidence.design, OpenEnded) else evidence.design.models
        estimates = Estimates(run, evidence.expected, *evidence.worlds("anytime"), question, horizon)
        first = estimates(question.methods_for(run, kind)[0], question.confidence)
        deciding = estimates.deciding(claim)
        refuted = refutation_of(claim, kind, deciding, question.confidence, deciding.wager(claim, kind))
        return Look(refuted is not None, first.epsilon)

    return watch.reason(look)


def _look(experiment: Experiment, crafted: Crafted, store: Store, question: Question) -> str:
    """Return the running lower bound as text. It is a result only if the bound is valid at any time."""
    evidence = evidence_in(store)
    design = evidence.design
    inside, outside = (evidence.scores[evidence.present == there] for there in (True, False))
    horizon = design.horizon if isinstance(design, OpenEnded) else design.models
    if question.validity == "anytime" and evidence.prefix:
        inside, outside = evidence.worlds("anytime")
    if not len(inside) or not len(outside):
        return ""
    method = METHODS_OF[kind_of(experiment.design, crafted.expected)][0]
    estimates = Estimates(experiment.run, crafted.expected, inside, outside, question, horizon)
    found = spell_down(estimates(method, question.confidence).epsilon, 3)
    if question.validity == "anytime":
        return f", epsilon >= {found}, which holds at any time: you may stop"
    return f", so far epsilon >= {found}"


def _missing(experiment: Experiment, store: Store, chunk_size: int) -> tuple[IntArray, BoolArray]:
    """Return the trials of the chunks that are not stored. Chunks, and so scores, are the same in every session."""
    models, present = experiment.design.planned()
    done = store.done()
    starts = range(0, len(models), chunk_size)
    is_open = isinstance(experiment.design, OpenEnded)  # its last chunk may be stored in part

    def is_missing(begin: int) -> bool:
        end = min(begin + chunk_size, len(models)) if is_open else begin + 1
        return any((int(models[i]), bool(present[i])) not in done for i in range(begin, end))

    left = [begin for begin in starts if is_missing(begin)]
    rows = np.concatenate([np.arange(s, min(s + chunk_size, len(models))) for s in left]) if left else np.empty(0, int)
    return models[rows], present[rows]


@contextmanager
def _open(path: str | Path, experiment: Experiment) -> Iterator[Store]:
    """Open the store. A new store is deleted if the audit fails early.

    It fails early if crafting fails, as when the attack refuses the problem, or if the trainer fails or is refused on
    its first model: the corrected trainer will be another trainer.
    """
    new = not Path(path).exists()
    folders = [folder for folder in Path(path).parents if not folder.exists()]
    record = Record(experiment.run, experiment.design, experiment.data, experiment.quality, _setup())
    with Store.open(path, experiment.identity(), record) as store:
        try:
            yield store
        except Exception as error:
            refused = isinstance(error, (TrainerFailed, ValueError)) and not store.done()
            if new and (store.crafted is None or refused) and store.is_there():
                store.close()
                Path(path).unlink(missing_ok=True)
                with suppress(OSError):  # other processes may use the folders by now
                    for folder in folders:
                        folder.rmdir()
            raise


def _setup() -> Fields:
    """Return versions, platform and time of an audit's start."""
    return {"versions": versions(), "platform": platform.platform(), "created": datetime.now(UTC).isoformat()}
