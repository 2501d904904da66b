"""Table 2: batch sizes at one heuristic epsilon. Small batches are as accurate, whatever composition says of them.

The paper does not state epochs and noise. We train the same epochs for every batch size, with the noise that makes the
heuristic the same. The paper does not name the attack. Ours is the best shipped attack, at a quiet parameter. At full
scale the models are averages of iterates, as De et al. (2022) release them, and all analyses are of these averages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastiterate.common.types import Row, Track
from lastiterate.formatting import spell
from lastiterate.paper.reproduce.audited_figures import (
    ALL,
    DELTA,
    LEARNING_RATE,
    MODELS,
    Audits,
    Case,
    by_batch_size,
    measure,
    subject_of,
)
from lastiterate.paper.reproduce.audited_figures import notes as notes

if TYPE_CHECKING:
    from altair import HConcatChart

    from lastiterate.auditing.audit_target import Subject
    from lastiterate.paper.reproduce import Scale

TITLE = f"Table 2: batch sizes at one heuristic epsilon, at delta {spell(DELTA)}"
TAKES = ALL
BATCHES = {"quick": (256, 64, 32), "full": (4096, 512, 256)}
EPOCHS = {"quick": 20.0, "full": 2468 * 4096 / 50_000}  # full: consistent with the paper's first row
HEURISTIC = {"quick": 6.0, "full": 6.34}
_AVERAGING = {"quick": None, "full": 0.998}  # recipe for batches of 4,096; every window has as many examples


def rows(scale: Scale, track: Track = iter, audits: Audits = Audits()) -> list[Row]:  # noqa: B008 - it is frozen
    """Return a row for each batch size."""
    subject = subject_of(scale, audits)
    return measure("table2", subject, cases(scale, subject), track, audits, models=MODELS[scale], quality="accuracy")


def cases(scale: Scale, subject: Subject) -> list[Case]:
    """Return the audits of the table."""
    import lastiterate
    from lastiterate.attacks import GradientSpace

    found = []
    for batch in BATCHES[scale]:
        decay = _AVERAGING[scale]
        averaging = None if decay is None else decay ** (batch / BATCHES[scale][0])
        optimizer = lastiterate.SGD(LEARNING_RATE[scale], averaging=averaging)
        run = lastiterate.DPSGD.from_batches(subject.problem.size, batch, EPOCHS[scale], 1.0, optimizer=optimizer)
        run = lastiterate.calibrate(run, epsilon=HEURISTIC[scale], delta=DELTA, analysis=lastiterate.last_iterate)
        found.append(Case(run, GradientSpace("quiet"), {"batch_size": batch}))
    return found


def chart(rows: list[Row]) -> HConcatChart:
    """Return epsilon and accuracy over batch sizes."""
    return by_batch_size("Batch sizes at one heuristic epsilon (Table 2)", rows, DELTA)
