"""Answers of the explorer page: epsilons, chart lines, calibrated noise and batch-size plans of a run.

The functions take the texts of the form and return JSON values. They also export the run as a command and as Python
code. They run in the processes of ``workers.py``. Bad input raises a ValueError with one sentence.
"""

import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from time import monotonic
from typing import Literal

import numpy as np

from lastiterate.auditing.evidence.audit_result import KeyNumber, key_numbers
from lastiterate.citation import risk_sentences, sentence
from lastiterate.common.errors import BadArgument
from lastiterate.common.types import JsonObject, Row
from lastiterate.common.validation import number, written_number
from lastiterate.compare_analyses import Answer, Curves, ask, ask_all, noise_rows
from lastiterate.formatting import describe, neighbours_of, spell_exact, spell_up
from lastiterate.labels import ANALYSES
from lastiterate.privacy.curve import PrivacyCurve, Target
from lastiterate.run import DPSGD
from lastiterate.web.form_fields import ASKED, NAMES, Reader, counting

# Export: the run as a command and as Python code.

# Default values, which the exported command omits.
_USUAL = {"sampling": "poisson", "group_size": "1", "min_separation": "1"}


def command_of(texts: Mapping[str, str], delta: str) -> str:
    """Return the command that prints the same answer. ``texts`` maps the names of options to their texts."""
    given = {name: text.strip() for name, text in texts.items() if text.strip() != _USUAL.get(name)}
    options = [f"--{name.replace('_', '-')} {shlex.quote(text)}" for name, text in {**given, "delta": delta}.items()]
    return " ".join(["lastiterate epsilon", *options])


def python_of(run: DPSGD, delta: float, contraction: float | None = None) -> str:
    """Return Python code that computes the same answer. A contraction adds the guarantee for convex losses."""
    lines = ["import lastiterate as li", "", "run = " + re.sub(r"\b(DPSGD|SGD|Adam)\(", r"li.\1(", repr(run))]
    lines += [f"print(li.last_iterate(run).epsilon({delta!r}))  # a heuristic"]
    if contraction is None:
        return "\n".join([*lines, f"print(li.sentence(run, {delta!r}))"])
    lines += [f'curves = {{"convex": lambda run: li.convex(run, contraction={contraction!r})}}']
    return "\n".join([*lines, f"print(li.sentence(run, {delta!r}, curves))"])


Part = Literal["quick", "slow", "convex", "sampling"]

QUICK = ("full_batch", "last_iterate")
BASELINES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # chances of an attacker without the model
SCHEMES = ("poisson", "balls-in-bins", "shuffled")  # ways to draw batches that are compared
_POINTS = {"steps": 25, "errors": 41, "noise": 25}  # number of points in a line of a quick analysis
_FEW = {"steps": 9, "errors": 13, "noise": 9}  # number of points in a line of a slow analysis
_SPAN = 5.0  # the chart shows noise from 1/5 to 5 times the noise of the run
_SECONDS = {"quick": 2.5, "slow": 2.5, "convex": 8.0, "sampling": 8.0}  # limits: then a line has fewer points
_LEAST = 5  # number of points that are computed regardless of the time limit
_MARKED = 60  # most released iterates that a chart marks
_KINDS = {"heuristic": "prediction", "guarantee": "guarantee", "baseline": "baseline"}
_NOT_HERE = "max_over_steps"  # the analysis that the page does not offer for calibration
_SIZES = 8  # most batch sizes of a plan


def answer(reader: Reader, texts: Mapping[str, str]) -> JsonObject:
    """Return the three numbers, all analyses, and the run as a command and as Python."""
    run, delta, given = _question(reader, texts)
    answers = ask_all(run, lambda curve: curve.epsilon(delta), curves=reader.curves(given))
    return {
        "words": f"{describe(run)}; delta {spell_exact(delta)}",
        "steps": run.steps,
        "delta": delta,
        "rows": [_row(run, name, found) for name, found in answers.items()],
        "numbers": [asdict(each) for each in (*key_numbers(run, answers), _UNTESTED)],
        "advice": _advice(answers[run.guarantee], delta),
        "guarantee": run.guarantee,
        "command": command_of(given, texts["delta"].strip()),
        "python": python_of(run, delta, reader.number("convex", given["convex"]) if "convex" in given else None),
    }


