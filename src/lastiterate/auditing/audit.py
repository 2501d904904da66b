"""``lastiterate.audit``: craft a canary, train with and without it, score, and say what was found."""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from lastiterate.attacks.attack import Expected, Words
from lastiterate.auditing.describe import specification
from lastiterate.auditing.engine import Engine, find_engine
from lastiterate.auditing.job import Job, Trials, brings_trainer, is_one_run, is_users
from lastiterate.auditing.report import Question, check_question, report
from lastiterate.auditing.result import AuditResult
from lastiterate.auditing.store import Store
from lastiterate.auditing.store_trials import StoredTrials
from lastiterate.auditing.user_trainer import REFERENCES, SEED_NUMBERING, train_references
from lastiterate.run import DPSGD
from lastiterate.trainer_failure import TrainerFailed
from lastiterate.values import Array, integer
from lastiterate.wording import spell

if TYPE_CHECKING:
    from lastiterate.training_progress import TrainingProgress

_NOTE_SECONDS = 2.0  # between two looks at the running epsilon


def audit(
    run: DPSGD,
    problem: Any,
    attack: Any = None,
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
    test: tuple[Array, Array] | None = None,
    data: str = "",
    progress: bool | None = None,
) -> AuditResult:
    """Train models with and without a canary, and find out how well they can be told apart.

    Args:
        run: what is trained, and what the predictions are for.
        problem: a ``training.Problem``, a ``lm.TextProblem``, or any trainer
            ``(seed: int, canary: bool) -> score | parameters``.
        attack: crafter and distinguisher. None: ``attacks.GradientSpace("quiet")`` for a problem, ``lm.UnseenTokens()``
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
    """
    question = Question(delta, confidence, methods, threshold, claim_epsilon, claim_noise)
    job = Job(run, problem, attack, {}, seed, models, test=test)
    try:
        return conduct(job, question, store, engine, data, progress)
    except TrainerFailed as failed:
        if not isinstance(failed.error, Exception):  # a trainer may not end the program of whoever calls this
            raise
        failed.error.add_note(failed.story)
        raise failed.error from None


def conduct(
    job: Job, question: Question, store: str | Path | None, engine: str | Engine, data: str, progress: bool | None
) -> AuditResult:
    """``audit`` for those who tell a trainer's failure (``TrainerFailed``) from a mistake in the call."""
    if remark := question.remark(job.run):
        print(remark, file=sys.stderr)
    try:
        with _collected(job, store, engine, question, data, progress) as kept:
            result = report(kept, question)
    except TrainerFailed as failed:
        failed.kept = failed.kept if store else "nothing is kept without a store"
        raise
    return result if store else replace(result, store=None)


def collect(
    run: DPSGD,
    problem: Any,
    attack: Any,
    models: int,
    seed: int = 0,
    store: str | Path | None = None,
    engine: str | Engine = "local",
    *,
    data: str = "",
    progress: bool | None = None,
) -> StoredTrials:
    """The trials of an audit, for those who judge the scores by themselves; arguments as in ``audit``."""
    job = Job(run, problem, attack, {}, seed, models)
    with _collected(job, store, engine, Question(), data, progress) as kept:
        return kept.scores()


@contextmanager
def _collected(
    job: Job, store: str | Path | None, engine: str | Engine, question: Question, data: str, progress: bool | None
) -> Iterator[Store]:
    """The store with all trials of a job, which is checked first."""
    integer("models", job.models)
    integer("seed", job.seed, 0, 2**63 - 1)
    computer = find_engine(engine)
    if job.attack is None and brings_trainer(job.problem):
        job = replace(job, attack=job.problem.default_attack())
    elif job.attack is None and not is_users(job.problem):
        from lastiterate.attacks import GradientSpace

        job = replace(job, attack=GradientSpace())
    _check(job.problem, job.attack, job.models)
    check_question(question, job.run, one_run=is_one_run(job.attack))
    words = data or _words(job.problem)
    described = specification(job.run, job.problem, job.attack, job.models, job.seed, words)
    if is_users(job.problem) and store is not None:
        _check_numbering(Path(store))
    with tempfile.TemporaryDirectory() as scratch, _open(store or Path(scratch) / "audit.sqlite", described) as kept:
        fill(job, kept, computer, question, progress)
        yield kept


