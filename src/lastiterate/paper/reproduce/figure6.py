"""Figure 6: a malicious data set, which makes the last iterate reveal every step.

The noise gives a standard epsilon of 8 at every number of steps, so composition is a horizontal line. The paper audits
its one-bit encoding. We add the exact epsilon of that encoding, and a linear encoding, which loses no information.
"""

from __future__ import annotations

from typing import get_args

import lastiterate as li
from lastiterate.common.types import Row, Track, among, number_in, text_in
from lastiterate.compare_analyses import answer_fields
from lastiterate.formatting import CAVEAT, per_cent, spell
from lastiterate.labels import ANALYSES
from lastiterate.paper.counterexamples.malicious import find_epsilon
from lastiterate.paper.counterexamples.setting import STANDARD, Encoding, Setting
from lastiterate.paper.reproduce import Scale
from lastiterate.paper.reproduce.audited_figures import CONFIDENCE, DELTA, HEURISTIC_NOTE, Audits
from lastiterate.plot import style
from lastiterate.plot.style import FOUND, alt, chart_of, colour_of

TITLE = f"Figure 6: a malicious data set; epsilon at delta {spell(DELTA)}"
TAKES = ("store", "models", "engine")
_FOUND = {"one-bit": "found, one bit a step (the paper's)", "linear": "found, the value of every step (ours)"}
RATES = (0.01, 0.1)  # the paper's
# Number of models per world, for each number of steps. The paper trains 100,000. The cost of a model grows with the
# square of the steps. With fewer than 100 steps, values hardly ever pass the best one-bit threshold.
MODELS = {
    "quick": {100: 100_000, 150: 50_000, 200: 50_000},
    "full": {100: 100_000, 200: 100_000, 300: 100_000, 1000: 20_000},
}


def rows(scale: Scale, track: Track = iter, audits: Audits = Audits()) -> list[Row]:  # noqa: B008 - it is frozen
    """Return a row for each point. Each point has its own seed."""
    points = [(rate, steps, encoding) for rate in RATES for steps in MODELS[scale] for encoding in get_args(Encoding)]
    return [_row(scale, audits, seed, *point) for seed, point in track(list(enumerate(points)))]


def _row(scale: Scale, audits: Audits, seed: int, rate: float, steps: int, encoding: Encoding) -> Row:
    models = MODELS[scale][steps] if audits.models is None else audits.models
    setting = Setting(steps, rate, None, DELTA, models, CONFIDENCE, seed, audits.store, audits.engine)
    run = setting.calibrated_run()
    case = find_epsilon(setting, run, encoding)
    return {
        "sample_rate": rate,
        "steps": steps,
        "noise_multiplier": run.noise_multiplier,
        "encoding": encoding,
        "last_iterate": li.last_iterate(run).epsilon(DELTA),
        "composition": li.composition(run).epsilon(DELTA),
        "exact": case.exact.value,
        "empirical": case.empirical,
        "confidence": CONFIDENCE,
        "models": models,
        "method": case.method,
        **answer_fields({"empirical_upper": case.at_most}),
        "empirical_composition": case.empirical if case.by_composition is None else case.by_composition,
    }


def notes(rows: list[Row]) -> list[str]:
    """Return notes on the paper's claim and on how the numbers were computed."""
    shares = [number_in(row, "exact") / number_in(row, "composition") for row in among(rows, "encoding", "one-bit")]
    return [
        HEURISTIC_NOTE,
        f"One bit per step cannot match composition: its exact epsilon is {spell(min(shares), 2)} to "
        f"{spell(max(shares), 2)} times the epsilon of composition.",
        "Empirical: a lower bound on epsilon at the stated confidence. The method is the composition family for the "
        "linear encoding, and the rates at which bits are set for one bit per step. Empirical composition: the lower "
        "bound by the composition family for both encodings.",
    ]


def chart(rows: list[Row]) -> alt.HConcatChart:
    """Return a chart with a panel for each sample rate. Lines are analyses and exact epsilons; points, lower bounds."""
    rates = dict.fromkeys(number_in(row, "sample_rate") for row in rows)
    drawn = [_panel(rate, among(rows, "sample_rate", rate)) for rate in rates]
    panels: alt.HConcatChart = alt.hconcat(*drawn, spacing=40).resolve_scale(color="shared", shape="shared")
    words = [
        f"Points: at least this was found in last iterates, at {per_cent(CONFIDENCE)} confidence. Dashed: the exact "
        f"epsilon of the paper's one-bit encoding. {CAVEAT}"
    ]
    return style.styled(panels, "A malicious data set (Figure 6)", words)


def _panel(rate: float, rows: list[Row]) -> alt.LayerChart:
    steps = [number_in(row, "steps") for row in rows]
    x = style.log_x("steps", "steps T (log scale)", min(steps) / 1.1, max(steps) * 1.1)
    y = style.epsilon_y(DELTA)
    one_bit, linear = (among(rows, "encoding", encoding) for encoding in ("one-bit", "linear"))
    analyses = ("last_iterate", "composition")
    lines = chart_of(style.long(linear, "epsilon", analyses)).mark_line(strokeWidth=2.5)
    exact = chart_of([{**row, "epsilon": row["exact"]} for row in one_bit])
    found = chart_of([{**row, "epsilon": row["empirical"], "found": _FOUND[text_in(row, "encoding")]} for row in rows])
    shape = style.found_shape({_FOUND["one-bit"]: "circle", _FOUND["linear"]: "square"})
    layers = style.layered(
        lines.encode(x=x, y=y, **style.looks([ANALYSES[name].label for name in analyses])),
        exact.mark_line(strokeWidth=2, strokeDash=[5, 4], color=colour_of(FOUND)).encode(x=x, y=y),
        found.mark_point(filled=True, size=100, opacity=0.9, color=colour_of(FOUND)).encode(x=x, y=y, shape=shape),
    )
    words = f"noise such that composition's epsilon is {spell(STANDARD)}"
    return layers.properties(width=400, height=300, title=alt.TitleParams(f"q = {spell(rate)}", subtitle=words))