def lines(reader: Reader, texts: Mapping[str, str], part: Part) -> JsonObject:
    """Return the points of some analyses in the three charts.

    The analyses of ``part`` are the heuristic and the baseline ("quick"), the guarantee ("slow"), or the guarantee for
    convex losses ("convex"). "sampling" compares ways to draw batches instead.
    """
    run, delta, given = _question(reader, texts)
    if part == "sampling":
        return {"rows": [_sampled(reader, given, scheme, delta) for scheme in SCHEMES]}
    curves: Curves = reader.curves(given) if part == "convex" else {}
    names = {"quick": QUICK, "slow": (run.guarantee,), "convex": tuple(curves)}[part]
    drawn = [_lines(run, name, curves.get(name, ANALYSES[name].curve), delta, part) for name in names]
    found: JsonObject = {
        **{chart: [row for each in drawn for row in each[chart]] for chart in ("steps", "errors", "noise", "risks")},
        "at": float(np.max(run.noise_multiplier)),
    }
    if part == "quick" and run.release_count > 1:
        marked = run.released_steps()
        found["released"] = marked[:: max(1, math.ceil(len(marked) / _MARKED))].tolist()
    return found


def quoted(reader: Reader, texts: Mapping[str, str]) -> JsonObject:
    """Return a sentence that cites the result, and the sentences on risk for each baseline."""
    run, delta, given = _question(reader, texts)
    risk = [risk_sentences(run, lucky_guesses=each) for each in BASELINES]
    return {"sentence": sentence(run, delta, reader.curves(given)), "risk": risk}


def noise(reader: Reader, texts: Mapping[str, str]) -> JsonObject:
    """Return the noise for a target epsilon. The default analyses are the guarantees and the heuristic."""
    run, delta, given = _question(reader, {**texts, "noise_multiplier": "1"})
    target = _target(reader, texts)
    curves = reader.curves(given)
    names = _analyses(run, texts, curves)
    rows = [row for _, row in noise_rows({None: run}, names, Target(target, delta), curves=curves)]
    return {"epsilon": target, "rows": [_noise_row(run, row) for row in rows]}


def plan(reader: Reader, texts: Mapping[str, str]) -> JsonObject:
    """Return the noise that each batch size needs for a target epsilon, at a fixed number of epochs."""
    target = _target(reader, texts)
    base, delta, given = _question(reader, {**texts, "noise_multiplier": "1"})
    sizes = list(dict.fromkeys(reader.integers("batch_sizes", texts.get("batch_sizes", ""))))
    if not 0 < len(sizes) <= _SIZES:
        raise BadArgument("--batch-sizes", f"must list 1 to {_SIZES} sizes, got {len(sizes)} of them")
    if "dataset_size" not in given:
        raise BadArgument("--dataset-size", "must be given to compare batch sizes")
    options = {"epochs": repr(base.epochs)}
    options |= {name: text for name, text in given.items() if name not in ("steps", "sample_rate")}
    runs = {size: reader.run({**options, "batch_size": str(size)}) for size in sizes}
    curves = reader.curves(given)
    names = _analyses(base, texts, curves)
    found = noise_rows(runs, names, Target(target, delta), curves=curves)
    rows = [{"batch_size": size, "steps": runs[size].steps, **_noise_row(runs[size], row)} for size, row in found]
    epochs = reader.number("epochs", given["epochs"]) if "epochs" in given else base.epochs
    return {"epsilon": target, "epochs": epochs, "rows": rows}


def _question(reader: Reader, texts: Mapping[str, str]) -> tuple[DPSGD, float, dict[str, str]]:
    for name in texts:
        if name not in NAMES and name not in ASKED:  # other options may name files, which pages must not read
            raise ValueError(f"there is no field {name!a}")
    given = counting(dict(texts))
    options = {name: text for name, text in given.items() if name != "delta" and name not in ASKED}
    if "noise_filter" in options and written_number(options["noise_filter"].partition(",")[0]) is None:  # a file
        got = options["noise_filter"]
        raise BadArgument("--noise-filter", f"must be numbers separated by commas, or a file of numbers, got {got!a}")
    run = reader.run(options)
    if "delta" not in given:
        raise BadArgument("--delta", "must be given")
    delta = number("delta", reader.number("delta", given["delta"]), 0.0, 1.0, open_low=True, open_high=True)
    return run, delta, options


def _target(reader: Reader, texts: Mapping[str, str]) -> float:
    return number("epsilon", reader.number("epsilon", texts.get("epsilon", "")), 0.0, open_low=True)


def _analyses(run: DPSGD, texts: Mapping[str, str], curves: Curves) -> list[str]:
    asked = texts.get("analysis", "").replace("-", "_")
    if not asked:
        return [run.guarantee, *curves, "last_iterate"]
    if asked == "convex" and not curves:
        raise BadArgument("--convex", "must be given with --analysis convex: a contraction in (0, 1]")
    if asked not in ANALYSES or asked == _NOT_HERE:
        allowed = [each.option for each in ANALYSES.values() if each.name != _NOT_HERE]
        raise BadArgument("--analysis", f"must be one of {', '.join(allowed)}, got {texts['analysis']!a}")
    return [asked]


