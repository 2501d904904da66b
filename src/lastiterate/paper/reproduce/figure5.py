"""Figure 5: epsilon with a quadratic regulariser (alpha = 1/2), divided by the largest heuristic epsilon up to T steps.

The paper shows an upper bound, computed with a rounded support, on a grid that it does not state. Here numerator and
denominator are exact, and the paper's bound is computed too. The largest ratio is also searched between grid points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import minimize_scalar

import lastiterate as li
from lastiterate.common.types import Row, Track, among, largest, number_in, text_in
from lastiterate.formatting import per_cent, spell
from lastiterate.paper.counterexamples.quadratic import rounded_support
from lastiterate.plot.style import alt, chart_of, layered, log_x, panel_title, styled
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.mixture import RELATIVE_ERROR

if TYPE_CHECKING:
    from lastiterate.paper.reproduce import Scale
    from lastiterate.paper.reproduce.audited_figures import Audits

DELTA = 1e-6  # from the figure's caption, like the panels
ONE_STEP = {"1": 1.0, "2": 2.0}  # epsilon of a single step, by panel
CLAIM = 1.03  # "the violation is small (<= 3%)"
STEPS = (*range(1, 13), 15, 20, 30, 50, 100, 200, 500, 1000)

TITLE = f"Figure 5: epsilon with alpha = 1/2, divided by the largest heuristic epsilon up to T; delta {spell(DELTA)}"
TAKES = ()
_RATES = {"quick": 30, "full": 120}
_LEAST_RATE, _MOST_RATE = 0.005, 0.95
_SETTLED = 64  # weights of steps before the last 64 are below 2^-63, which changes no digit of a bracket
_NEARLY = 0.97  # share of the largest ratio on the grid; peaks between grid points are at most 2% higher
_DRAWN = {2: "#E69F00", 4: "#D55E00", 6: "#CC79A7", 10: "#0072B2", 20: "#009E73"}  # Okabe and Ito's colours by steps
_DRAWN_RATES, _DRAWN_RATIOS = (0.02, 0.5), (0.8, 1.1)
_EXACT, _PAPER = "exact", "the paper's upper bound (rounded support)"


def rows(scale: Scale, track: Track = iter, audits: Audits | None = None) -> list[Row]:
    """Return rows for all grid points and for the sample rates at which the ratio peaks. No models are trained."""
    rates = np.geomspace(_LEAST_RATE, _MOST_RATE, _RATES[scale]).tolist()
    columns = [(panel, rate) for panel in ONE_STEP for rate in rates]
    found = [row for panel, rate in track(columns) for row in _column(panel, rate)]
    peaks = [(panel, rate) for panel in ONE_STEP for rate in _peak_rates(among(found, "panel", panel))]
    return found + [row for panel, rate in peaks for row in _column(panel, rate)]


def notes(rows: list[Row]) -> list[str]:
    """Return notes on the largest ratios and on the effect of the paper's rounding."""
    worst = [largest(among(rows, "panel", panel), "ratio_lower") for panel in ONE_STEP]
    found = " and ".join(
        f"{row['ratio_lower']:.4f} where one step is {_guarantee(text_in(row, 'panel'))} (T = {row['steps']}, "
        f"q = {row['sample_rate']:.5f}, sigma = {row['noise_multiplier']:.5f})"
        for row in worst
    )
    bound, rounding = largest(rows, "paper_method_ratio"), max(rows, key=_rounding)
    return [
        f"The largest ratios are {found}; the paper says at most {spell(CLAIM)}.",
        f"The paper's method gives up to {bound['paper_method_ratio']:.4f}: its rounding adds up to "
        f"{per_cent(round(_rounding(rounding), 4))} (T = {rounding['steps']}, q = "
        f"{spell(number_in(rounding, 'sample_rate'))}). The paper expects at most 5%.",
    ]


def chart(rows: list[Row]) -> alt.HConcatChart:
    """Return a chart of the ratio over the sample rate, exact and by the paper's method, for some numbers of steps."""
    panels = [_panel(among(rows, "panel", panel), panel) for panel in ONE_STEP]
    words = [
        "Epsilon of a linear loss with quadratic regulariser (alpha = 1/2), divided by what the heuristic predicts at "
        "most for T steps or fewer: above 1 it is too low. Dashed: the upper bound that the paper draws, raised by "
        "its rounding."
    ]
    both: alt.HConcatChart = alt.hconcat(*panels, spacing=30).resolve_scale(y="shared")
    return styled(both, "A quadratic regulariser exceeds the heuristic (Figure 5)", words)


