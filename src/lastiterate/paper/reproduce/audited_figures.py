"""Shared parts of figures and tables that rest on audits: training at each scale, rows of audits, and charts.

The paper sets delta, confidence and the "PLD approach", in which sample rate and steps are known and the noise is
estimated (our last-iterate family). Our threshold is chosen before any model is trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lastiterate.common.types import Row, number_in, text_in
from lastiterate.compare_analyses import answer_fields
from lastiterate.formatting import CAVEAT, per_cent, spell, spell_up
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
from lastiterate.registry import ANALYSES, METHODS

if TYPE_CHECKING:
    from altair import Chart, HConcatChart, LayerChart, X, Y

    from lastiterate.attacks.attack import Attack
    from lastiterate.auditing.audit_target import Subject
    from lastiterate.auditing.engines.engine import Engine
    from lastiterate.auditing.evidence.audit_result import AuditResult
    from lastiterate.common.types import Row, Track
    from lastiterate.lm import UnseenTokens
    from lastiterate.paper.reproduce import Scale
    from lastiterate.run import DPSGD

DELTA, CONFIDENCE, METHOD = 1e-5, 0.95, "last-iterate"
MODELS = {"quick": 256, "full": 512}  # per world; the paper trains 512
HEURISTIC_NOTE = "Last iterate is a heuristic: it predicts, it does not guarantee. --json prints every row."
ALL = ("data", "store", "models", "engine")
_MODEL = {"quick": "mlp", "full": "wide-resnet"}
_CIFAR = (32, 32, 3)
# For the sum of a batch's gradients, at any batch size. De et al. (2022) use 4 for the mean of 4,096.
LEARNING_RATE = {"quick": 1.0 / 64.0, "full": 4.0 / 4096.0}


@dataclass(frozen=True)
class Audits:
    """Settings for the audits of a figure.

    Args:
        data: path of the data set. None: the embedded digits, which are for the quick scale only.
        model: a language model, as folder or name on the hub, for the table of language models.
        text: the dialogues for fine-tuning the language model.
        store: a folder for the scores, one file per audit. Stored models are not trained again. None: no store.
        models: number of models per world. None: the figure's default.
        engine: "local", "ray", or an engine object.
    """

    data: str | None = None
    model: str | None = None
    text: Path | None = None
    store: Path | None = None
    models: int | None = None
    engine: str | Engine = "local"


@dataclass(frozen=True, eq=False)
class Case:
    """One audit of a figure. ``labels`` are the columns that distinguish rows with the same run."""

    run: DPSGD
    attack: Attack | UnseenTokens
    labels: Row


def subject_of(scale: Scale, audits: Audits) -> Subject:
    """Return a small network on any data at the quick scale, and the paper's model on CIFAR-10 at full scale."""
    from lastiterate.auditing.audit_target import find_subject

    if scale == "full" and audits.data is None:
        raise ValueError("data must be given at scale full: a folder with CIFAR-10's own files, as in --data PATH")
    subject = find_subject(audits.data or "digits", _MODEL[scale], None, lambda examples: None)
    shape = subject.problem.examples[0].shape[1:]
    if scale == "full" and shape != _CIFAR:
        raise ValueError(f"data must be images of shape {_CIFAR} at scale full, as CIFAR-10's are, got shape {shape}")
    return subject


def measure(
    name: str,
    subject: Subject,
    cases: Sequence[Case],
    track: Track,
    audits: Audits,
    *,
    models: int,
    quality: Literal["accuracy", "perplexity"] | None = None,
) -> list[Row]:
    """Audit the cases one after the other. Each case has its own seed, so that rows do not share luck.

    ``models`` is the number per world if ``audits`` gives none.
    """
    import lastiterate

    models = audits.models if audits.models is not None else models
    rows = []
    for seed, case in track(list(enumerate(cases))):
        one = replace(subject, run=case.run)
        file = one.default_store(one.experiment(case.attack, models, seed)).name
        result = lastiterate.audit(
            case.run,
            subject.problem,
            case.attack,
            models,
            seed,
            None if audits.store is None else audits.store / f"{name}-{file}",
            audits.engine,
            delta=DELTA,
            confidence=CONFIDENCE,
            methods=[METHOD],
            test=subject.test if quality == "accuracy" else None,
            data=subject.words,
        )
        rows.append(_row(case.labels, result, quality))
    return rows