def _row(run: DPSGD, name: str, found: Answer) -> JsonObject:
    analysis = ANALYSES[name]
    return {
        "analysis": name,
        "label": analysis.label,
        "title": analysis.label_of(run),
        "kind": _KINDS[analysis.kind],
        "epsilon": found.value,
        "text": "none" if found.value is None else spell_up(found.value, 3),
        "words": analysis.assumed_of(run) if found.value is not None else found.reason,
    }


_UNTESTED = KeyNumber(
    "found", None, "not tested", "no attack was run: lastiterate audit trains models and attacks them"
)


def _advice(guarantee: Answer, delta: float) -> str:
    if guarantee.value is None:
        return f"There is no guarantee to promise: {guarantee.reason}."
    return (
        f"You may promise epsilon {spell_up(guarantee.value, 3)} at delta {spell_exact(delta)}, if training does what "
        "this form says. This is not tested yet. The command lastiterate check compares your code with this form, and "
        "lastiterate audit attacks trained models. Never promise the prediction."
    )


def _sampled(reader: Reader, options: Mapping[str, str], scheme: str, delta: float) -> JsonObject:
    """Return the guarantee and the prediction of the same run if batches are drawn this way."""
    fields: JsonObject = {"sampling": scheme, "is_own": options.get("sampling", "poisson") == scheme}
    given = {name: text for name, text in options.items() if name != "last_batch"}
    if scheme == "shuffled":
        given["last_batch"] = options.get("last_batch", "keep")
    try:
        run = reader.run({**given, "sampling": scheme})
    except ValueError as refusal:
        return {**fields, "words": str(refusal), "numbers": []}
    asked = {name: ask(run, name, lambda curve: curve.epsilon(delta)) for name in (run.guarantee, "last_iterate")}
    return {**fields, "words": neighbours_of(run), "numbers": [asdict(each) for each in key_numbers(run, asked)]}


def _noise_row(run: DPSGD, row: Row) -> JsonObject:
    analysis = ANALYSES[str(row["analysis"])]
    labels = {"label": analysis.label, "title": analysis.label_of(run), "kind": _KINDS[analysis.kind]}
    fields: JsonObject = {**row, **labels, "guaranteed": row.get(run.guarantee)}
    if isinstance(needed := row["noise_multiplier"], float):
        fields["text"] = spell_up(needed, 4)
    return fields


def _lines(
    run: DPSGD, name: str, analysis: Callable[[DPSGD], PrivacyCurve], delta: float, part: Part
) -> dict[str, list[Row]]:
    counts = _POINTS if part == "quick" else _FEW
    points, label, noise = partial(_points, seconds=_SECONDS[part]), ANALYSES[name].label, run.noise_multiplier
    steps = np.unique(np.rint(np.geomspace(1, run.steps, counts["steps"])).astype(np.int64)).tolist()
    by_steps = points(lambda step: analysis(run.prefix(int(step))).epsilon(delta), steps)
    rates = (np.linspace(0.0, 1.0, counts["errors"]) ** 3).tolist()  # dense near 0, where the curves are steep
    try:
        curve = analysis(run)
        by_rates, by_baseline = points(curve.fnr, rates), points(curve.risk, BASELINES)
    except ValueError:
        by_rates, by_baseline = [], []
    factors = np.geomspace(1 / _SPAN, _SPAN, counts["noise"]).tolist()
    by_noise = points(lambda factor: analysis(run.replace(noise_multiplier=noise * factor)).epsilon(delta), factors)
    return {
        "steps": [{"analysis": label, "steps": x, "epsilon": y} for x, y in by_steps],
        "errors": [{"analysis": label, "fpr": x, "fnr": y} for x, y in by_rates],
        "risks": [{"analysis": name, "baseline": x, "risk": y} for x, y in by_baseline],
        "noise": [{"analysis": label, "noise": float(np.max(noise)) * x, "epsilon": y} for x, y in by_noise],
    }


def _points(value: Callable[[float], float], places: Sequence[float], seconds: float) -> list[tuple[float, float]]:
    """Return the points of a line, computed from coarse to fine until the time limit."""
    until = monotonic() + seconds
    found: dict[int, tuple[float, float]] = {}
    for index in _coarse_to_fine(len(places)):
        try:
            y = value(places[index])
        except ValueError:
            continue
        if math.isfinite(y):
            found[index] = (places[index], y)
        if monotonic() > until and len(found) >= _LEAST:
            break
    return [found[index] for index in sorted(found)]


def _coarse_to_fine(count: int) -> Iterator[int]:
    """Yield all integers below ``count``: first both ends, then the middles of the gaps, and so on."""
    seen: set[int] = set()
    parts = 1
    while len(seen) < count:
        places: Iterable[int] = np.unique(np.rint(np.linspace(0, count - 1, parts + 1)).astype(int)).tolist()
        for place in places:
            if place not in seen:
                seen.add(place)
                yield place
        parts *= 2