def _panel(rows: list[Row], panel: str) -> alt.LayerChart:
    x = log_x("sample_rate", "sample rate q (log scale)", *_DRAWN_RATES)
    y = alt.Y("ratio:Q", title="ratio of epsilons", scale=alt.Scale(domain=_DRAWN_RATIOS, nice=False))
    legend: dict[str, Any] = {"title": None, "orient": "bottom", "labelLimit": 0}
    legend |= {"symbolSize": 500, "symbolStrokeWidth": 2.5}
    names = [f"T = {steps}" for steps in _DRAWN]
    colours = alt.Scale(domain=names, range=list(_DRAWN.values()))
    dashes = alt.Scale(domain=[_EXACT, _PAPER], range=[[1, 0], [4, 4]])
    points: list[Row] = [
        {"sample_rate": row["sample_rate"], "steps": f"T = {row['steps']}", "kind": kind, "ratio": row[name]}
        for row in rows
        if row["steps"] in _DRAWN
        for kind, name in ((_EXACT, "ratio_lower"), (_PAPER, "paper_method_ratio"))
    ]
    colour = alt.Color("steps:N", scale=colours, legend=alt.Legend(symbolType="stroke", **legend))
    dash = alt.StrokeDash("kind:N", scale=dashes, legend=alt.Legend(**legend))
    lines = chart_of(points).mark_line(clip=True, strokeWidth=2.2).encode(x=x, y=y, color=colour, strokeDash=dash)
    levels: list[Row] = [{"ratio": 1.0, "text": ""}, {"ratio": CLAIM, "text": "the paper: at most 3%"}]
    rules = chart_of(levels).mark_rule(color="#444").encode(y=y)
    words = chart_of(levels).mark_text(dy=-8, color="#444", align="right", dx=-5, fontSize=13)
    words = words.encode(x=alt.value("width"), y=y, text="text:N")
    worst = largest(rows, "ratio_lower")
    label = (
        f"largest: {worst['ratio_lower']:.4f} at T = {worst['steps']}, q = {spell(number_in(worst, 'sample_rate'), 3)}"
    )
    mark = chart_of([{**worst, "ratio": worst["ratio_lower"], "text": label}])
    point = mark.mark_point(filled=True, size=90, color="#222", opacity=1.0).encode(x=x, y=y)
    value = mark.mark_text(fontWeight="bold", align="right", dx=-5, fontSize=13)
    value = value.encode(x=alt.value("width"), y=alt.value(14), text="text:N")
    title = panel_title(f"One step is {_guarantee(panel)}", ["with sigma set for it at every q"], 60)
    return layered(rules, words, lines, point, value).properties(width=430, height=330, title=title)


def _column(panel: str, rate: float) -> list[Row]:
    noise = _noise(panel, rate)
    counts = np.arange(1, max(STEPS) + 1)
    predicted = np.maximum.accumulate(li.last_iterate_epsilon(counts, rate, noise, DELTA))
    error = RELATIVE_ERROR * np.maximum(1.0, predicted)
    settled = {min(steps, _SETTLED) for steps in STEPS}
    exact = {steps: _quadratic(steps, rate, noise).bracket(DELTA) for steps in settled}
    rounded = {steps: rounded_support(steps, rate, noise).epsilon(DELTA) for steps in settled}
    return [
        {
            "panel": panel,
            "sample_rate": rate,
            "steps": steps,
            "noise_multiplier": noise,
            "ratio_lower": float(exact[min(steps, _SETTLED)][0] / (predicted + error)[steps - 1]),
            "ratio_upper": float(exact[min(steps, _SETTLED)][1] / (predicted - error)[steps - 1]),
            "paper_method_ratio": float(rounded[min(steps, _SETTLED)] / predicted[steps - 1]),
        }
        for steps in STEPS
    ]


def _noise(panel: str, rate: float) -> float:
    one_step = li.DPSGD(1, rate, 1.0)
    run = li.calibrate(one_step, epsilon=ONE_STEP[panel], delta=DELTA, analysis=li.last_iterate)
    return float(run.noise_multiplier)


def _quadratic(steps: int, rate: float, noise: float) -> PrivacyCurve:
    return li.last_iterate(li.DPSGD(steps, rate, noise, weights=0.5 ** np.arange(steps)[::-1]))


def _peak_rates(rows: list[Row]) -> list[float]:
    """Return the sample rates at which the ratio peaks, for numbers of steps that are drawn or may have the maximum."""
    peaks = {steps: largest(among(rows, "steps", steps), "ratio_lower") for steps in STEPS[1:]}
    near = _NEARLY * max(number_in(peak, "ratio_lower") for peak in peaks.values())
    rates = sorted({number_in(row, "sample_rate") for row in rows})
    found = []
    for steps, peak in peaks.items():
        if steps in _DRAWN or number_in(peak, "ratio_lower") > near:
            place = rates.index(number_in(peak, "sample_rate"))
            around = rates[max(place - 1, 0) : place + 2]
            found.append(_peak_rate(text_in(peak, "panel"), steps, around[0], around[-1]))
    return found


def _peak_rate(panel: str, steps: int, low: float, high: float) -> float:
    def minus_ratio(rate: float) -> float:
        noise = _noise(panel, float(rate))
        predicted = np.max(li.last_iterate_epsilon(np.arange(1, steps + 1), float(rate), noise, DELTA))
        return -float(_quadratic(steps, float(rate), noise).epsilon(DELTA) / predicted)

    return float(minimize_scalar(minus_ratio, bounds=(low, high), method="bounded", options={"xatol": 1e-10}).x)


def _rounding(row: Row) -> float:
    """Return the relative increase of epsilon that the paper's rounding causes."""
    return number_in(row, "paper_method_ratio") / number_in(row, "ratio_upper") - 1.0


def _guarantee(panel: str) -> str:
    return f"({spell(ONE_STEP[panel])}, {spell(DELTA)})-DP"