def fill(job: Job, store: Store, engine: Engine, question: Question, progress: bool | None = None) -> None:
    """Do what is missing in a store: craft, train, score. Every chunk is kept as soon as it is known."""
    if store.facts is not None and len(store.done()) == len(job.planned()[0]):
        return
    began = monotonic()
    try:
        with engine.running():
            job, trials = _prepare(job, store, engine, question, progress)
            _train(job, store, trials, question, progress)
    except TrainerFailed as failed:
        done, planned = len(store.done()), len(job.planned()[0])
        failed.kept = f"{done} of {planned} trials are stored in {store.path}" if done else "no trial was stored"
        raise
    finally:
        store.add_seconds(monotonic() - began)


def _prepare(job: Job, store: Store, engine: Engine, question: Question, progress: bool | None) -> tuple[Job, Trials]:
    """The job with what its crafter found, now or in an earlier session."""
    if (held := store.facts) is not None:
        job = replace(job, facts=held["crafted"], chunk_size=held["chunk_size"])
        return job, engine.prepare(job)
    crafted, expected, words = _craft(job, progress)
    check_question(question, job.run, expected, one_run=is_one_run(job.attack))
    job = replace(job, facts=crafted)
    trials = engine.prepare(job)
    facts = {
        "crafted": crafted,
        "expected": asdict(expected),
        "words": asdict(words),
        "one_run": is_one_run(job.attack),
        "chunk_size": trials.chunk_size,
    }
    if brings_trainer(job.problem):
        facts["perplexity_before"] = job.problem.perplexity_before()
    store.set_facts(facts)
    return job, trials


def _train(job: Job, store: Store, trials: Trials, question: Question, progress: bool | None) -> None:
    from lastiterate.training_progress import TrainingProgress

    models, present = _missing(job, store, trials.chunk_size)
    looked = monotonic()
    with TrainingProgress(len(models), job.run.steps, progress) as bar:
        for chunk in trials.chunks(models, present, bar):
            store.add(chunk)
            if bar.is_shown and monotonic() - looked > _NOTE_SECONDS:
                _look(store, bar, question)
                looked = monotonic()


def _look(store: Store, bar: TrainingProgress, question: Question) -> None:
    """Show the running epsilon. It is no result: who stops when it looks good has no confidence left."""
    quick = "one-run" if (store.facts or {})["one_run"] else "clopper-pearson"
    try:
        found = report(store, replace(question, methods=[quick])).estimates[quick]
    except ValueError:  # one of the worlds has no model yet
        return
    bar.note = f", so far epsilon >= {spell(found.epsilon, 3)}"


def _craft(job: Job, progress: bool | None) -> tuple[dict[str, Any], Expected, Words]:
    """What the attack's crafter decides, on models that are not counted."""
    attack, run = job.attack, job.run
    if attack is None:
        return {}, Expected("none"), Words("your trainer's own scores", "score")
    if is_users(job.problem):
        trained = train_references(job.problem, run, attack.references, job.seed)
        try:
            facts = attack.craft(run, trained)
        except (TypeError, ValueError) as error:  # they are no parameters, or not of the canary's shapes
            raise TrainerFailed(error, f"{len(trained)} reference models of world 'out'") from error
        return facts, attack.expected(facts), attack.words(facts)
    own = brings_trainer(job.problem)
    references = job.problem.references(job.seed, progress) if own else _References(job.seed, progress)
    if is_one_run(attack):
        facts = attack.craft_many(run, job.problem, references, job.models)
    else:
        facts = attack.craft(run, job.problem, references)
    return facts, attack.expected(facts), attack.words(facts)


