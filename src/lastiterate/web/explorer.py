"""Answers of the explorer page: epsilons, chart lines, calibrated noise and batch-size plans of a typed run.

The functions take the texts of the form and return JSON values. They also give the run as a command and as Python code.
They run in the processes of ``workers.py``. Bad input raises a ValueError with one sentence.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from lastiterate.citation import sentence
from lastiterate.common.types import JsonObject, Row
from lastiterate.common.validation import number, written_number
from lastiterate.compare_analyses import Answer, ask, ask_all, guarantee_of, noise_rows
from lastiterate.formatting import describe, per_cent, spell_exact, spell_up
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.registry import ANALYSES
from lastiterate.run import DPSGD
from lastiterate.web.form_fields import ASKED, NAMES, Reader, counting

if TYPE_CHECKING:
    from lastiterate.compare_analyses import Curves


# Export: the run as a command and as Python code.

# Defaults, which the exported command leaves out.
_USUAL = {"sampling": "poisson", "group_size": "1", "min_separation": "1"}


def command_of(texts: Mapping[str, str], delta: str) -> str:
    """Return the command with the same answer. ``texts`` holds the texts of the options by name."""
    given = {name: text.strip() for name, text in texts.items() if text.strip() != _USUAL.get(name)}
    options = [f"--{name.replace('_', '-')} {shlex.quote(text)}" for name, text in {**given, "delta": delta}.items()]
    return " ".join(["lastiterate epsilon", *options])


def python_of(run: DPSGD, delta: float, contraction: float | None = None) -> str:
    """Return Python code with the same answer. A contraction adds the guarantee for convex losses."""
    lines = ["import lastiterate as li", "", "run = " + re.sub(r"\b(DPSGD|SGD|Adam)\(", r"li.\1(", repr(run))]
    lines += [f"print(li.last_iterate(run).epsilon({delta!r}))  # a heuristic"]
    if contraction is None:
        return "\n".join([*lines, f"print(li.sentence(run, {delta!r}))"])
    lines += [f'curves = {{"convex": lambda run: li.convex(run, contraction={contraction!r})}}']
    return "\n".join([*lines, f"print(li.sentence(run, {delta!r}, curves))"])


Part = Literal["quick", "slow", "convex"]
_Analysis: TypeAlias = Callable[[DPSGD], PrivacyCurve]
_Points: TypeAlias = Callable[[Callable[[float], float], Sequence[float]], list[tuple[float, float]]]

ATTACK_FPR = 0.01
QUICK = ("last_iterate", "full_batch")
_POINTS = {"steps": 25, "errors": 41, "noise": 25}  # points of a quick line
_FEW = {"steps": 9, "errors": 13, "noise": 9}  # points of a slow line
_SPAN = 5.0  # the chart shows noise from 1/5 to 5 times the noise of the run
_SECONDS = {"quick": 2.5, "slow": 2.5, "convex": 8.0}  # after this time a line has the points found so far
_LEAST = 5  # points that show the shape of a line; the time limit does not apply to them
_MARKED = 60  # most released iterates that a chart marks
_KINDS = {"heuristic": "prediction", "guarantee": "guarantee", "baseline": "comparison"}
_NOT_HERE = "max_over_steps"  # not offered for calibration on a page
_SIZES = 8  # most batch sizes of a plan


def answer(reader: Reader, texts: Mapping[str, str]) -> JsonObject:
    """Return the table of analyses, the power of the best attack, and the run as a command and as Python."""
    run, delta, given = _question(reader, texts)
    answers = ask_all(run, lambda curve: curve.epsilon(delta), curves=reader.curves(given))
    return {
        "words": f"{describe(run)}; delta {spell_exact(delta)}",
        "steps": run.steps,
        "delta": delta,
        "rows": [_row(run, name, found) for name, found in answers.items()],
        "guarantee": guarantee_of(run),
        "attacks": _attacks(run, "last_iterate"),
        "command": command_of(given, texts["delta"].strip()),
        "python": python_of(run, delta, reader.number("convex", given["convex"]) if "convex" in given else None),
    }


def lines(reader: Reader, texts: Mapping[str, str], part: Part) -> JsonObject:
    """Return the points of the three charts for one part of the analyses.

    Part "quick" is the heuristic and the baseline. Part "slow" is the guarantee, which may be slow. Part "convex" is
    the guarantee for convex losses, which is always slow.
    """
    run, delta, given = _question(reader, texts)
    curves: Curves = reader.curves(given) if part == "convex" else {}
    names = {"quick": QUICK, "slow": (guarantee_of(run),), "convex": tuple(curves)}[part]
    analyses = {name: curves.get(name, ANALYSES[name].curve) for name in names}
    counts = _POINTS if part == "quick" else _FEW
    points = partial(_points, seconds=_SECONDS[part])
    steps = (_over_steps(run, name, analyses[name], delta, counts["steps"], points) for name in names)
    errors = (_over_rates(run, name, analyses[name], counts["errors"], points) for name in names)
    noise = (_over_noise(run, name, analyses[name], delta, counts["noise"], points) for name in names)
    found: JsonObject = {
        "steps": list(chain.from_iterable(steps)),
        "errors": list(chain.from_iterable(errors)),
        "noise": list(chain.from_iterable(noise)),
        "at": float(np.max(run.noise_multiplier)),
        "attacks": _attacks(run, guarantee_of(run)) if part == "slow" else [],
    }
    if part == "quick" and run.release_count > 1:
        marked = run.released_steps()
        found["released"] = marked[:: max(1, math.ceil(len(marked) / _MARKED))].tolist()
    return found


def quoted(reader: Reader, texts: Mapping[str, str]) -> JsonObject:
    """Return the sentence with which to cite the result."""
    run, delta, given = _question(reader, texts)
    return {"sentence": sentence(run, delta, reader.curves(given))}


def noise(reader: Reader, texts: Mapping[str, str]) -> JsonObject:
    """Return the noise for a target epsilon by the requested analysis, by default by guarantees and heuristic."""
    run, delta, given = _question(reader, {**texts, "noise_multiplier": "1"})
    target = _target(reader, texts)
    curves = reader.curves(given)
    names = _analyses(run, texts, curves)
    rows = [row for _, row in noise_rows({None: run}, names, target, delta, curves=curves)]
    return {"epsilon": target, "rows": [_noise_row(run, row) for row in rows]}


def plan(reader: Reader, texts: Mapping[str, str]) -> JsonObject:
    """Return the noise that each batch size needs for a target epsilon, at a fixed number of epochs."""
    target = _target(reader, texts)
    base, delta, given = _question(reader, {**texts, "noise_multiplier": "1"})
    sizes = list(dict.fromkeys(reader.integers("batch_sizes", texts.get("batch_sizes", ""))))
    if not 0 < len(sizes) <= _SIZES:
        raise ValueError(f"--batch-sizes must be 1 to {_SIZES} whole numbers, got {len(sizes)}")
    runs = {}
    for size in sizes:
        if "dataset_size" not in given:
            raise ValueError("--dataset-size must be given to compare batch sizes")
        options = {name: text for name, text in given.items() if name not in ("steps", "sample_rate")}
        runs[size] = reader.run({"epochs": repr(base.epochs), **options, "batch_size": str(size)})
    curves = reader.curves(given)
    names = _analyses(base, texts, curves)
    found = noise_rows(runs, names, target, delta, curves=curves)
    rows = [{"batch_size": size, "steps": runs[size].steps, **_noise_row(runs[size], row)} for size, row in found]
    epochs = reader.number("epochs", given["epochs"]) if "epochs" in given else base.epochs
    return {"epsilon": target, "epochs": epochs, "rows": rows}


def _question(reader: Reader, texts: Mapping[str, str]) -> tuple[DPSGD, float, dict[str, str]]:
    """Read the form: return the run, delta, and the texts of the run's options."""
    for name in texts:
        if name not in NAMES and name not in ASKED:  # other options may name files, which pages must not read
            raise ValueError(f"there is no field {name!a}")
    given = counting(dict(texts))
    options = {name: text for name, text in given.items() if name != "delta" and name not in ASKED}
    if "noise_filter" in options and written_number(options["noise_filter"].partition(",")[0]) is None:  # a file
        got = options["noise_filter"]
        raise ValueError(f"--noise-filter must be numbers separated by commas, or a file of them, got {got!a}")
    run = reader.run(options)
    if "delta" not in given:
        raise ValueError("--delta must be given")
    delta = number("delta", reader.number("delta", given["delta"]), 0.0, 1.0, open_low=True, open_high=True)
    return run, delta, options


