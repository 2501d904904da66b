"""Composition against dp-accounting, PRV accountants and an older version of itself, in one run.

    python benchmarks/composition.py [--prv PYTHON] [--old SRC] [--json FILE]

PYTHON is an interpreter that can import `prv_accountant` (it may need an environment of its own), SRC the folder `src`
of an older version. Every way runs in a process of its own, one after the other; times are processor time, the best of
some repeats. Exit status 1 if a requirement fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

# Steps, sample rate, noise, delta, and epsilon: from two widths of the cutoff in another implementation, good to 1e-9,
# the first from a dense uniform grid. Then the longest time that is allowed, in seconds.
RUNS = [
    (1000, 0.01, 1.0, 1e-5, 1.8282366665, 0.006),
    (141, 0.00188, 0.49, 1.5e-8, 6.283597062540, 0.050),
    (87, 0.00194, 0.612, 3.5e-12, 5.499097160410, 0.050),
    (43, 0.000724, 1.51, 1.4e-6, 0.0134149844, 0.050),
    (5, 0.01, 0.5, 1e-6, 5.123524387706, 0.050),
    (3, 0.1, 1.0, 1e-6, 2.614976436035, 0.050),
    (2, 0.01, 0.8, 1e-6, 1.027668123222, 0.050),
]
ACCURACY = 1e-9

HARNESS = """
import json, sys, time
{setup}
runs, repeats = json.loads(sys.argv[1]), int(sys.argv[2])
def answer(steps, rate, sigma, delta):
{body}
for steps, rate, sigma, delta, *_ in runs:
    best, value = float("inf"), None
    try:
        for _ in range(repeats):
            start = time.process_time()
            value = answer(steps, rate, sigma, delta)
            best = min(best, time.process_time() - start)
    except Exception as error:
        value, best = None, None
    print(json.dumps([value, best]), flush=True)
"""
OURS = "import lastiterate as li", "    return [li.composition(li.DPSGD(steps, rate, sigma)).epsilon(delta)] * 2"
ENDS = OURS[0], "    return list(li.composition(li.DPSGD(steps, rate, sigma)).bracket(delta))"
PLD = (
    "from dp_accounting.pld import privacy_loss_distribution as pld",
    "    step = pld.from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=1e-4)\n"
    "    return [step.self_compose(steps).get_epsilon_for_delta(delta)] * 2",
)
PRV = (
    "from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant",
    "    mechanism = PoissonSubsampledGaussianMechanism(sampling_probability=rate, noise_multiplier=sigma)\n"
    "    errors = dict(eps_error=0.01, delta_error=delta / 1000)\n"
    "    accountant = PRVAccountant(prvs=[mechanism], max_self_compositions=[steps], **errors)\n"
    "    low, estimate, high = accountant.compute_epsilon(delta, [steps])\n"
    "    return [low, high]",
)


@dataclass(frozen=True)
class Answer:
    """One way's answer to one run: an interval (a value twice), its distance from the truth, and processor time."""

    steps: int
    sample_rate: float
    noise_multiplier: float
    delta: float
    way: str
    low: float | None
    high: float | None
    error: float | None
    seconds: float | None
    passed: bool


def answers(way: str, code: tuple[str, str], repeats: int, python: str = sys.executable, src: str = "") -> list[Answer]:
    script = HARNESS.format(setup=code[0], body=code[1])
    environment = dict(os.environ, OMP_NUM_THREADS="1", **({"PYTHONPATH": src} if src else {}))
    command = [python, "-W", "ignore", "-c", script, json.dumps(RUNS), str(repeats)]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    rows = []
    for (steps, rate, sigma, delta, truth, longest), line in zip(RUNS, output.splitlines(), strict=True):
        value, seconds = json.loads(line)
        low, high = value if value is not None else (None, None)
        error = None if low is None else max(abs(low - truth), abs(high - truth))
        passed = way != "ours" or (error <= ACCURACY * max(1.0, truth) and seconds <= longest)
        passed = passed and (way != "ours, proved ends" or low < truth < high)
        rows.append(Answer(steps, rate, sigma, delta, way, low, high, error, seconds, passed))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="Composition against its peers.")
    parser.add_argument("--prv", metavar="PYTHON", help="an interpreter that can import prv_accountant")
    parser.add_argument("--old", metavar="SRC", help="the folder src of an older version")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the same as JSON")
    arguments = parser.parse_args()

    rows = answers("ours", OURS, 20) + answers("ours, proved ends", ENDS, 5)
    if arguments.old:
        rows += answers("older version", OURS, 2, src=arguments.old)
    rows += answers("dp-accounting, PLD at 1e-4", PLD, 2)
    if arguments.prv:
        rows += answers("prv-accountant, at 0.01", PRV, 2, python=arguments.prv)
    table = Table(title="Composition", title_justify="left")
    for column in ("steps", "rate", "noise", "delta", "way", "epsilon", "off by", "time", ""):
        table.add_column(column, justify="left" if column in ("way", "") else "right", no_wrap=True)
    for row in sorted(rows, key=lambda row: [run[:4] for run in RUNS].index((row.steps, *_rest(row)))):
        shown = "none" if row.low is None else f"{row.high:.9f}"
        off = "" if row.error is None else f"{row.error:.0e}"
        seconds = "" if row.seconds is None else f"{1e3 * row.seconds:.1f} ms"
        verdict = "[green]pass[/]" if row.passed else "[bold red]FAIL[/]"
        run = (str(row.steps), *(f"{value:g}" for value in _rest(row)))
        table.add_row(*run, row.way, shown, off, seconds, verdict if row.way.startswith("ours") else "")
    Console(width=150).print(table)
    passed = all(row.passed for row in rows)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"passed": passed, "rows": [asdict(row) for row in rows]}, indent=2) + "\n"
        )
    return 0 if passed else 1


def _rest(row: Answer) -> tuple[float, float, float]:
    return row.sample_rate, row.noise_multiplier, row.delta


if __name__ == "__main__":
    sys.exit(main())
