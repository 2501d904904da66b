"""How long an audit would take: a few real steps are trained and timed, and nothing is kept."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np

from lastiterate.auditing.job import brings_trainer, is_one_run, is_users
from lastiterate.auditing.user_trainer import train
from lastiterate.machine import process_peak_bytes
from lastiterate.run import DPSGD

_STEPS = 20
_COMPILING = 6.0  # seconds: the crafter and the audit compile about four programs


@dataclass(frozen=True)
class Rehearsal:
    """What an audit would train, and what that would take here."""

    models: int
    reference_models: int
    seconds: float
    bytes: int
    basis: str


def rehearse(run: DPSGD, problem: Any, attack: Any, models: int) -> Rehearsal:
    """Time a few steps of a few models, or one model of a user's trainer, and extrapolate."""
    references = int(getattr(attack, "references", 0)) + 3 * int(getattr(attack, "pilots", 0))
    references = int(getattr(attack, "to_craft", references))
    total = references + (1 if is_one_run(attack) else 2 * models)
    if is_users(problem):
        began = monotonic()
        train(problem, run, 0, 0, False)
        return Rehearsal(
            total, references, total * (monotonic() - began), process_peak_bytes(), "from one model trained"
        )
    if brings_trainer(problem):
        seconds = problem.seconds_a_step(run) * total * run.steps
        return Rehearsal(total, references, seconds, process_peak_bytes(), "from a few steps trained")
    if not getattr(attack, "trains", True):
        return Rehearsal(total, 0, 1e-6 * total, process_peak_bytes(), "last iterates are drawn, not trained")
    from lastiterate.training.memory import peak_bytes

    seconds = _seconds_a_model_step(run, problem) * total * run.steps + _COMPILING
    basis = f"from {min(_STEPS, run.steps)} steps trained"
    return Rehearsal(total, references, seconds, peak_bytes(), basis)


def _seconds_a_model_step(run: DPSGD, problem: Any) -> float:
    from lastiterate.attacks.drift import flatten_one
    from lastiterate.training import GradientCanary, Trainer

    short = run.prefix(min(_STEPS, run.steps))
    trainer = Trainer(short, problem, GradientCanary(np.zeros(flatten_one(problem).size, np.float32)))
    count = trainer.chunk_size * trainer.workers
    seconds = 0.0
    for _ in range(2):  # the first time JAX compiles what is around the steps, too
        began = monotonic()
        for _ in trainer.chunks(np.arange(count), np.zeros(count, bool), 0):
            pass
        seconds = monotonic() - began
    return seconds / (count * short.steps)