def _target(reader: Reader, texts: Mapping[str, str]) -> float:
    return number("epsilon", reader.number("epsilon", texts.get("epsilon", "")), 0.0, open_low=True)


def _analyses(run: DPSGD, texts: Mapping[str, str], curves: Curves) -> list[str]:
    """Return the analyses to calibrate by: the requested analysis, or the guarantees and the heuristic."""
    asked = texts.get("analysis", "").replace("-", "_")
    if not asked:
        return [guarantee_of(run), *curves, "last_iterate"]
    if asked == "convex" and not curves:
        raise ValueError("--convex must be given with --analysis convex: a contraction in (0, 1]")
    if asked not in ANALYSES or asked == _NOT_HERE:
        allowed = [each.option for each in ANALYSES.values() if each.name != _NOT_HERE]
        raise ValueError(f"--analysis must be one of {', '.join(allowed)}, got {texts['analysis']!a}")
    return [asked]


def _row(run: DPSGD, name: str, found: Answer) -> JsonObject:
    analysis = ANALYSES[name]
    return {
        "analysis": name,
        "label": analysis.label,
        "title": analysis.label_of(run),
        "kind": _KINDS[analysis.kind],
        "epsilon": found.value,
        "text": "none" if found.value is None else spell_up(found.value),
        "words": analysis.assumed_of(run) if found.value is not None else found.reason,
    }