def _row(labels: Row, result: AuditResult, quality: str | None) -> Row:
    run, found = result.run, result.estimates[METHOD].epsilon
    row: Row = {**labels, "sample_rate": float(run.sample_rate), "steps": run.steps}
    row["noise_multiplier"] = float(run.noise_multiplier)
    row |= answer_fields({name: result.predictions[name] for name in ("last_iterate", "composition")})
    if quality == "perplexity":
        row["perplexity_before"] = result.perplexity_before
    if quality:
        row[quality] = getattr(result, quality)
    row |= empirical_fields(found, result.confidence, result.models)
    fraction = result.signal / result.ideal_signal if result.ideal_signal else None
    return row | {"signal": result.signal, "signal_fraction": fraction}


def empirical_fields(epsilon: float, confidence: float, models: int) -> Row:
    """Return an empirical epsilon with its confidence and number of models, or the reason for having none."""
    fields: Row = {"empirical": epsilon if math.isfinite(epsilon) else None}
    if fields["empirical"] is None:
        fields["empirical_reason"] = "no noise of this family explains so few errors"
    return fields | {"confidence": confidence, "models": models}


def notes(rows: list[Row]) -> list[str]:
    """Return sentences on the method and the signal behind the empirical epsilons."""
    sentences = [
        HEURISTIC_NOTE,
        "Empirical: at least this, at the stated confidence, by the last-iterate family at a threshold chosen without "
        "looking at the scores.",
    ]
    if "signal" in rows[0]:
        sentences.append(
            "Signal: d', and the fraction of what it would be if nothing but noise and canary moved the score."
        )
    return sentences


# Charts: analyses as lines and lower bounds as points, in panels side by side.

_LINES = ("last_iterate", "composition")
_SHAPES = ("circle", "triangle-up", "square", "diamond")
_ASIDE = 1.03
_ABOVE = 1.08  # end of an axis over its highest point
_TALLEST = 2.5  # composition above this multiple of heuristic and lower bounds is cut off


@dataclass(frozen=True)
class Panel:
    """One panel: its title, its constant parameters and its rows."""

    title: str
    parameters: str
    rows: list[Row]


def by_steps(title: str, panels: Sequence[Panel], delta: float, attacks: dict[str, str] | None = None) -> HConcatChart:
    """Return epsilon over the number of steps. ``attacks`` names the values in the column ``attack``."""
    import altair as alt

    drawn = [_panel(panel, delta, attacks) for panel in panels]
    both: HConcatChart = alt.hconcat(*drawn, spacing=40).resolve_scale(
        color="shared", strokeDash="shared", shape="shared"
    )
    return styled(both, title, _words([row for panel in panels for row in panel.rows]), width=125)


def by_batch_size(title: str, rows: list[Row], delta: float, quality: str = "accuracy") -> HConcatChart:
    """Return epsilon, and accuracy or perplexity, over batch sizes."""
    import altair as alt

    batches = sorted(number_in(row, "batch_size") for row in rows)
    scale = alt.Scale(type="log", domain=[batches[0] / 1.2, batches[-1] * 1.2], nice=False)
    x = alt.X("batch_size:Q", title="batch size (log scale)", scale=scale, axis=alt.Axis(values=batches, format=",~r"))
    top = _top(rows, ("last_iterate", "composition", "empirical"))
    y = epsilon_y(delta, between=(0.0, _ABOVE * top))
    epsilons = layered(_lines(rows, x, y, points=True), _points(rows, x, y, None))
    if quality == "accuracy":
        words, top, axis = "test accuracy", 1.0, alt.Axis(format="%", tickCount=6)
    else:
        words, top, axis = "perplexity on held-out text", _ABOVE * _top(rows, (quality,)), alt.Axis(tickCount=6)
    good = alt.Y(f"{quality}:Q", title=words, scale=alt.Scale(domain=[0, top]), axis=axis)
    points = chart_of(rows).mark_point(filled=True, size=90, color="#222", opacity=1.0).encode(x=x, y=good)
    measured = [number_in(row, quality) for row in rows]
    spelled = [f"{100 * value:.1f}%" if quality == "accuracy" else spell(value) for value in measured]
    numbers = chart_of([{**row, "text": text} for row, text in zip(rows, spelled, strict=True)])
    texts = numbers.mark_text(dy=18, fontSize=13).encode(x=x, y=good, text="text:N")
    size = {"width": 380, "height": 300}
    both = alt.hconcat(
        epsilons.properties(title="Privacy", **size),
        layered(points, texts).properties(title=quality.capitalize(), **size),
        spacing=40,
    )
    return styled(both, title, _words(rows), width=115)


