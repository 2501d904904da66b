"""Code shared by the figures and tables that are based on audits: subjects, rows and charts.

Delta, confidence and method are the paper's. The method ("PLD approach" in the paper, last-iterate family here) knows
sample rate and steps, and estimates the noise. We choose the threshold before any model is trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import lastiterate as li
from lastiterate.common.types import Row, Track, among, number_in, text_in
from lastiterate.compare_analyses import answer_fields
from lastiterate.formatting import CAVEAT, per_cent, spell, spell_up
from lastiterate.labels import ANALYSES, METHODS
from lastiterate.plot import style
from lastiterate.plot.style import FOUND, alt, chart_of, colour_of, layered
from lastiterate.run import DPSGD

if TYPE_CHECKING:
    from lastiterate.attacks.attack import Attack
    from lastiterate.auditing.audit_target import Subject
    from lastiterate.auditing.engines.engine import Engine
    from lastiterate.auditing.evidence.audit_result import AuditResult
    from lastiterate.lm import UnseenTokens
    from lastiterate.paper.reproduce import Scale

DELTA, CONFIDENCE, METHOD = 1e-5, 0.95, "last-iterate"
MODELS = {"quick": 256, "full": 512, "cifar10-features": 512}  # per world; the paper trains 512
HEURISTIC_NOTE = "Last iterate is a heuristic: it predicts, it does not guarantee. --json prints every row."
ALL = ("data", "store", "models", "engine")
_LINES = ("last_iterate", "composition")
_MODEL = {"quick": "mlp", "full": "wide-resnet", "cifar10-features": "logistic"}
# Bound on the norm of features in uint8, in units of 1/255. Above the norm of 95% of the test images' features of
# EfficientNet-Lite0, in bytes of 6/255.
FEATURE_NORM = 7.0
_CIFAR = (32, 32, 3)
# For the sum of a batch's gradients, at any batch size. De et al. (2022) use 4 for the mean of 4,096.
LEARNING_RATE = {"quick": 1.0 / 64.0, "full": 4.0 / 4096.0, "cifar10-features": 32.0 / 4096.0}


@dataclass(frozen=True)
class Audits:
    """Settings for the audits of a figure."""

    data: str | None = None  # a path; None means the embedded digits (quick scale only)
    model: str | None = None  # for table1: a language model, as a folder or a name on the hub
    text: Path | None = None  # for table1: the dialogues for fine-tuning
    store: Path | None = None  # a folder for scores, one file per audit; stored models are not trained again
    models: int | None = None  # number of models per world; None means the figure's default
    engine: str | Engine = "local"
    is_rehearsal: bool = False  # estimate what the audits cost instead of training


@dataclass(frozen=True, eq=False)
class Case:
    """One audit of a figure. ``labels`` are the columns that distinguish rows with the same run."""

    run: DPSGD
    attack: Attack | UnseenTokens
    labels: Row


def subject_of(scale: Scale, audits: Audits) -> Subject:
    """Return a small network and any data (quick), the paper's model and CIFAR-10 (full), or a linear probe."""
    from lastiterate.auditing.audit_target import find_subject

    if scale == "full" and audits.data is None:
        raise ValueError("data must be given at scale full: a folder with CIFAR-10's own files, as in --data PATH")
    if scale == "cifar10-features" and audits.data is None:
        raise ValueError("features must be given at scale cifar10-features: an .npz file, as in --features FILE")
    norm = FEATURE_NORM if scale == "cifar10-features" else None
    subject = find_subject(audits.data or "digits", _MODEL[scale], None, lambda examples: None, norm)
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
    """Audit the cases one after the other, each with its own seed, or estimate their costs.

    ``models`` is the figure's default number of models per world.
    """
    models = audits.models if audits.models is not None else models
    rows = []
    for seed, case in track(list(enumerate(cases))):
        one = replace(subject, run=case.run)
        if audits.is_rehearsal:
            cost = one.experiment(case.attack, models, seed).cost()
            rows.append({**case.labels, "steps": case.run.steps, "models": cost.models, "seconds": cost.seconds})
            continue
        file = one.default_store(one.experiment(case.attack, models, seed)).name
        result = li.audit(
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
        rows.append(row_of(result, case.labels, quality))
    return rows


def row_of(result: AuditResult, labels: Row, quality: Literal["accuracy", "perplexity"] | None = None) -> Row:
    """Return the row of an audit: its run, the analyses, what was found, and the quality of the models."""
    row = {**labels, "sample_rate": float(result.run.sample_rate), "steps": result.run.steps}
    row["noise_multiplier"] = float(result.run.noise_multiplier)
    row |= answer_fields({name: result.predictions[name] for name in _LINES})
    if quality == "perplexity":
        row |= {"perplexity_before": result.perplexity_before, "perplexity": result.perplexity}
    elif quality:
        row["accuracy"] = result.accuracy
    row |= empirical_fields(result.estimates[METHOD].epsilon, result.confidence, result.models)
    fraction = result.signal / result.ideal_signal if result.ideal_signal else None
    return row | {"signal": result.signal, "signal_fraction": fraction}


def empirical_fields(epsilon: float, confidence: float, models: int) -> Row:
    """Return an empirical epsilon, or the reason why there is none, with its confidence and number of models."""
    fields: Row = {"empirical": epsilon if math.isfinite(epsilon) else None}
    if fields["empirical"] is None:
        fields["empirical_reason"] = "the attack made so few errors that no noise multiplier explains them"
    return fields | {"confidence": confidence, "models": models}


def notes(rows: list[Row]) -> list[str]:
    """Return notes on the method and the signal behind the empirical epsilons."""
    method = (
        "Empirical: a lower bound on epsilon at the stated confidence, by the last-iterate family. Its threshold was "
        "chosen before training."
    )
    signal = "Signal: d' of the scores, and its share of the d' that results if only noise and canary move the score."
    return [HEURISTIC_NOTE, method, *([signal] if "signal" in rows[0] else [])]


# Charts: analyses as lines and lower bounds as points, in panels side by side.

_SHAPES = ("circle", "triangle-up", "square", "diamond")
_ASIDE = 1.03
_ABOVE = 1.08  # end of an axis, relative to its highest point
_TALLEST = 2.5  # composition is cut off if it is above this multiple of the heuristic and the lower bounds


@dataclass(frozen=True)
class Panel:
    """One panel: its title, its constant parameters and its rows."""

    title: str
    parameters: str
    rows: list[Row]


def by_rate(rows: list[Row], parameters: Callable[[list[Row]], str]) -> list[Panel]:
    """Return a panel for each sample rate."""
    parts = [among(rows, "sample_rate", rate) for rate in dict.fromkeys(row["sample_rate"] for row in rows)]
    return [Panel(f"q = {spell(number_in(part[0], 'sample_rate'))}", parameters(part), part) for part in parts]


def by_steps(title: str, panels: Sequence[Panel], attacks: dict[str, str] | None = None) -> alt.HConcatChart:
    """Return a chart of epsilon over the number of steps. ``attacks`` gives labels to values of column ``attack``."""
    drawn = alt.hconcat(*(_panel(panel, attacks) for panel in panels), spacing=40)
    both: alt.HConcatChart = drawn.resolve_scale(color="shared", strokeDash="shared", shape="shared")
    return style.styled(both, title, _words(panels[0].rows), width=125)


def by_batch_size(title: str, rows: list[Row], quality: str = "accuracy") -> alt.HConcatChart:
    """Return a chart of epsilon, and of accuracy or perplexity, over batch sizes."""
    batches = sorted(number_in(row, "batch_size") for row in rows)
    scale = alt.Scale(type="log", domain=[batches[0] / 1.2, batches[-1] * 1.2], nice=False)
    x = alt.X("batch_size:Q", title="batch size (log scale)", scale=scale, axis=alt.Axis(values=batches, format=",~r"))
    top_epsilon, cut = _top_in_picture(rows)
    y = style.epsilon_y(DELTA, between=(0.0, _ABOVE * top_epsilon))
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
        epsilons.properties(title=alt.TitleParams("Privacy", subtitle=cut) if cut else "Privacy", **size),
        layered(points, texts).properties(title=quality.capitalize(), **size),
        spacing=40,
    )
    return style.styled(both, title, _words(rows), width=115)


