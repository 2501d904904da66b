"""What the counterexamples cost: runs of the malicious data set over the number of steps, and Figure 5's grid.

Run it with `python benchmarks/counterexamples.py`; the README beside it says what is measured.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any, get_args

import numpy as np
from rich.console import Console
from rich.table import Table

import lastiterate as li
from lastiterate.paper.counterexamples.malicious import Malicious
from lastiterate.paper.counterexamples.setting import Encoding
from lastiterate.paper.reproduce import figure5
from lastiterate.training import Trainer
from lastiterate.training.trainer import peak_bytes

STEPS = (50, 100, 200, 400, 800)
WORK = 4e8  # parameters times steps times models of a measurement
RATE, NOISE = 0.01, 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the rows there")
    path = parser.parse_args().json
    rows = [run_row(encoding, steps) for encoding in get_args(Encoding) for steps in STEPS]
    table = Table("encoding", "steps", "runs", "us a run", "one by one in NumPy", "ratio", "growth", "peak MB")
    before: dict[str, Any] = {}
    for row in rows:
        row["growth"] = (
            math.log(row["microseconds"] / before["microseconds"]) / math.log(row["steps"] / before["steps"])
            if before and before["encoding"] == row["encoding"]
            else None
        )
        before = row
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value or "-") for value in row.values()))
    console = Console(width=120)
    console.print(table)
    began = time.perf_counter()
    grid = figure5.rows("quick")
    seconds = time.perf_counter() - began
    console.print(f"figure 5: {len(grid)} ratios, both panels and their maxima, in {seconds:.1f} s (required: 60)")
    if path:
        path.write_text(json.dumps({"runs": rows, "figure5_seconds": seconds}, indent=2) + "\n", encoding="utf-8")


def run_row(encoding: Encoding, steps: int) -> dict[str, Any]:
    """Microseconds a run takes on all cores, compiled before, and what the algorithm written as published takes."""
    run = li.DPSGD(steps, RATE, NOISE, optimizer=li.SGD(1.0))
    attack = Malicious(encoding, 1.0 if encoding == "one-bit" else None)
    facts = attack.craft(run, None, None)  # type: ignore[arg-type] - it trains no references
    armed = attack.arm(run, None, facts)
    models = max(200, int(WORK / steps**2))
    trainer = Trainer(run, armed.problem, armed.canary, models=models)
    numbers, present = np.arange(models), np.arange(models) % 2 == 0
    best = math.inf
    for seed in range(3):
        began = time.perf_counter()
        for chunk in trainer.chunks(numbers, present, seed):
            armed.score(chunk.parameters)
        best = min(best, time.perf_counter() - began)
    ours, theirs = 1e6 * best / models, 1e6 * as_published(encoding, steps)
    return {
        "encoding": encoding,
        "steps": steps,
        "runs": models,
        "microseconds": ours,
        "numpy_microseconds": theirs,
        "ratio": theirs / ours,
        "growth": None,
        "peak_megabytes": peak_bytes() / 2**20,
    }


def as_published(encoding: Encoding, steps: int) -> float:
    """Seconds a run takes if it is written down like the paper's Algorithm "Encoding", one run after the other.

    Like that, it treats the batch of repeaters as a number that does not vary, so that it does less than we do.
    """
    generator, batch, big = np.random.default_rng(0), 1e6, 10.0 * NOISE

    def repeater(model: np.ndarray, step: int) -> np.ndarray:
        wanted = np.zeros(steps)
        if encoding == "one-bit":
            wanted[:step] = np.where(model[:step] >= np.append(np.zeros(max(step - 1, 0)), 1.0)[:step], big, -big)
        else:
            wanted[:step] = model[:step]
            wanted[step - 1 : step] *= 1000.0
        gradient = (model - wanted) / batch
        return gradient / max(1.0, float(np.linalg.norm(gradient)))

    runs = max(2, 20_000 // steps)
    began = time.perf_counter()
    for _ in range(runs):
        model = np.zeros(steps)
        for step in range(steps):
            total = batch * repeater(model, step)
            if generator.random() < RATE:
                total[step] -= 1.0
            model = model - (total + NOISE * generator.standard_normal(steps))
    return (time.perf_counter() - began) / runs


if __name__ == "__main__":
    main()
