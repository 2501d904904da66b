"""Charts of runs: epsilon and error rates, released checkpoints, batch sizes of a plan, and power of an audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lastiterate.auditing.evidence.forecast import CHANCE
from lastiterate.common.errors import BadArgument
from lastiterate.common.types import Row, Track, among, number_in, text_in
from lastiterate.formatting import CAVEAT, caveat_of, describe, spell, spell_exact
from lastiterate.labels import ANALYSES, LAST_ITERATE, METHODS, OWN_COIN, SIDE_BY_SIDE
from lastiterate.plot.style import (
    alt,
    chart_of,
    epsilon_y,
    from_zero,
    layered,
    line_looks,
    lines,
    log_x,
    long,
    looks,
    styled,
)

if TYPE_CHECKING:
    from lastiterate.auditing.evidence.audit_power import Power
    from lastiterate.compare_analyses import Curves
    from lastiterate.privacy.curve import PrivacyCurve, Target
    from lastiterate.run import DPSGD

# Points of each curve. Composition is slow for few steps, and the convex guarantee is always slow.
_STEPS = {"last_iterate": 46, "full_batch": 46, "composition": 16, "no_amplification": 46, "convex": 7}
_RATES = {"last_iterate": 49, "full_batch": 49, "composition": 13, "no_amplification": 49, "convex": 9}
_WIDTH, _HEIGHT = 420, 320


def run_chart(run: DPSGD, delta: float, track: Track = iter, more: Curves | None = None) -> alt.HConcatChart:
    """Return panels of epsilon over steps and of error rates. ``more`` has further analyses."""
    # The prediction is drawn last, so that no other line hides it.
    names = dict.fromkeys(("full_batch", "composition", run.guarantee, *(more or {}), "last_iterate"))
    analyses = {name: ANALYSES[name].curve for name in names} | dict(more or {})
    curves: dict[str, PrivacyCurve] = {}
    reasons = {}
    for name, analysis in analyses.items():
        try:
            curves[name] = analysis(run)
        except ValueError as refusal:
            reasons[name] = str(refusal)
    valid = {name: analyses[name] for name in curves}
    panels = alt.hconcat(_epsilon_panel(run, delta, valid, track), _trade_off_panel(curves, track), spacing=36)
    words = [f"{describe(run)}; delta {spell_exact(delta)}", caveat_of(run)]
    words += [f"Without {ANALYSES[name].label}: {why}" for name, why in reasons.items()]
    return styled(panels, "What the released model leaks", words)


def risk_chart(run: DPSGD, track: Track = iter) -> alt.LayerChart:
    """Return the risk of a person against the baseline: one curve for the guarantee, and one for the prediction."""
    rows: list[Row] = []
    names = (run.guarantee, "last_iterate")
    for name in track(names):
        at = np.linspace(0.0, 1.0, _RATES[name]) ** 3  # dense near 0, where the curves are steep
        risks = ANALYSES[name].curve(run).risk(at).tolist()
        rows += [{"analysis": ANALYSES[name].label, "baseline": x, "risk": y} for x, y in zip(at, risks, strict=True)]
    axis: dict[str, Any] = {"scale": alt.Scale(domain=[0, 1]), "axis": alt.Axis(format="%", tickCount=6)}
    x = alt.X("baseline:Q", title="success against a model trained without the person", **axis)
    y = alt.Y("risk:Q", title="largest success against the released model", **axis)
    ends = [{"baseline": 0.0, "risk": 0.0}, {"baseline": 1.0, "risk": 1.0}]
    nothing = chart_of(ends).mark_line(color="#999", strokeWidth=1, strokeDash=[2, 3]).encode(x=x, y=y)
    look = looks(ANALYSES[name].label for name in names)
    curves = lines(rows, x, y, {"order": "baseline:Q", **look}, interpolate="monotone")
    chart = layered(nothing, curves).properties(width=_WIDTH, height=_HEIGHT)
    return styled(chart, "What can an attacker learn?", [describe(run), caveat_of(run), "Dotted: nothing is learnt."])


def _epsilon_panel(run: DPSGD, delta: float, analyses: Curves, track: Track) -> alt.Chart:
    rows = long(_epsilon_by_steps(run, delta, analyses, track), "epsilon", list(analyses))
    x = log_x("steps", "steps taken (log scale)", 1, run.steps)
    look = looks(ANALYSES[name].label for name in analyses)
    chart = lines(rows, x, epsilon_y(delta), look, interpolate="monotone", point=run.steps == 1)
    return chart.properties(width=_WIDTH, height=_HEIGHT, title="Epsilon as training goes on")


def _epsilon_by_steps(run: DPSGD, delta: float, analyses: Curves, track: Track) -> list[Row]:
    wanted = {name: np.rint(np.geomspace(1, run.steps, _STEPS[name])).astype(np.int64).tolist() for name in analyses}
    rows: list[Row] = []
    for steps in track(sorted({steps for each in wanted.values() for steps in each})):
        row: Row = {"steps": steps}
        for name in (name for name in analyses if steps in wanted[name]):
            try:
                value = analyses[name](run.prefix(steps)).epsilon(delta)
            except ValueError:  # the analysis refuses this prefix of the run, such as one with zero weights
                continue
            if np.isfinite(value):
                row[name] = value
        rows.append(row)
    return rows


def _trade_off_panel(curves: dict[str, PrivacyCurve], track: Track) -> alt.LayerChart:
    rows: list[Row] = []
    for name in track(list(curves)):
        fpr = np.linspace(0.0, 1.0, _RATES[name]) ** 3  # dense near 0, where the curves are steep
        pairs = zip(fpr.tolist(), curves[name].fnr(fpr).tolist(), strict=True)
        rows += [{"analysis": ANALYSES[name].label, "fpr": x, "fnr": y} for x, y in pairs]
    axis = alt.Axis(tickCount=6, format=".1f")
    x = alt.X("fpr:Q", title="false positive rate", scale=alt.Scale(domain=[0, 1]), axis=axis)
    y = alt.Y("fnr:Q", title="false negative rate", scale=alt.Scale(domain=[0, 1]), axis=axis)
    ends = [{"fpr": 0.0, "fnr": 1.0}, {"fpr": 1.0, "fnr": 0.0}]
    chance = chart_of(ends).mark_line(color="#999", strokeWidth=1).encode(x=x, y=y)
    slope = float(np.degrees(np.arctan2(_HEIGHT, _WIDTH)))
    label = chart_of([{"fpr": 0.72, "fnr": 0.28}])
    label = label.mark_text(text="guessing", angle=slope, dy=-11, color="#777", fontSize=13).encode(x=x, y=y)
    look = looks(ANALYSES[name].label for name in curves)
    best = lines(rows, x, y, {"order": "fpr:Q", **look}, interpolate="monotone")
    title = "Errors of the best attack on the released model"
    return layered(chance, label, best).properties(width=_WIDTH, height=_HEIGHT, title=title)


# Checkpoints: epsilon over the number of released iterates.

_COUNTS = 33  # numbers of released iterates per run
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#222222")
_DASHES = ([1, 0], [7, 5], [2, 3], [10, 3, 2, 3], [4, 4], [1, 0])


def releases_chart(runs: list[DPSGD], delta: float) -> alt.Chart:
    """Return epsilon over the number of released iterates, with one line for each of up to six runs."""
    if not 0 < len(runs) <= len(_COLOURS):
        raise BadArgument("runs", f"must be 1 to {len(_COLOURS)}, got {len(runs)}")
    labels = [describe(run.replace(releases=None)) for run in runs]
    rows: list[Row] = []
    for label, run in zip(labels, runs, strict=True):
        counts = np.unique(np.rint(np.geomspace(1, run.steps, _COUNTS)).astype(np.int64)).tolist()
        for count in counts:
            epsilon = LAST_ITERATE.curve(run.replace(releases=count)).epsilon(delta)
            rows.append({"run": label, "releases": count, "epsilon": epsilon})
    colours, dashes = dict(zip(labels, _COLOURS, strict=False)), dict(zip(labels, _DASHES, strict=False))
    x = log_x("releases", "released iterates, equally spaced (log scale)", 1, max(run.steps for run in runs))
    chart = lines(rows, x, epsilon_y(delta), line_looks("run", colours, dashes, columns=1))
    left = "Left: only the last iterate is released. Right end of each line: all iterates are released (composition)."
    return styled(chart.properties(width=620, height=340), "What do checkpoints cost?", [left, caveat_of(*runs)])


# Plan: epsilon under each analysis, and the noise needed, over batch sizes.

_NARROW = 320
_DRAWN = (*SIDE_BY_SIDE, "no_amplification", "convex")


def plan_chart(rows: list[Row], target: Target, words: str, caveat: str = CAVEAT) -> alt.HConcatChart:
    """Return two panels over batch sizes: the epsilons (or mu), and the noise that each analysis needs."""
    sizes = sorted({number_in(row, "batch_size") for row in rows})
    names = list(dict.fromkeys(text_in(row, "analysis") for row in rows))
    shown = [name for name in _DRAWN if name in names or any(row.get(name) is not None for row in rows)]
    width = _WIDTH if len(names) == 1 else _NARROW
    look = looks(ANALYSES[name].label for name in shown)
    x = alt.X(
        "batch_size:Q",
        title="batch size (log scale)",
        scale=alt.Scale(type="log", domain=[sizes[0] / 1.2, sizes[-1] * 1.2], nice=False),
        axis=alt.Axis(values=sizes, format=",d", labelOverlap="greedy", grid=False),
    )
    point = alt.OverlayMarkDef(size=60, filled=True)
    what = target.quantity
    y = epsilon_y(target.delta) if target.delta is not None else alt.Y(f"{what}:Q", title=what, **from_zero())
    leaks = [
        lines(long(among(rows, "analysis", name), what, _DRAWN), x, y, look, point=point).properties(
            title=f"{what.capitalize()} with the noise by {ANALYSES[name].label}", width=width, height=_HEIGHT
        )
        for name in names
    ]
    drawable = [row for row in rows if row["noise_multiplier"] is not None]
    needed = [{**row, "analysis": ANALYSES[text_in(row, "analysis")].label} for row in drawable]
    noise = lines(needed, x, alt.Y("noise_multiplier:Q", title="noise multiplier", **from_zero()), look, point=point)
    noise = noise.properties(title="Noise needed", width=width, height=_HEIGHT)
    reasons = {name: row[f"{name}_reason"] for row in rows for name in _DRAWN if f"{name}_reason" in row}
    notes = [f"Without {ANALYSES[name].label}: {why}" for name, why in reasons.items() if name not in shown]
    return styled(alt.hconcat(*leaks, noise, spacing=36), "Which batch size?", [words, caveat, *notes])


# Power: probability of refuting a claim over the number of models.

_POWER_WIDTH, _POWER_HEIGHT = 620, 340
_LINE, _GOAL, _ASKED = "#0072B2", "#777777", "#D55E00"


def power_chart(found: Power) -> alt.LayerChart:
    """Return the probability of refuting the claim over the number of models, with the goal of 80%."""
    what = "canaries" if found.one_run else "models per world"
    rows: list[Row] = [{"models": models, "chance": chance} for models, chance in found.chances]
    x = log_x("models", f"{what} (log scale)", found.chances[0][0], found.chances[-1][0])
    y = alt.Y(
        "chance:Q",
        title="probability that the claim is refuted",
        scale=alt.Scale(domain=[0.0, 1.0]),
        axis=alt.Axis(format="%", tickCount=6),
    )
    tooltip = ["models:Q", alt.Tooltip("chance:Q", format=".1%")]
    point = alt.OverlayMarkDef(size=25, filled=True, color=_LINE)
    line = lines(rows, x, y, {"tooltip": tooltip}, color=_LINE, point=point)
    goal = chart_of([{"chance": CHANCE}]).mark_rule(color=_GOAL, strokeDash=[6, 4]).encode(y=y)
    asked = chart_of([{"models": found.models, "chance": found.chance}])
    layers = [goal, line, asked.mark_point(size=140, filled=True, color=_ASKED, opacity=1).encode(x=x, y=y)]
    if found.needed is not None:
        right = found.needed > 0.5 * found.chances[-1][0]  # the text must be on the left of the rule to fit
        needed = chart_of([{"models": found.needed, "chance": 0.04, "words": f"{found.needed:,} for 80%"}])
        text = needed.mark_text(align="right" if right else "left", fontSize=14, dx=-6 if right else 6)
        layers.append(needed.mark_rule(color=_GOAL, strokeDash=[2, 3]).encode(x=x))
        layers.append(text.encode(x=x, y=y, text="words:N"))
    best = max(found.rows, key=lambda each: each.detectable)
    words = [
        describe(found.run),
        *found.sentences(),
        f"If training is correct, they find at least epsilon {spell(best.detectable)} with probability 80% "
        f"({METHODS[best.method].label}{f', if {OWN_COIN}' if found.one_run else ''}).",
        *found.notes[:1],
    ]
    chart = layered(*layers).properties(width=_POWER_WIDTH, height=_POWER_HEIGHT)
    return styled(chart, f"How many {what} are needed?", words, 100)
