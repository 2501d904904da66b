"""Figure 4: input-space attacks. The canary is a mislabelled example, and the score is the loss on it.

The other examples are blank images in one panel and natural images in the other. The paper's sample rate is 0.01. The
quick scale uses 0.08, because the digits are a small data set: at 0.01 the canary would be used too rarely to be
detected. The noise is chosen as in figure 2. We add ClipBKD canaries (Jagielski et al. 2020).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastiterate.common.types import Row, Track, among, number_in
from lastiterate.formatting import spell
from lastiterate.paper.reproduce import Scale
from lastiterate.paper.reproduce import audited_figures as shared
from lastiterate.paper.reproduce.audited_figures import DELTA, Audits, Case
from lastiterate.paper.reproduce.figure2 import runs
from lastiterate.plot.style import alt

if TYPE_CHECKING:
    from lastiterate.auditing.audit_target import Subject

TITLE = f"Figure 4: input-space attacks; epsilon at delta {spell(DELTA)}"
TAKES = shared.ALL
notes = shared.notes
SETTINGS = {"blank": "all other images blank", "natural": "natural data"}
CANARIES = {"mislabelled": "mislabelled example (paper)", "clipbkd": "ClipBKD (extra)"}
RATE = {"quick": 0.08, "full": 0.01, "cifar10-features": 0.08}
STEPS = {"quick": (30, 100, 300), "full": (100, 300, 1000, 2500), "cifar10-features": (125,)}


def rows(scale: Scale, track: Track = iter, audits: Audits = Audits()) -> list[Row]:  # noqa: B008 - it is frozen
    """Return a row for each audit, that is, for each setting, canary and number of steps."""
    subject = shared.subject_of(scale, audits)
    return shared.measure("figure4", subject, cases(scale, subject), track, audits, models=shared.MODELS[scale])


def cases(scale: Scale, subject: Subject) -> list[Case]:
    """Return the audits of the figure."""
    from lastiterate.attacks import InputSpace

    return [
        Case(run, InputSpace(canary, setting), {"setting": setting, "attack": canary})  # type: ignore[arg-type]
        for setting in SETTINGS
        for canary in CANARIES
        for run in runs(RATE[scale], STEPS[scale], shared.LEARNING_RATE[scale])
    ]


def chart(rows: list[Row]) -> alt.HConcatChart:
    """Return a chart with a panel for each setting."""
    panels = []
    for setting, words in SETTINGS.items():
        part = among(rows, "setting", setting)
        rate, noise = (spell(number_in(part[0], name)) for name in ("sample_rate", "noise_multiplier"))
        panels.append(shared.Panel(words.capitalize(), f"q = {rate}, noise multiplier {noise}", part))
    return shared.by_steps("Input-space attacks (Figure 4)", panels, CANARIES)
