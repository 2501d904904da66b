"""Figure 6: a malicious data set, whose last iterate remembers every step.

The noise gives a standard epsilon of 8 at every number of steps, so composition is a level line. The paper shows its
one-bit encoding. We add the exact epsilon of the one-bit encoding, and the linear encoding, which loses nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from lastiterate.common.types import Row, Track, among, number_in, text_in
from lastiterate.compare_analyses import answer_fields
from lastiterate.formatting import CAVEAT, per_cent, spell
from lastiterate.paper.counterexamples.setting import STANDARD, Encoding, Setting
from lastiterate.paper.reproduce.audited_figures import CONFIDENCE, DELTA, HEURISTIC_NOTE, Audits
from lastiterate.plot.style import (
    FOUND,
    chart_of,
    colour_of,
    epsilon_y,
    found_shape,
    layered,
    log_x,
    long,
    looks,
    styled,
)
from lastiterate.registry import ANALYSES

if TYPE_CHECKING:
    from altair import HConcatChart, LayerChart

    from lastiterate.paper.reproduce import Scale

TITLE = f"Figure 6: a malicious data set; epsilon at delta {spell(DELTA)}"
TAKES = ("store", "models", "engine")
_FOUND = {"one-bit": "found, one bit a step (the paper's)", "linear": "found, the value of every step (ours)"}
RATES = (0.01, 0.1)  # the paper's
# Models per world by number of steps; the paper trains 100,000. The cost of a model grows with the square of the steps.
# With fewer steps the best one-bit threshold is so high that 100,000 models hardly ever pass it.
MODELS = {
    "quick": {100: 100_000, 150: 50_000, 200: 50_000},
    "full": {100: 100_000, 200: 100_000, 300: 100_000, 1000: 20_000},
}


def rows(scale: Scale, track: Track = iter, audits: Audits = Audits()) -> list[Row]:  # noqa: B008 - it is frozen
    """Return every point, each with its own seed."""
    points = [(rate, steps, encoding) for rate in RATES for steps in MODELS[scale] for encoding in get_args(Encoding)]
    return [
        _row(rate, steps, encoding, MODELS[scale][steps] if audits.models is None else audits.models, seed, audits)
        for seed, (rate, steps, encoding) in track(list(enumerate(points)))
    ]


def _row(rate: float, steps: int, encoding: Encoding, models: int, seed: int, audits: Audits) -> Row:
    import lastiterate
    from lastiterate.paper.counterexamples.malicious import find_epsilon

    setting = Setting(
        steps, rate, None, DELTA, models, CONFIDENCE, seed, audits.store, audits.engine, encoding=encoding
    )
    run = setting.calibrated_run()
    case = find_epsilon(setting, run, encoding)
    return {
        "sample_rate": rate,
        "steps": steps,
        "noise_multiplier": run.noise_multiplier,
        "encoding": encoding,
        "last_iterate": lastiterate.last_iterate(run).epsilon(DELTA),
        "composition": lastiterate.composition(run).epsilon(DELTA),
        "exact": case.exact.value,
        "empirical": case.empirical,
        "confidence": CONFIDENCE,
        "models": models,
        "method": case.method,
        **answer_fields({"empirical_upper": case.at_most}),
        "empirical_composition": case.empirical if case.by_composition is None else case.by_composition,
    }


def notes(rows: list[Row]) -> list[str]:
    """Return sentences on the paper's claim and on the basis of the numbers."""
    shares = [number_in(row, "exact") / number_in(row, "composition") for row in among(rows, "encoding", "one-bit")]
    return [
        HEURISTIC_NOTE,
        f"One bit a step cannot match composition: exactly, it leaks {spell(min(shares), 2)} to "
        f"{spell(max(shares), 2)} of it.",
        "Empirical: at least this, at the stated confidence; for the linear encoding by the composition family, for "
        "one bit a step by the rates at which bits are set. Empirical composition: by that family for both.",
    ]


def chart(rows: list[Row]) -> HConcatChart:
    """Return a panel for each sample rate: analyses and exact epsilons as lines, lower bounds as points."""
    import altair as alt

    rates = dict.fromkeys(number_in(row, "sample_rate") for row in rows)
    drawn = [_panel(rate, among(rows, "sample_rate", rate)) for rate in rates]
    panels: HConcatChart = alt.hconcat(*drawn, spacing=40).resolve_scale(color="shared", shape="shared")
    words = [
        f"Points: at least this was found in last iterates, at {per_cent(CONFIDENCE)} confidence. Dashed: the exact "
        f"epsilon of the paper's one-bit encoding. {CAVEAT}"
    ]
    return styled(panels, "A malicious data set (Figure 6)", words)


def _panel(rate: float, rows: list[Row]) -> LayerChart:
    import altair as alt

    steps = [number_in(row, "steps") for row in rows]
    x = log_x("steps", "steps T (log scale)", min(steps) / 1.1, max(steps) * 1.1)
    y = epsilon_y(DELTA)
    one_bit, linear = (among(rows, "encoding", encoding) for encoding in ("one-bit", "linear"))
    lines = chart_of(long(linear, "epsilon", ("last_iterate", "composition"))).mark_line(strokeWidth=2.5)
    exact = chart_of([{**row, "epsilon": row["exact"]} for row in one_bit])
    found = chart_of([{**row, "epsilon": row["empirical"], "found": _FOUND[text_in(row, "encoding")]} for row in rows])
    shape = found_shape({_FOUND["one-bit"]: "circle", _FOUND["linear"]: "square"})
    layers = layered(
        lines.encode(x=x, y=y, **looks([ANALYSES[name].label for name in ("last_iterate", "composition")])),
        exact.mark_line(strokeWidth=2, strokeDash=[5, 4], color=colour_of(FOUND)).encode(x=x, y=y),
        found.mark_point(filled=True, size=100, opacity=0.9, color=colour_of(FOUND)).encode(x=x, y=y, shape=shape),
    )
    words = f"noise such that composition's epsilon is {spell(STANDARD)}"
    return layers.properties(width=400, height=300, title=alt.TitleParams(f"q = {spell(rate)}", subtitle=words))
