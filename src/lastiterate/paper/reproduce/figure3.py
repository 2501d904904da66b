"""Figure 3: gradient-space attacks among adversarial data. All other gradients are zero, so the heuristic is exact.

The noise gives a standard epsilon of 8 at every number of steps. No model is trained: last iterates are drawn from
their known distribution. Both scales draw as many last iterates as the paper.
"""

from __future__ import annotations

import numpy as np

import lastiterate as li
from lastiterate.common.types import FloatArray, Row, Track
from lastiterate.common.validation import integer
from lastiterate.formatting import spell
from lastiterate.paper.reproduce import Scale
from lastiterate.paper.reproduce import audited_figures as shared
from lastiterate.paper.reproduce.audited_figures import CONFIDENCE, DELTA, Audits
from lastiterate.plot.style import alt

TITLE = f"Figure 3: gradient-space attacks among adversarial data; epsilon at delta {spell(DELTA)}"
TAKES = ("models",)
notes = shared.notes
RATES = (0.01, 0.1)
STANDARD = 8.0  # the paper's value for CIFAR-10; the figure's value is not stated
MODELS = 100_000  # per world, the paper's N
LEAST, MOST = 10, 10_000  # steps
_POINTS = {"quick": 7, "full": 19}


def rows(scale: Scale, track: Track = iter, audits: Audits = Audits()) -> list[Row]:  # noqa: B008 - it is frozen
    """Return a row for each point. Each point has its own seed."""
    steps = np.unique(np.rint(np.geomspace(LEAST, MOST, _POINTS[scale])).astype(np.int64))
    models = audits.models if audits.models is not None else MODELS
    points = [(rate, int(count)) for rate in RATES for count in steps]
    return [_row(rate, count, models, seed) for seed, (rate, count) in track(list(enumerate(points)))]


def _row(rate: float, steps: int, models: int, seed: int) -> Row:
    run = li.DPSGD(steps, rate, 1.0)
    run = li.calibrate(run, epsilon=STANDARD, delta=DELTA, analysis=li.composition)
    found = li.estimate(*draw(run, models, seed), DELTA, CONFIDENCE, shared.METHOD, "a-priori", run)
    return {
        "sample_rate": rate,
        "steps": steps,
        "noise_multiplier": float(run.noise_multiplier),
        "last_iterate": li.last_iterate(run).epsilon(DELTA),
        "composition": li.composition(run).epsilon(DELTA),
        **shared.empirical_fields(found.epsilon, CONFIDENCE, models),
    }


def draw(run: li.DPSGD, models: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Draw the scores of ``models`` runs with the canary, and of ``models`` runs without it."""
    from lastiterate.attacks.adversarial import sample_scores

    present = np.repeat([True, False], integer("models", models))
    scores = sample_scores(run, present, np.random.default_rng(seed))
    return scores[:models], scores[models:]


def chart(rows: list[Row]) -> alt.HConcatChart:
    """Return a chart with a panel for each sample rate."""
    panels = shared.by_rate(rows, lambda _: f"noise such that composition's epsilon is {spell(STANDARD)}")
    return shared.by_steps("Gradient-space attacks among adversarial data (Figure 3)", panels)
