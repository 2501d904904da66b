"""Table 2: several batch sizes with the same heuristic epsilon. Small batches are as accurate as large ones.

The paper does not state epochs and noise. We train the same number of epochs for every batch size, with the noise at
which the heuristic epsilon is the same. The paper does not name the attack. We use the strongest attack of this
package: a gradient canary at the parameter that natural gradients move least. At full scale the released models are
averages of iterates, as in De et al. (2022), and all analyses are of these averages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lastiterate as li
from lastiterate.common.types import Row, Track
from lastiterate.formatting import spell
from lastiterate.paper.reproduce import Scale
from lastiterate.paper.reproduce import audited_figures as shared
from lastiterate.paper.reproduce.audited_figures import DELTA, Audits, Case
from lastiterate.plot.style import alt

if TYPE_CHECKING:
    from lastiterate.auditing.audit_target import Subject

TITLE = f"Table 2: batch sizes at one heuristic epsilon, at delta {spell(DELTA)}"
TAKES = shared.ALL
notes = shared.notes
BATCHES = {"quick": (256, 64, 32), "full": (4096, 512, 256), "cifar10-features": (4096, 512, 256)}
# full: consistent with the paper's first row
EPOCHS = {"quick": 20.0, "full": 2468 * 4096 / 50_000, "cifar10-features": 10.0}
HEURISTIC = {"quick": 6.0, "full": 6.34, "cifar10-features": 6.34}
# For batches of 4,096; adapted so that averages span equally many examples.
_AVERAGING = {"quick": None, "full": 0.998, "cifar10-features": None}


def rows(scale: Scale, track: Track = iter, audits: Audits = Audits()) -> list[Row]:  # noqa: B008 - it is frozen
    """Return a row for each batch size."""
    subject, models = shared.subject_of(scale, audits), shared.MODELS[scale]
    return shared.measure("table2", subject, cases(scale, subject), track, audits, models=models, quality="accuracy")


def cases(scale: Scale, subject: Subject) -> list[Case]:
    """Return the audits of the table."""
    from lastiterate.attacks import GradientSpace

    found = []
    for batch in BATCHES[scale]:
        decay = _AVERAGING[scale]
        averaging = None if decay is None else decay ** (batch / BATCHES[scale][0])
        optimizer = li.SGD(shared.LEARNING_RATE[scale], averaging=averaging)
        run = li.DPSGD.from_batches(subject.problem.size, batch, EPOCHS[scale], 1.0, optimizer=optimizer)
        run = li.calibrate(run, epsilon=HEURISTIC[scale], delta=DELTA, analysis=li.last_iterate)
        found.append(Case(run, GradientSpace("quiet"), {"batch_size": batch}))
    return found


def chart(rows: list[Row]) -> alt.HConcatChart:
    """Return a chart of epsilon and accuracy over batch sizes."""
    return shared.by_batch_size("Batch sizes at one heuristic epsilon (Table 2)", rows)
