"""Figure 3: gradient-space attacks among adversarial data. All other gradients are zero, so the heuristic is exact.

The noise gives a standard epsilon of 8 at every number of steps. No gradient is computed: last iterates are drawn from
their distribution, as many as in the paper, at both scales.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lastiterate.common.types import Row, Track, among, number_in
from lastiterate.formatting import spell
from lastiterate.paper.reproduce.audited_figures import (
    CONFIDENCE,
    DELTA,
    METHOD,
    Audits,
    Panel,
    by_steps,
    empirical_fields,
)
from lastiterate.paper.reproduce.audited_figures import notes as notes

if TYPE_CHECKING:
    from altair import HConcatChart

    from lastiterate.common.types import FloatArray
    from lastiterate.paper.reproduce import Scale
    from lastiterate.run import DPSGD

TITLE = f"Figure 3: gradient-space attacks among adversarial data; epsilon at delta {spell(DELTA)}"
TAKES = ("models",)
RATES = (0.01, 0.1)
STANDARD = 8.0  # the paper's value for CIFAR-10; the figure's value is not stated
MODELS = 100_000  # per world, the paper's N
LEAST, MOST = 10, 10_000  # steps
_POINTS = {"quick": 7, "full": 19}


def rows(scale: Scale, track: Track = iter, audits: Audits = Audits()) -> list[Row]:  # noqa: B008 - it is frozen
    """Return every point, each with its own seed."""
    steps = np.unique(np.rint(np.geomspace(LEAST, MOST, _POINTS[scale])).astype(np.int64))
    models = audits.models if audits.models is not None else MODELS
    points = [(rate, int(count)) for rate in RATES for count in steps]
    return [_row(rate, count, models, seed) for seed, (rate, count) in track(list(enumerate(points)))]


def _row(rate: float, steps: int, models: int, seed: int) -> Row:
    import lastiterate

    run = lastiterate.DPSGD(steps, rate, 1.0)
    run = lastiterate.calibrate(run, epsilon=STANDARD, delta=DELTA, analysis=lastiterate.composition)
    scores_in, scores_out = draw(run, models, seed)
    found = lastiterate.estimate(scores_in, scores_out, DELTA, CONFIDENCE, METHOD, "a-priori", run)
    return {
        "sample_rate": rate,
        "steps": steps,
        "noise_multiplier": float(run.noise_multiplier),
        "last_iterate": lastiterate.last_iterate(run).epsilon(DELTA),
        "composition": lastiterate.composition(run).epsilon(DELTA),
        **empirical_fields(found.epsilon, CONFIDENCE, models),
    }


def draw(run: DPSGD, models: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Draw the scores of ``models`` runs with the canary, and of as many without it."""
    from lastiterate.attacks import Adversarial
    from lastiterate.common.validation import integer

    present = np.repeat([True, False], integer("models", models))
    scores = Adversarial("exact").sample(run, present, np.random.default_rng(seed))
    return scores[:models], scores[models:]


def chart(rows: list[Row]) -> HConcatChart:
    """Return a panel for each sample rate."""
    panels = [
        Panel(
            f"q = {spell(rate)}",
            f"noise such that composition's epsilon is {spell(STANDARD)}",
            among(rows, "sample_rate", rate),
        )
        for rate in dict.fromkeys(number_in(row, "sample_rate") for row in rows)
    ]
    return by_steps("Gradient-space attacks among adversarial data (Figure 3)", panels, DELTA)
