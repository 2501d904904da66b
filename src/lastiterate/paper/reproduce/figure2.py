"""Figure 2: gradient-space attacks on the last iterate, among natural data.

As in the paper, noise and sample rate are fixed and the number of steps varies. The paper does not state the noise. We
choose it so that the heuristic epsilon is 7 at the largest number of steps. The paper's canary is a Dirac gradient at a
random parameter. We add a canary at the parameter that natural gradients move least.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lastiterate as li
from lastiterate.common.types import Row, Track, number_in
from lastiterate.formatting import spell
from lastiterate.paper.reproduce import Scale
from lastiterate.paper.reproduce import audited_figures as shared
from lastiterate.paper.reproduce.audited_figures import DELTA, Audits, Case
from lastiterate.plot.style import alt

if TYPE_CHECKING:
    from lastiterate.auditing.audit_target import Subject

TITLE = f"Figure 2: gradient-space attacks among natural data; epsilon at delta {spell(DELTA)}"
TAKES = shared.ALL
notes = shared.notes
HEURISTIC = 7.0  # at the largest number of steps
DIRECTIONS = {"dirac": "a random parameter (paper)", "quiet": "the quietest parameter (ours)"}
STEPS: dict[Scale, dict[float, tuple[int, ...]]] = {
    "quick": {0.01: (30, 100, 300, 1000), 0.08: (10, 30, 100, 300)},
    "cifar10-features": {0.01: (100, 300, 1000), 0.08: (12, 40, 125)},
    "full": {0.01: (100, 300, 1000, 2500), 0.08: (100, 300, 1000, 2500)},
}


def rows(scale: Scale, track: Track = iter, audits: Audits = Audits()) -> list[Row]:  # noqa: B008 - it is frozen
    """Return a row for each audit, that is, for each sample rate, attack and number of steps."""
    subject = shared.subject_of(scale, audits)
    return shared.measure("figure2", subject, cases(scale, subject), track, audits, models=shared.MODELS[scale])


def cases(scale: Scale, subject: Subject) -> list[Case]:
    """Return the audits of the figure. The Dirac canaries of a sample rate are at different random parameters."""
    from lastiterate.attacks import GradientSpace

    found = []
    for rate, steps in STEPS[scale].items():
        trained = runs(rate, steps, shared.LEARNING_RATE[scale])
        found += [Case(run, GradientSpace("dirac", seed=n), {"attack": "dirac"}) for n, run in enumerate(trained)]
        found += [Case(run, GradientSpace("quiet"), {"attack": "quiet"}) for run in trained]
    return found


def runs(rate: float, steps: tuple[int, ...], learning_rate: float) -> list[li.DPSGD]:
    """Return runs of these lengths with the same noise, at which the last run has epsilon ``HEURISTIC``."""
    longest = li.DPSGD(steps[-1], rate, 1.0, optimizer=li.SGD(learning_rate))
    longest = li.calibrate(longest, epsilon=HEURISTIC, delta=DELTA, analysis=li.last_iterate)
    return [longest.replace(steps=count) for count in steps]


def chart(rows: list[Row]) -> alt.HConcatChart:
    """Return a chart with a panel for each sample rate."""
    panels = shared.by_rate(rows, lambda part: f"noise multiplier {spell(number_in(part[0], 'noise_multiplier'))}")
    return shared.by_steps("Gradient-space attacks among natural data (Figure 2)", panels, DIRECTIONS)