def _attacks(run: DPSGD, name: str) -> list[JsonObject]:
    """Return power (at a false positive rate of 1%) and advantage of the best attack by an analysis; empty: unknown."""
    power = ask(run, name, lambda curve: 1.0 - curve.fnr(ATTACK_FPR))
    advantage = ask(run, name, lambda curve: curve.advantage())
    if power.value is None or advantage.value is None:
        return []
    who = "is predicted to find" if name == "last_iterate" else "finds at most"
    share = min(1.0, 0.5 + 0.5 * advantage.value)
    words = (
        f"The best attack {who} {_share(power.value)} of the members at {per_cent(ATTACK_FPR)} false alarms; shown a "
        f"member or a stranger, it is right in {_share(share)} of all cases, where guessing is in 50%."
    )
    kind = _KINDS[ANALYSES[name].kind]
    held: JsonObject = {
        "analysis": name,
        "kind": kind,
        "power": power.value,
        "advantage": advantage.value,
        "words": words,
    }
    return [held]


def _share(value: float) -> str:
    """Return a rate in per cent, rounded up to three digits; rates between 99.9% and 100% are "more than 99.9%"."""
    if value > 0.999:
        return "more than 99.9%" if value < 1.0 else "100%"
    return f"{spell_up(100.0 * value, 3)}%"


def _noise_row(run: DPSGD, row: Row) -> JsonObject:
    """Add labels to a row of noise, and the guarantee with this noise, since a prediction is no guarantee."""
    name = str(row["analysis"])
    guarantee = guarantee_of(run)
    fields: JsonObject = {
        **row,
        "label": ANALYSES[name].label,
        "title": ANALYSES[name].label_of(run),
        "kind": _KINDS[ANALYSES[name].kind],
    }
    fields["guaranteed"] = row.get(guarantee)
    if isinstance(needed := row["noise_multiplier"], float):
        fields["text"] = spell_up(needed)
    return fields


def _over_steps(run: DPSGD, name: str, analysis: _Analysis, delta: float, count: int, points: _Points) -> list[Row]:
    steps = np.unique(np.rint(np.geomspace(1, run.steps, count)).astype(np.int64)).tolist()

    def at(step: float) -> float:
        return analysis(run.prefix(int(step))).epsilon(delta)

    return [{"analysis": ANALYSES[name].label, "steps": x, "epsilon": y} for x, y in points(at, steps)]


def _over_noise(run: DPSGD, name: str, analysis: _Analysis, delta: float, count: int, points: _Points) -> list[Row]:
    noise = run.noise_multiplier
    shown = float(np.max(noise))
    factors = np.geomspace(1 / _SPAN, _SPAN, count).tolist()

    def at(factor: float) -> float:
        return analysis(run.replace(noise_multiplier=noise * factor)).epsilon(delta)

    return [{"analysis": ANALYSES[name].label, "noise": shown * x, "epsilon": y} for x, y in points(at, factors)]


def _over_rates(run: DPSGD, name: str, analysis: _Analysis, count: int, points: _Points) -> list[Row]:
    try:
        curve = analysis(run)
    except ValueError:
        return []
    rates = (np.linspace(0.0, 1.0, count) ** 3).tolist()  # dense near 0, where the curves are steep
    return [{"analysis": ANALYSES[name].label, "fpr": x, "fnr": y} for x, y in points(curve.fnr, rates)]


def _points(value: Callable[[float], float], places: Sequence[float], seconds: float) -> list[tuple[float, float]]:
    """Return the points of a line, in order.

    Points are computed from coarse to fine, so that a slow line ends in time with fewer points. The line has a gap
    at places without a value, such as before anything is learnt.
    """
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
