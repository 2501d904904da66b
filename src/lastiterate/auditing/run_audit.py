"""The function ``lastiterate.audit``: craft a canary, train with and without it, score the models, and report."""

import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from types import MappingProxyType

import numpy as np

from lastiterate.attacks import named_attack
from lastiterate.attacks.attack import Unknown
from lastiterate.auditing.design import OpenEnded
from lastiterate.auditing.engines.engine import Engine, find_engine
from lastiterate.auditing.evidence.audit_result import AuditResult
from lastiterate.auditing.evidence.estimates import METHODS_OF, Estimates, Question
from lastiterate.auditing.evidence.report import Evidence, report
from lastiterate.auditing.evidence.score_signal import kind_of
from lastiterate.auditing.evidence.verdict import refutation_of
from lastiterate.auditing.experiments.choose import Given, experiment_on
from lastiterate.auditing.experiments.protocol import Experiment, Trials
from lastiterate.auditing.identity import versions
from lastiterate.auditing.load_evidence import evidence_in
from lastiterate.auditing.stopping_rules import Look, Pace, Until, Watch, read_until
from lastiterate.auditing.stores.audit_record import Crafted, Record
from lastiterate.auditing.stores.serialization import damaged
from lastiterate.auditing.stores.store import MemoryStore, Store, begin
from lastiterate.common.errors import BadArgument, Breakdown, TrainerFailed
from lastiterate.common.types import BoolArray, Fields, IntArray, IntegerArray, NumberArray
from lastiterate.common.validation import boolean, told
from lastiterate.data.files import BadFile
from lastiterate.formatting import spell_down
from lastiterate.privacy.convex.distances import Contraction
from lastiterate.run import DPSGD

_PAUSE = 2.0  # shortest time between two changes of the progress bar's text, in seconds


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
    test: tuple[NumberArray, IntegerArray] | None = None,
    data: str = "",
    progress: bool | None = None,
    validity: str = "fixed",
    until: str | None = None,
    contraction: float | Contraction | None = None,
    fault: float = 0.5,
    name: str = "",
    owner: str = "",
    notes: str = "",
) -> AuditResult:
    """Train models with and without a canary, and estimate epsilon from how well an attack distinguishes them.

    Args:
        run: the run that is trained and predicted.
        problem: a ``training.Problem``, a ``lm.TextProblem``, or any trainer
            ``(seed: int, canary: bool) -> score | parameters``.
        attack: crafter and distinguisher, or a name in ``attacks.NAMED``, as on the command line. The default is
            ``attacks.GradientSpace("quiet")`` for a ``training.Problem`` and ``lm.UnseenTokens()`` for a
            ``lm.TextProblem``. A trainer adds its own canary. If it returns scores, no attack is needed.
        models: number of models with the canary, and number without it. For ``attacks.OneRun``, number of canaries.
        seed: seed of all randomness. Equal calls give equal scores.
        store: an SQLite file that keeps every score. If it exists, the audit resumes. By default, nothing is kept.
        engine: "local", "ray", or an engine object.
        delta: delta of (epsilon, delta)-DP.
        confidence: confidence of every empirical epsilon. It covers both error rates together.
        methods: methods of estimation. By default, all that apply.
        threshold: "a-priori", "split", "corrected", "uncorrected" or a number.
        claim_epsilon: test this claimed epsilon instead of the run's.
        claim_noise: test the claim that training had this noise multiplier.
        test: images and labels for the accuracy of the models.
        data: description of the problem, for reports.
        progress: show a progress bar on stderr. By default, only if stderr is a terminal.
        validity: with "fixed", results are valid only when all models are trained. With "anytime", results are valid at
            any time, and the audit may stop and continue with more ``models`` and the same store.
        until: condition that ends an "anytime" audit early: "refuted", "minutes=30", "epsilon=3", or several of them,
            separated by commas.
        contraction: contraction of steps with convex losses, as for ``lastiterate.convex``. The report then includes
            the guarantee of ``lastiterate.convex`` for the last iterate.
        fault: share of the declared noise. The audit must be able to refute a training with only this share. If its
            power against such a training is below 80%, the verdict is "inconclusive".
        name, owner, notes: what the audit is called, who is responsible, and remarks. Reports show them.
    """
    question = Question(delta, confidence, methods, threshold, claim_epsilon, claim_noise, validity, contraction, fault)
    ends = read_until(until)
    if ends is not None and validity != "anytime":
        raise BadArgument("validity", f"must be 'anytime' with until, got {told(validity)}")
    if progress is not None:
        boolean("progress", progress)
    if store is not None and (not isinstance(store, (str, Path)) or not str(store) or "\0" in str(store)):
        raise BadArgument("store", f"must be the path of a file, or None to keep nothing, got {told(store)}")
    chosen = named_attack(attack) if isinstance(attack, str) else attack
    about = about_of(name, owner, notes)
    given = Given(run, chosen, models, seed, test, data, open_ended=validity == "anytime")
    experiment = experiment_on(problem, given)
    try:
        with collected(experiment, question, store, engine, progress, ends, about=about) as kept:
            return report(evidence_in(kept), question)
    except TrainerFailed as failed:
        if not isinstance(failed.error, Exception):  # a trainer must not end the caller's program
            raise
        failed.error.add_note(failed.story)
        raise failed.error from None