def _panel(panel: Panel, delta: float, attacks: dict[str, str] | None) -> LayerChart:
    import altair as alt

    steps = [number_in(row, "steps") for row in panel.rows]
    near, far = _top(panel.rows, ("last_iterate", "empirical")), _top(panel.rows, ("composition",))
    words = panel.parameters
    if far > _TALLEST * near:
        beyond = [number_in(row, "composition") for row in panel.rows]
        words += f"; composition, {spell_up(min(beyond), 3)} to {spell_up(max(beyond), 3)}, is above the picture"
    x = log_x("steps", "steps T (log scale)", min(steps) / 1.15, max(steps) * 1.15)
    top = near if far > _TALLEST * near else max(near, far)
    y = epsilon_y(delta, between=(0.0, _ABOVE * top))
    layers = layered(_lines(panel.rows, x, y), _points(panel.rows, x, y, attacks))
    return layers.properties(width=400, height=300, title=alt.TitleParams(panel.title, subtitle=words))


def _lines(rows: list[Row], x: X, y: Y, points: bool = False) -> Chart:
    """Return the analyses as lines, clipped to the picture."""
    field = x.shorthand.partition(":")[0]
    distinct = list({row[field]: row for row in rows}.values())
    marks = chart_of(long(distinct, "epsilon", _LINES)).mark_line(
        strokeWidth=2.5, interpolate="monotone", clip=True, point={"size": 60} if points else False
    )
    chart: Chart = marks.encode(x=x, y=y, **looks([ANALYSES[name].label for name in _LINES]))
    return chart


def _points(rows: list[Row], x: X, y: Y, attacks: dict[str, str] | None) -> Chart:
    """Return the lower bounds found as points. Points of different attacks are slightly apart."""
    import altair as alt

    field = x.shorthand.partition(":")[0]
    names = list(attacks.values()) if attacks else [FOUND]
    found = []
    for row in rows:
        if row["empirical"] is not None:
            name = attacks[text_in(row, "attack")] if attacks else FOUND
            aside = _ASIDE ** (2 * names.index(name) - len(names) + 1)
            found.append({**row, "epsilon": row["empirical"], "found": name, field: number_in(row, field) * aside})
    shape = found_shape(dict(zip(names, _SHAPES, strict=False)))
    marks = chart_of(found).mark_point(filled=True, size=90, opacity=0.85, color=colour_of(FOUND))
    tips = [alt.Tooltip(f"{name}:Q") for name in ("epsilon", "last_iterate", "composition", "signal_fraction")]
    shown = [tip for tip in tips if str(tip.shorthand)[:-2] in found[0]]
    chart: Chart = marks.encode(x=x, y=y, shape=shape, tooltip=shown)
    return chart


def _top(rows: list[Row], names: Sequence[str]) -> float:
    return max(number_in(row, name) for row in rows for name in names if row[name] is not None)


def _words(rows: list[Row]) -> list[str]:
    models, confidence = rows[0]["models"], number_in(rows[0], "confidence")
    return [
        f"Points: at least this was found, at {per_cent(confidence)} confidence, with {models:,} + {models:,} models "
        f"({METHODS[METHOD].label}, threshold chosen before training). {CAVEAT}"
    ]
