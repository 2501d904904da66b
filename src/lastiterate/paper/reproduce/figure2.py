"""Figure 2: gradient-space attacks on the last iterate, among natural data.

As in the paper, noise and sample rate are fixed and the number of steps varies. The paper does not state the noise. Our
noise makes the heuristic 7 at the largest number of steps. The paper's canary is a Dirac gradient at a random
parameter. We add a canary at the parameter that natural gradients move least.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastiterate.common.types import Row, Track, among, number_in
from lastiterate.formatting import spell
from lastiterate.paper.reproduce.audited_figures import (
    ALL,
    DELTA,
    LEARNING_RATE,
    MODELS,
    Audits,
    Case,
    Panel,
    by_steps,
    measure,
    subject_of,
)
from lastiterate.paper.reproduce.audited_figures import notes as notes

if TYPE_CHECKING:
    from altair import HConcatChart

    from lastiterate.auditing.audit_target import Subject
    from lastiterate.paper.reproduce import Scale
    from lastiterate.run import DPSGD

TITLE = f"Figure 2: gradient-space attacks among natural data; epsilon at delta {spell(DELTA)}"
TAKES = ALL
HEURISTIC = 7.0  # at the largest number of steps
DIRECTIONS = {"dirac": "a random parameter (paper)", "quiet": "the quietest parameter (ours)"}
STEPS = {
    "quick": {0.01: (30, 100, 300, 1000), 0.08: (10, 30, 100, 300)},
    "full": {0.01: (100, 300, 1000, 2500), 0.08: (100, 300, 1000, 2500)},
}


def rows(scale: Scale, track: Track = iter, audits: Audits = Audits()) -> list[Row]:  # noqa: B008 - it is frozen
    """Return a row for each audit: sample rates, attacks, steps."""
    subject = subject_of(scale, audits)
    return measure("figure2", subject, cases(scale, subject), track, audits, models=MODELS[scale])


def cases(scale: Scale, subject: Subject) -> list[Case]:
    """Return the audits of the figure. Each Dirac gradient of a sample rate has its own random parameter."""
    from lastiterate.attacks import GradientSpace

    found = []
    for rate, steps in STEPS[scale].items():
        trained = runs(rate, steps, LEARNING_RATE[scale])
        found += [Case(run, GradientSpace("dirac", seed=n), {"attack": "dirac"}) for n, run in enumerate(trained)]
        found += [Case(run, GradientSpace("quiet"), {"attack": "quiet"}) for run in trained]
    return found


def runs(rate: float, steps: tuple[int, ...], learning_rate: float) -> list[DPSGD]:
    """Return runs of different lengths with one noise, which gives the last run the heuristic ``HEURISTIC``."""
    import lastiterate

    longest = lastiterate.DPSGD(steps[-1], rate, 1.0, optimizer=lastiterate.SGD(learning_rate))
    longest = lastiterate.calibrate(longest, epsilon=HEURISTIC, delta=DELTA, analysis=lastiterate.last_iterate)
    return [longest.replace(steps=count) for count in steps]


def chart(rows: list[Row]) -> HConcatChart:
    """Return a panel for each sample rate."""
    panels = []
    for rate in dict.fromkeys(number_in(row, "sample_rate") for row in rows):
        part = among(rows, "sample_rate", rate)
        noise = number_in(part[0], "noise_multiplier")
        panels.append(Panel(f"q = {spell(rate)}", f"noise multiplier {spell(noise)}", part))
    return by_steps("Gradient-space attacks among natural data (Figure 2)", panels, DELTA, DIRECTIONS)
