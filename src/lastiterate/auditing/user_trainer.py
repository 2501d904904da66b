"""A user's own trainer: how it is called, what its seeds are, and how its failures are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from lastiterate.auditing.stores.trials import StoredTrials
from lastiterate.auditing.experiments.trained import Trained
from lastiterate.trainer_failure import TrainerFailed, guarded
from lastiterate.values import Array

if TYPE_CHECKING:
    from lastiterate.auditing.job import Job
    from lastiterate.run import DPSGD
    from lastiterate.training_progress import TrainingProgress

REFERENCES = 2**20  # models that are not counted have numbers from here on
HAND_OVER_SECONDS = 0.5  # models that are trained within it are stored together
SEED_NUMBERING = 2  # 1 was (seed << 22) + 2 * model + present, which repeated itself from one audit to another

Trainer = Callable[[int, bool], Any]


class UserTrials:
    """A user's trainer, one model after the other; its framework uses the cores as it does."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.chunk_size = job.chunk_size or 1

    def chunks(self, models: Array, present: Array, progress: TrainingProgress | None) -> Iterator[StoredTrials]:
        rows: list[tuple[int, bool, float, float, float]] = []
        handed = monotonic()
        try:
            for model, world in zip(models.tolist(), present.tolist(), strict=True):
                began = monotonic()
                score = self._score(model, world)
                rows.append((model, world, score, np.nan, monotonic() - began))
                if progress:
                    progress.advanced(1, self._job.run.steps, finished=True)
                if monotonic() - handed > HAND_OVER_SECONDS:
                    yield _chunk(rows)
                    rows, handed = [], monotonic()
        except Exception:
            if rows:  # whatever went wrong, what is done is kept
                yield _chunk(rows)
            raise
        if rows:
            yield _chunk(rows)

    def _score(self, model: int, world: bool) -> float:
        job = self._job
        result = train(job.problem, job.run, job.seed, model, world)
        if job.attack is None and isinstance(result, (list, tuple, np.ndarray)) and np.ndim(result) != 0:
            raise ValueError(
                f"attack must be given where the trainer returns parameters (here of shape {np.shape(result)}): for "
                "example lastiterate.attacks.Displacement(canary)"
            )
        try:
            return _number(result if job.attack is None else job.attack.score(job.run, job.facts, result))
        except (TypeError, ValueError) as error:
            raise TrainerFailed(error, _words(job.seed, model, world)) from error


def _number(result: Any) -> float:
    try:
        score = float(result)
    except (TypeError, ValueError):
        raise ValueError(
            f"the trainer must return a number, or parameters together with an attack that scores them, such as "
            f"lastiterate.attacks.Displacement(canary); got {type(result).__name__}"
        ) from None
    if np.isnan(score):
        raise ValueError("scores must be numbers, infinite ones included, got nan from the trainer")
    return score


def train(trainer: Trainer, run: DPSGD, seed: int, model: int, world: bool) -> Any:
    """What the trainer returns for one model, once it is known to have trained the run that was declared."""
    result = guarded(lambda: trainer(trainer_seed(seed, model, world), world), _words(seed, model, world))
    if isinstance(result, Trained):
        result.check(run)
        return result.result
    return result


def train_references(trainer: Trainer, run: DPSGD, count: int, seed: int) -> list[Any]:
    """What a user's trainer returns for models without the canary that are not counted."""
    return [train(trainer, run, seed, REFERENCES + model, False) for model in range(count)]


def trainer_seed(seed: int, model: int, present: bool) -> int:
    """A seed for a user's trainer: in [0, 2^32), and different for every model and world of an audit.

    A permutation of the numbers below 2^32, a Feistel network of four rounds, whose key is the audit's whole seed.
    """
    left, right = divmod(2 * model + present, 2**16)
    for turn in range(4):
        digest = blake2b(f"{seed} {turn} {right}".encode(), digest_size=2).digest()
        left, right = right, left ^ int.from_bytes(digest, "little")
    return left * 2**16 + right


def _words(seed: int, model: int, world: bool) -> str:
    number = f"model {model}" if model < REFERENCES else f"reference model {model - REFERENCES}"
    return f"{number} of world {'in' if world else 'out'!r} (seed {trainer_seed(seed, model, world)})"


def _chunk(rows: list[tuple[int, bool, float, float, float]]) -> StoredTrials:
    return StoredTrials(*map(np.array, zip(*rows, strict=True)))
