"""The guarantee for balls in bins, ours beside pld-accounting's interval, in one run.

    python benchmarks/balls_in_bins.py [--pld PYTHON] [--longest SECONDS] [--json FILE]

PYTHON is an interpreter that can import `PLD_accounting` (pld-accounting 2.0 on PyPI, which needs an environment of its
own). Every run is answered in a process of its own, and times are processor time of one cold call without imports. Exit
status 1 if ours takes longer than it may, differs from the reference, or is outside of the peer's interval.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

# Batches per epoch, epochs, noise, delta, and epsilon from another implementation (None: not known otherwise).
RUNS = [
    (100, 1, 1.0, 1e-5, 0.6209396716),
    (100, 10, 1.0, 1e-5, 1.7014984358),
    (100, 60, 1.0, 1e-5, 4.5043957825),
    (98, 60, 0.7, 1e-5, 10.4508374899),
    (10, 10, 1.5, 1e-6, 3.5624705412),
    (1000, 1, 0.5, 1e-6, 4.106015909),
    (1000, 5, 0.5, 1e-6, 5.2600708672),
    (4, 100, 3.0, 1e-5, 8.2127399828),
    (8191, 10, 1.0, 1e-6, None),
    (10_000, 100, 1.0, 1e-6, None),
    (1_000_000, 100, 0.7, 1e-8, None),
]
ACCURACY = 1e-8
LIMIT, MANY, LIMIT_OF_MANY = 0.1, 10_000, 1.0  # seconds, up to so many batches per epoch, and above

HARNESS = """
import json, sys, time
{setup}
batches, epochs, sigma, delta = json.loads(sys.argv[1])
start = time.process_time()
{body}
print(json.dumps([low, high, time.process_time() - start]))
"""
OURS = HARNESS.format(
    setup="import lastiterate as li\nli.composition(li.DPSGD(40, 0.25, 2.0, 'balls-in-bins')).epsilon(1e-3)",
    body="run = li.DPSGD(batches * epochs, 1 / batches, sigma, 'balls-in-bins')\n"
    "low = high = li.composition(run).epsilon(delta)",
)
PEER = HARNESS.format(
    setup="from PLD_accounting import gaussian_allocation_epsilon_range as interval\n"
    "interval(delta=1e-3, sigma=2.0, num_steps=4, num_epochs=2)",
    body="high, low = interval(delta=delta, sigma=sigma, num_steps=batches, num_epochs=epochs)",
)


def answer(python: str, script: str, run: tuple[float, ...], longest: float | None = None) -> list[float] | None:
    """Return the lower end, the upper end and the time, or None if there is no answer in time."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    command = [python, "-W", "ignore", "-c", script, json.dumps(run)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=longest, check=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return None
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Balls in bins against a peer.")
    parser.add_argument("--pld", metavar="PYTHON", help="an interpreter that can import PLD_accounting")
    parser.add_argument("--longest", type=float, default=300.0, help="seconds after which the peer is stopped")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the same as JSON")
    arguments = parser.parse_args()

    table = Table(title="Balls in bins", title_justify="left")
    for column in ("batches", "epochs", "noise", "delta", "epsilon", "time", "peer's interval", "width", "time", ""):
        table.add_column(column, justify="right", no_wrap=True)
    rows = []
    for *run, truth in RUNS:
        ours = answer(sys.executable, OURS, tuple(run))
        peer = answer(arguments.pld, PEER, tuple(run), arguments.longest) if arguments.pld else None
        passed = ours is not None and ours[2] <= (LIMIT if run[0] <= MANY else LIMIT_OF_MANY)
        if ours is not None and truth is not None:
            passed = passed and abs(ours[0] - truth) <= ACCURACY * max(1.0, truth)
        if ours is not None and peer is not None:
            passed = passed and peer[0] <= ours[0] <= peer[1]
        rows.append({"run": run, "ours": ours, "peer": peer, "passed": passed})
        shown = ("none", "") if ours is None else (f"{ours[0]:.9f}", f"{1e3 * ours[2]:.0f} ms")
        other = ("none", "", "")
        if peer is not None:
            other = (
                f"[{peer[0]:.4f}, {peer[1]:.4f}]".replace("[", r"\["),
                f"{peer[1] - peer[0]:.4f}",
                f"{peer[2]:.1f} s",
            )
        table.add_row(*(f"{value:g}" for value in run), *shown, *other, "pass" if passed else "FAIL")
    Console(width=150).print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0 if all(row["passed"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
