"""Does the heuristic rank runs that have the same guarantee? A test with 20 runs drawn at random.

Composition guarantees epsilon 8 at delta 1e-5 for each run. Sample rate, steps, schedule, momentum and learning rate
differ. The signal is how far scores with and without a canary are apart. Rank correlations compare what predicts
the order of the signals. With the model "linear" nothing is trained: losses are linear, the attack is perfect and the
heuristic is exact, so no training can be ranked better. With "logistic", 20,480 models of digits are trained.

    python examples/does_it_rank.py --scores ranking.csv --store runs/ranking --model linear
    python examples/does_it_rank.py --scores ranking.csv --store runs/ranking
    python examples/does_it_rank.py --scores docs/results/ranking.csv --model linear --picture ranking.png

With --store, scores are written, and a stopped training resumes. Without it, they are read.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import kendalltau, spearmanr

import lastiterate as li
from lastiterate.schedules import SCHEDULES

RUNS, MODELS, EPSILON, DELTA = 20, 256, 8.0, 1e-5
AUDITS = ("linear", "perfect"), ("logistic", "mislabelled"), ("logistic", "quiet")  # models and canaries
EXAMPLES = 360  # of the embedded digits: a quarter, so that all audits take minutes
COLUMNS = (
    "model",
    "canary",
    "sample_rate",
    "steps",
    "schedule",
    "momentum",
    "learning_rate",
    "noise_multiplier",
    "in",
    "out",
)
FALSE_POSITIVES = 0.05
Table = dict[str, dict[str, tuple[float, float, float, float]]]


def draw_settings(seed: int = 0) -> list[dict[str, Any]]:
    """Draw the settings of all runs. The learning rate is for the mean gradient of a batch, without momentum."""
    drawn, settings = np.random.default_rng(seed), []
    for _ in range(RUNS):
        setting: dict[str, Any] = {"sample_rate": round(float(np.exp(drawn.uniform(np.log(0.01), np.log(0.4)))), 4)}
        setting["steps"] = int(np.exp(drawn.uniform(np.log(10), np.log(400))))
        setting["schedule"] = str(drawn.choice(["constant", "cosine", "linear", "step"]))
        setting["momentum"] = float(drawn.choice([0.0, 0.5, 0.9]))
        setting["learning_rate"] = round(float(2.0 ** drawn.uniform(-2.0, 1.0)), 2)
        run = li.calibrate(run_of(setting), epsilon=EPSILON, delta=DELTA, analysis=li.composition)
        settings.append({**setting, "noise_multiplier": float(run.noise_multiplier)})
    return settings


def run_of(setting: dict[str, Any]) -> li.DPSGD:
    """Return the run with these settings."""
    rate, steps, momentum = float(setting["sample_rate"]), int(setting["steps"]), float(setting["momentum"])
    learning_rate: Any = float(setting["learning_rate"]) / (rate * EXAMPLES) * (1.0 - momentum)
    if setting["schedule"] != "constant":
        drops = (max(1, steps // 3),) if setting["schedule"] == "step" else ()
        learning_rate = SCHEDULES[setting["schedule"]](learning_rate, steps, *drops)
    noise = float(setting.get("noise_multiplier", 1.0))
    optimizer = li.SGD(learning_rate, momentum=momentum)
    return li.DPSGD(steps=steps, sample_rate=rate, noise_multiplier=noise, optimizer=optimizer)


def audit_one(number: int, setting: dict[str, Any], model: str, canary: str, store: Path) -> dict[str, Any]:
    """Audit one run, and return its settings and scores, in hundredths of a standard deviation without the canary."""
    scored = linear_scores if model == "linear" else trained_scores
    inside, outside = scored(number, run_of(setting), model, canary, store)
    scaled = {"in": inside, "out": outside}
    hundredths = {
        world: np.rint(100.0 * (scores - outside.mean()) / outside.std()).astype(int)
        for world, scores in scaled.items()
    }
    return {
        "model": model,
        "canary": canary,
        **setting,
        **{name: " ".join(map(str, each)) for name, each in hundredths.items()},
    }


def trained_scores(number: int, run: li.DPSGD, model: str, canary: str, store: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of trained models with and without the canary."""
    from lastiterate.auditing.audit_target import find_subject
    from lastiterate.auditing.stores.store import Store

    problem = find_subject("digits", model, None, lambda examples: None).problem
    problem = replace(problem, examples=tuple(each[:EXAMPLES] for each in problem.examples))
    file = store / f"{number:02}-{model}-{canary}.sqlite"
    store.mkdir(parents=True, exist_ok=True)
    li.audit(run, problem, canary, MODELS, number, file)
    with Store.read(file) as kept:
        trials = kept.scores()
    return trials.scores[trials.present], trials.scores[~trials.present]