class _References:
    """Trains models whose numbers no audit reaches."""

    def __init__(self, seed: int, progress: bool | None) -> None:
        self._seed, self._progress = seed, progress

    def __call__(
        self,
        run: DPSGD,
        problem: Any,
        canary: Any = None,
        *,
        models: int,
        present: bool = False,
        purpose: int = 0,
    ) -> Any:
        from lastiterate.training import train

        numbers = 2**31 + purpose * 2**24 + np.arange(models)
        trained = train(run, problem, canary, models=numbers, present=present, seed=self._seed, progress=self._progress)
        return trained.parameters


def _missing(job: Job, store: Store, chunk_size: int) -> tuple[Array, Array]:
    """The trials of those chunks that are not stored. Chunks are the same in every session, so scores are too."""
    models, present = job.planned()
    done = store.done()
    starts = range(0, len(models), chunk_size)
    left = [s for s in starts if (int(models[s]), bool(present[s])) not in done]
    rows = np.concatenate([np.arange(s, min(s + chunk_size, len(models))) for s in left]) if left else np.empty(0, int)
    return models[rows], present[rows]


@contextmanager
def _open(path: str | Path, described: dict[str, Any]) -> Iterator[Store]:
    """The store. A new one that came to nothing, as where the attack refuses the problem, is removed again.

    So is that of a user's trainer that failed on its first model: once mended, it would be another trainer.
    """
    new = not Path(path).exists()
    folders = [folder for folder in Path(path).parents if not folder.exists()]
    with Store.open(path, described, _setup()) as store:
        try:
            yield store
        except Exception:
            if new and (store.facts is None or (described.get("trainer_seeds") and not store.done())):
                store.close()
                Path(path).unlink(missing_ok=True)
                with suppress(OSError):  # somebody else may use them by now
                    for folder in folders:
                        folder.rmdir()
            raise


def _check_numbering(path: Path) -> None:
    """Refuse to go on with a trainer's store whose models had seeds by an earlier numbering."""
    if not path.is_file() or not path.stat().st_size:
        return
    with Store.read(path) as held:
        found = held.specification
    if found.get("trainer_seeds", 1) != SEED_NUMBERING:
        raise ValueError(
            f"the store {str(path)!r} was begun by an earlier version, which gave a trainer's models other seeds: it "
            "can be reported, but not continued; name another store"
        )


def _words(problem: Any) -> str:
    """A problem for people, if nobody has described it."""
    if problem is None:
        return "no data"
    if brings_trainer(problem):
        return str(problem.words)
    if is_users(problem):
        return f"the trainer {getattr(problem, '__qualname__', type(problem).__name__)}"
    import jax

    size = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(problem.trainable))
    return f"a problem of {size:,} parameters and {problem.size:,} examples"


def _check(problem: Any, attack: Any, models: int) -> None:
    """Refuse what does not go together."""
    if is_users(problem):
        integer("models", models, 1, REFERENCES)
        if attack is not None and not hasattr(attack, "score"):
            raise ValueError(
                f"attack must be None or lastiterate.attacks.Displacement for a trainer, got {type(attack).__name__}"
            )
        return
    if brings_trainer(problem):
        problem.check(attack)
        return
    if not hasattr(attack, "arm") and not is_one_run(attack):
        raise ValueError(f"attack must be one of lastiterate.attacks for a problem, got {attack!r}")
    if problem is None and not getattr(attack, "brings_problem", False):
        raise ValueError("problem must be a training.Problem or a trainer for this attack, got None")


def _setup() -> dict[str, Any]:
    """Where and with what an audit was begun."""
    versions = {"python": platform.python_version()}
    for package in ("lastiterate", "numpy", "scipy", "jax", "jaxlib", "torch", "transformers"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {"versions": versions, "platform": platform.platform(), "created": datetime.now(UTC).isoformat()}