def _panel(panel: Panel, attacks: dict[str, str] | None) -> alt.LayerChart:
    steps = [number_in(row, "steps") for row in panel.rows]
    top, cut = _top_in_picture(panel.rows)
    x = style.log_x("steps", "steps T (log scale)", min(steps) / 1.15, max(steps) * 1.15)
    y = style.epsilon_y(DELTA, between=(0.0, _ABOVE * top))
    layers = layered(_lines(panel.rows, x, y), _points(panel.rows, x, y, attacks))
    words = "; ".join(filter(None, (panel.parameters, cut)))
    return layers.properties(width=400, height=300, title=alt.TitleParams(panel.title, subtitle=words))


def _top_in_picture(rows: list[Row]) -> tuple[float, str]:
    """Return the highest epsilon that is drawn. If composition is cut off, also return the sentence on it."""
    near, standard = _top(rows, ("last_iterate", "empirical")), [number_in(row, "composition") for row in rows]
    low, high = min(standard), max(standard)
    if high <= _TALLEST * near:
        return max(near, high), ""
    if low > _TALLEST * near:
        return near, f"composition, {spell_up(low, 3)} to {spell_up(high, 3)}, is above the picture"
    return _TALLEST * near, f"composition, up to {spell_up(high, 3)}, leaves the picture"


