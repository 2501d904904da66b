"""``lastiterate.audit``: craft a canary, train with and without it, score, and say what was found."""

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
    """Train models with and without a canary, and find out how well they can be told apart.

    Args:
        run: what is trained, and what the predictions are for.
        problem: a ``training.Problem``, a ``lm.TextProblem``, or any trainer
            ``(seed: int, canary: bool) -> score | parameters``.
        attack: crafter and distinguisher, or one of the names in ``attacks.NAMED``, which are those of the command
            line. None: ``attacks.GradientSpace("quiet")`` for a problem, ``lm.UnseenTokens()``
            for one of texts; for a trainer, which knows its own canary, its scores as they are.
        models: how many to train in each of the two worlds; for ``attacks.OneRun``, how many canaries.
        seed: of all randomness. Equal calls give equal scores.
        store: an SQLite file that keeps every score. If it exists, the audit resumes. None: nothing is kept.
        engine: "local", "ray", or an engine object.
        delta: of (epsilon, delta)-DP.
        confidence: of every empirical epsilon, jointly over both error rates.
        methods: of estimation. None: all that apply.
        threshold: "a-priori", "split", "corrected", "uncorrected" or a number.
        claim_epsilon: judge this claim instead of what the run says.
        claim_noise: judge the claim that training had this noise multiplier.
        test: images and labels for the accuracy of the models.
        data: what the problem is, for reports.
        progress: show a bar on stderr. None: if that is a terminal.
        validity: "fixed": the number of models is fixed, and counts only as a whole. "anytime": one may look at any
            time, stop, and go on with more ``models`` and the same store.
        until: what ends the audit early, with validity "anytime": "refuted", "minutes=30", "epsilon=3", or several of
            them with commas between.
        contraction: of steps with convex losses, as ``lastiterate.convex`` takes it: what that guarantees for the last
            iterate is shown too.
        fault: the noise of a faulty training that this audit must be able to refute, as a share of the declared noise.
            If it would refute that training with a probability below 80%, the verdict is "inconclusive".
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
        if not isinstance(failed.error, Exception):  # a trainer may not end the program of whoever calls this
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
    """Do what is missing of an experiment, and report. A trainer's failure is a ``TrainerFailed``.

    Remarks are for people, and are printed once nothing is left that could be refused.
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
    """The store with all trials of an experiment, for those who judge the scores by themselves."""
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
    """Do what is missing in a store: craft, train, score. Every chunk is kept as soon as it is known."""
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
    """A remark where trials were stored with other packages than there are here: scores may depend on them."""
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
    """What the crafter decides, now or in an earlier session, and the trials that rest on it."""
    if (held := store.crafted) is not None:
        crafted = Crafted.of_fields(held)
        try:
            return crafted, engine.prepare(experiment, crafted, held["chunk_size"])
        except (LookupError, TypeError, AttributeError) as error:  # facts of another shape than the attack's
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
    one_by_one = trials.chunk_size == 1 < len(models)  # as a user's trainer, which the first may show to be unfit
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
    """Those trials that are not stored: an audit that is extended trains the rest of a chunk with its beginning."""
    done = store.done()
    trials = zip(chunk.models.tolist(), chunk.present.tolist(), strict=True)
    return chunk.at(np.flatnonzero([trial not in done for trial in trials]))


def _reason_to_stop(watch: Watch, store: Store, question: Question) -> str | None:
    """The reason to stop now an audit that may be stopped at any time."""

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
    """The running epsilon. It is no result, unless the bound holds at any time."""
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
    """The trials of those chunks that are not stored. Chunks are the same in every session, so scores are too."""
    models, present = experiment.design.planned()
    done = store.done()
    starts = range(0, len(models), chunk_size)
    is_open = isinstance(experiment.design, OpenEnded)  # whose last chunk may be there in part

    def is_missing(begin: int) -> bool:
        end = min(begin + chunk_size, len(models)) if is_open else begin + 1
        return any((int(models[i]), bool(present[i])) not in done for i in range(begin, end))

    left = [begin for begin in starts if is_missing(begin)]
    rows = np.concatenate([np.arange(s, min(s + chunk_size, len(models))) for s in left]) if left else np.empty(0, int)
    return models[rows], present[rows]


@contextmanager
def _open(path: str | Path, experiment: Experiment) -> Iterator[Store]:
    """The store. A new one that came to nothing, as where the attack refuses the problem, is removed again.

    So is that of a trainer that failed, or was refused, on its first model: once mended, it is another trainer.
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
                with suppress(OSError):  # somebody else may use them by now
                    for folder in folders:
                        folder.rmdir()
            raise


def _setup() -> Fields:
    """Where and with what an audit was begun."""
    return {"versions": versions(), "platform": platform.platform(), "created": datetime.now(UTC).isoformat()}