_LONGEST_NAME, _LONGEST_NOTES = 200, 2000  # characters


def about_of(name: str, owner: str, notes: str) -> dict[str, str]:
    """Return what a user says about an audit, without empty texts."""
    given = {"name": name, "owner": owner, "notes": notes}
    for key, text in given.items():
        most = _LONGEST_NOTES if key == "notes" else _LONGEST_NAME
        if not isinstance(text, str) or len(text) > most:
            raise ValueError(f"{key} must be a text of at most {most:,} characters, got {told(text)}")
    return {key: text for key, text in given.items() if text.strip()}


@contextmanager
def collected(
    experiment: Experiment,
    question: Question = Question(),  # noqa: B008 - it is frozen
    store: str | Path | None = None,
    engine: str | Engine = "local",
    progress: bool | None = None,
    until: Until | None = None,
    remarks: Sequence[str] = (),
    about: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[MemoryStore]:
    """Run the missing trials of an experiment, and yield the store with all trials.

    If the trainer fails, raise ``TrainerFailed``. Remarks are printed after the last check that could stop the audit
    with an error.
    """
    said = [*remarks, *([remark] if (remark := question.remark(experiment.run)) else [])]
    computer = find_engine(engine)
    question.check(experiment.run, kind_of(experiment.design, Unknown()))
    with _open(store, experiment, about) as kept:
        watch = None if until is None else Watch(until)
        _Session(experiment, kept, question, progress, watch).fill(computer, said)
        yield kept
    if isinstance(kept, Store):
        kept.check_kept()


@dataclass(frozen=True, eq=False)
class _Session:
    """The training of the missing trials of a store. Every chunk is stored as soon as it is scored."""

    experiment: Experiment
    store: MemoryStore
    question: Question
    progress: bool | None
    watch: Watch | None

    def fill(self, engine: Engine, remarks: Sequence[str]) -> None:
        store, held = self.store, self.store.crafted
        if held is not None and (not len(self._missing(held["chunk_size"])[0]) or self._reason_to_stop()):
            _say(remarks)
            return
        began = monotonic()
        try:
            with engine.running():
                self._train(self._prepare(engine), [*remarks, *_other_versions(store)])
        except Breakdown as failed:
            done, planned = len(store.done()), self.experiment.design.trials
            failed.kept = f"{done} of {planned} trials are stored in {store.path}" if done else "no trial was stored"
            if store.path is None:
                failed.kept = "nothing is kept without a store"
            raise
        finally:
            store.add_seconds(monotonic() - began)

    def _prepare(self, engine: Engine) -> Trials:
        experiment, store = self.experiment, self.store
        if (held := store.crafted) is not None:
            crafted = Crafted.of_fields(held)
            try:
                return engine.prepare(experiment, crafted, held["chunk_size"])
            except (LookupError, TypeError, AttributeError) as error:  # facts that do not fit the attack
                raise BadFile(damaged(store.path)) from error
        crafted = experiment.craft(self.progress)
        self.question.check(experiment.run, kind_of(experiment.design, crafted.expected))
        trials = engine.prepare(experiment, crafted, None)
        store.set_crafted({**crafted.fields(), "chunk_size": trials.chunk_size})
        return trials

    def _train(self, trials: Trials, remarks: Sequence[str]) -> None:
        from lastiterate.common.progress import TrainingProgress

        design, store = self.experiment.design, self.store
        models, present = self._missing(trials.chunk_size)
        # Remarks come after the first model, because a user's trainer may fail on it.
        first = design.trials - len(models) if trials.chunk_size == 1 < len(models) else None
        if first is None:
            _say(remarks)
        pace, stored = Pace(_PAUSE), design.trials - len(models)
        with TrainingProgress(len(models), self.experiment.run.steps, self.progress) as bar:
            for chunk in trials.chunks(models, present, bar):
                new = chunk
                if isinstance(design, OpenEnded):  # if a chunk is stored in part, all of it is trained again
                    trials_of = zip(chunk.models.tolist(), chunk.present.tolist(), strict=True)
                    new = chunk.at(np.flatnonzero([trial not in store.done() for trial in trials_of]))
                store.add(new)
                if stored == first:
                    _say(remarks)
                stored += len(chunk)
                if bar.is_shown:
                    seen = pace.look(self._look, stored)
                    bar.note = bar.note if seen is None else seen
                if reason := self._reason_to_stop():
                    print(f"stopped after {len(store.done()):,} trials: {reason}", file=sys.stderr)
                    return

    def _reason_to_stop(self) -> str | None:
        return None if self.watch is None else self.watch.reason(self._state)

    def _estimates(self, evidence: Evidence, validity: str) -> Estimates:
        inside, outside = evidence.worlds(validity)
        return Estimates(evidence.run, evidence.expected, inside, outside, self.question, evidence.horizon)

    def _state(self) -> Look | None:
        evidence, question = evidence_in(self.store), self.question
        if not evidence.prefix:
            return None
        run, kind, claim = evidence.run, kind_of(evidence.design, evidence.expected), question.claim(evidence.run)
        estimates = self._estimates(evidence, "anytime")
        first = estimates(question.methods_for(run, kind)[0], question.confidence)
        deciding = estimates.deciding(claim)
        refuted = refutation_of(claim, kind, deciding, question.confidence, deciding.martingale(claim, kind))
        return refuted is not None, first.epsilon

    def _look(self) -> str:
        evidence, anytime = evidence_in(self.store), self.question.is_anytime
        if evidence.present.all() or not evidence.present.any():
            return ""
        estimates = self._estimates(evidence, "anytime" if anytime and evidence.prefix else "fixed")
        method = METHODS_OF[kind_of(evidence.design, evidence.expected)][0]
        bound = f"epsilon >= {spell_down(estimates(method, self.question.confidence).epsilon, 3)}"
        return f", {bound}, which holds at any time, so you may stop" if anytime else f", so far {bound}"

    def _missing(self, chunk_size: int) -> tuple[IntArray, BoolArray]:
        """Return the trials of the chunks that are not stored. Every session has the same chunks."""
        models, present = self.experiment.design.planned()
        done = self.store.done()
        trials = zip(models.tolist(), present.tolist(), strict=True)
        is_missing = np.array([trial not in done for trial in trials], bool)
        starts = np.arange(0, len(models), chunk_size)
        if isinstance(self.experiment.design, OpenEnded):  # its last chunk may be stored in part
            is_missing[starts] = np.logical_or.reduceat(is_missing, starts)
        rows = np.flatnonzero(np.repeat(is_missing[starts], chunk_size)[: len(models)])
        return models[rows], present[rows]


def _say(remarks: Sequence[str]) -> None:
    for remark in remarks:
        print(remark, file=sys.stderr)


def _other_versions(store: MemoryStore) -> list[str]:
    here = versions()
    for used in store.versions():
        names = [name for name in here if used.get(name, here[name]) != here[name]]
        if names:
            differing = "; ".join(f"{name} {used[name]}, here {here[name]}" for name in names)
            return [f"trials in the store {str(store.path)!r} were trained with {differing}: scores may differ"]
    return []


@contextmanager
def _open(path: str | Path | None, experiment: Experiment, about: Mapping[str, str]) -> Iterator[MemoryStore]:
    """Open the store. Without a path, the store is in memory.

    If crafting or the first model fails, a new file is deleted: corrected code would be refused as another audit.
    """
    created = datetime.now(UTC).isoformat()
    setup: Fields = {
        "versions": versions(),
        "platform": f"{platform.system()} {platform.machine()}",
        "created": created,
        **about,
    }
    record = Record(experiment.run, experiment.design, experiment.data, experiment.quality, setup)
    if not path:
        yield MemoryStore(begin(experiment.identity(), record))
        return
    new = not Path(path).exists()
    folders = [folder for folder in Path(path).parents if not folder.exists()]
    with Store.open(path, experiment.identity(), record) as store:
        store.tell(about)
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