def _lines(rows: list[Row], x: alt.X, y: alt.Y, points: bool = False) -> alt.Chart:
    field = x.shorthand.partition(":")[0]
    distinct = list({row[field]: row for row in rows}.values())
    marks = chart_of(style.long(distinct, "epsilon", _LINES)).mark_line(
        strokeWidth=2.5, interpolate="monotone", clip=True, point={"size": 60} if points else False
    )
    chart: alt.Chart = marks.encode(x=x, y=y, **style.looks([ANALYSES[name].label for name in _LINES]))
    return chart


def _points(rows: list[Row], x: alt.X, y: alt.Y, attacks: dict[str, str] | None) -> alt.Chart:
    field = x.shorthand.partition(":")[0]
    names = list(attacks.values()) if attacks else [FOUND]
    found = []
    for row in rows:
        if row["empirical"] is not None:
            name = attacks[text_in(row, "attack")] if attacks else FOUND
            aside = _ASIDE ** (2 * names.index(name) - len(names) + 1)
            found.append({**row, "epsilon": row["empirical"], "found": name, field: number_in(row, field) * aside})
    shape = style.found_shape(dict(zip(names, _SHAPES, strict=False)))
    marks = chart_of(found).mark_point(filled=True, size=90, opacity=0.85, color=colour_of(FOUND))
    tips = [alt.Tooltip(f"{name}:Q") for name in ("epsilon", "last_iterate", "composition", "signal_fraction")]
    shown = [tip for tip in tips if str(tip.shorthand)[:-2] in found[0]]
    chart: alt.Chart = marks.encode(x=x, y=y, shape=shape, tooltip=shown)
    return chart


def _top(rows: list[Row], names: Sequence[str]) -> float:
    return max(number_in(row, name) for row in rows for name in names if row[name] is not None)


def _words(rows: list[Row]) -> list[str]:
    models, confidence = rows[0]["models"], number_in(rows[0], "confidence")
    return [
        f"Points: at least this was found, at {per_cent(confidence)} confidence, with {models:,} + {models:,} models "
        f"({METHODS[METHOD].label}, threshold chosen before training). {CAVEAT}"
    ]