def linear_scores(number: int, run: li.DPSGD, *others: object) -> tuple[np.ndarray, np.ndarray]:
    """Return scores of a perfect attack if losses are linear: nothing is trained, and the heuristic is exact."""
    drawn = np.random.default_rng(number)
    weights = np.broadcast_to(run.effective_weights(), run.steps)
    spread = float(run.noise_multiplier) * np.linalg.norm(weights)
    canary = (drawn.random((MODELS, run.steps)) < run.sample_rate) @ weights
    return canary + spread * drawn.normal(size=MODELS), spread * drawn.normal(size=MODELS)


def distance(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """Return d', the distance of the means in standard deviations, along the last axis."""
    spread = np.sqrt(0.5 * (inside.var(-1, ddof=1) + outside.var(-1, ddof=1)))
    return (inside.mean(-1) - outside.mean(-1)) / spread


def power(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """Return the true positive rate where 5% of the models without the canary are false positives."""
    threshold = np.quantile(outside, 1.0 - FALSE_POSITIVES, axis=-1, keepdims=True)
    return (inside > threshold).mean(-1)


SIGNALS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {"d'": distance, "power at 5%": power}
PREDICTORS: dict[str, Callable[[li.DPSGD], float]] = {
    "heuristic: epsilon": lambda run: float(li.last_iterate(run).epsilon(DELTA)),
    "heuristic: power at 5%": lambda run: 1.0 - float(li.last_iterate(run).fnr(FALSE_POSITIVES)),
    "heuristic: mu": lambda run: float(li.last_iterate(run).mu()),
    "full batch: epsilon": lambda run: float(li.full_batch(run).epsilon(DELTA)),
    "composition: mu": lambda run: float(li.composition(run).mu()),
    "noise multiplier": lambda run: float(run.noise_multiplier),
    "number of steps": lambda run: float(run.steps),
    "sample rate": lambda run: float(run.sample_rate),
}


def read(path: Path, model: str, canary: str) -> tuple[list[li.DPSGD], np.ndarray, np.ndarray]:
    """Return the runs of a model and canary, and the scores with and without the canary, a row per run."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["model"], row["canary"]) == (model, canary)]
    runs = [run_of(row) for row in rows]
    inside, outside = (np.array([row[world].split() for row in rows], float) for world in ("in", "out"))
    return runs, inside, outside


def rank(runs: list[li.DPSGD], inside: np.ndarray, outside: np.ndarray, draws: int = 500, seed: int = 0) -> Table:
    """Return, for each signal and predictor, Spearman's and Kendall's correlation and a 95% interval for Spearman's.

    The interval is a percentile bootstrap. Each draw takes runs with replacement, and for each of them models.
    """
    predicted = {name: np.array([of(run) for run in runs]) for name, of in PREDICTORS.items()}
    drawn, found = np.random.default_rng(seed), {name: of(inside, outside) for name, of in SIGNALS.items()}
    samples: dict[tuple[str, str], list[float]] = {(signal, name): [] for signal in SIGNALS for name in PREDICTORS}
    for _ in range(draws):
        chosen = drawn.integers(len(runs), size=(len(runs), 1))
        again = [scores[chosen, drawn.integers(scores.shape[1], size=scores.shape)] for scores in (inside, outside)]
        for signal, of in SIGNALS.items():
            together = np.column_stack([of(*again), *(values[chosen[:, 0]] for values in predicted.values())])
            ranks = spearmanr(together).statistic[0, 1:]
            for name, each in zip(predicted, ranks, strict=True):
                samples[signal, name].append(float(each))
    table: Table = {}
    for signal, values in found.items():
        table[signal] = {}
        for name, prediction in predicted.items():
            both = spearmanr(values, prediction).statistic, kendalltau(values, prediction).statistic
            low, high = np.quantile(samples[signal, name], [0.025, 0.975])
            table[signal][name] = float(both[0]), float(low), float(high), float(both[1])
    return table


def draw_picture(path: Path, scores: Path, audits: Sequence[tuple[str, str]] = AUDITS) -> None:
    """Draw the signal d' of each run, with its 95% interval, over two predictions."""
    import altair as alt

    rows = []
    for model, canary in audits:
        runs, inside, outside = read(scores, model, canary)
        signals = distance(inside, outside)
        error = np.sqrt(2.0 / inside.shape[1] + signals**2 / (4.0 * inside.shape[1]))
        for run, signal, half in zip(runs, signals, 1.96 * error, strict=True):
            for name in ("heuristic: epsilon", "full batch: epsilon"):
                rows.append(
                    {"attack": f"{canary} ({model})", "by": name, "x": PREDICTORS[name](run), "signal": float(signal)}
                )
                rows[-1] |= {"low": float(signal - half), "high": float(signal + half)}
    panels = []
    for name in ("heuristic: epsilon", "full batch: epsilon"):
        part = alt.Chart(alt.Data(values=[row for row in rows if row["by"] == name]))
        x = alt.X("x:Q", title=f"{name} at delta 1e-5 (composition: 8 for every run)")
        colour = alt.Color("attack:N", title="canary (model)", scale=alt.Scale(range=["#999999", "#d55e00", "#0072b2"]))
        points = part.mark_point(filled=True, size=70).encode(
            x=x,
            y=alt.Y("signal:Q", title="signal d'"),
            color=colour,
            shape=alt.Shape("attack:N", legend=None),
        )
        bars = part.mark_rule(opacity=0.5).encode(x=x, y="low:Q", y2="high:Q", color=colour)
        panels.append((bars + points).properties(width=400, height=300))
    chart = alt.hconcat(*panels, spacing=40).properties(
        title="Runs with the same guarantee, and the signals of their canaries"
    )
    chart.configure_axis(labelFontSize=13, titleFontSize=13).save(str(path), scale_factor=1.25)


def table_of(scores: Path, model: str, canary: str) -> list[str]:
    """Return the rows of a table of rank correlations, in Markdown."""
    table, rows = rank(*read(scores, model, canary)), []
    for name in PREDICTORS:
        cells = [
            f"{spearman:.2f} ({low:.2f} to {high:.2f}) | {kendall:.2f}"
            for spearman, low, high, kendall in (found[name] for found in table.values())
        ]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


def main() -> None:
    """Train the models that are missing if a store is given, and print the rank correlations."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scores", type=Path, required=True, help="CSV file with the scores of all runs")
    parser.add_argument("--store", type=Path, help="folder for the audits; then the scores are written, not read")
    parser.add_argument("--model", choices=sorted({model for model, _ in AUDITS}), help="only this model")
    parser.add_argument("--picture", type=Path, help="also draw this .png file")
    options = parser.parse_args()
    audits = [audit for audit in AUDITS if options.model in (None, audit[0])]
    if options.store is not None:
        settings = list(enumerate(draw_settings()))
        rows = [audit_one(number, each, *audit, options.store) for audit in audits for number, each in settings]
        with options.scores.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    with options.scores.open(encoding="utf-8", newline="") as file:
        held = {(row["model"], row["canary"]) for row in csv.DictReader(file)}
    audits = [audit for audit in audits if audit in held]
    for audit in audits:
        signals = " | ".join(f"{name}: Spearman (95%) | Kendall" for name in SIGNALS)
        print(f"{audit[0]} model, {audit[1]} canary\n\n| predicted by | {signals} |\n|---|---|---|---|---|")
        print(*table_of(options.scores, *audit), "", sep="\n")
    if options.picture is not None:
        draw_picture(options.picture, options.scores, audits)


if __name__ == "__main__":
    main()
