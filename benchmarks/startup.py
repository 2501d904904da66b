"""How long commands take that answer or refuse at once: processor time, with that of child processes.

Run it with `python benchmarks/startup.py`; exit status 1 if a requirement fails.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

REPEATS = 5
RUN = "--steps 1000 --sample-rate 0.01 --noise-multiplier 1 --delta 1e-5"
COMMANDS = {  # seconds, and the status to end with
    "--version": (0.3, 0),
    "--help": (0.3, 0),
    f"epsilon {RUN}": (0.5, 0),
    "audit --models 0": (0.7, 2),
    "audit --data mistyped.npz": (0.7, 2),
    "audit-lm": (0.7, 2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the rows there")
    asked = parser.parse_args()
    rows = [measured(command, *bounds) for command, bounds in COMMANDS.items()]
    table = Table(title=f"Processor time, best of {REPEATS}")
    for column in ("command", "seconds", "required", ""):
        table.add_column(column, justify="right" if column in ("seconds", "required") else "left")
    for row in rows:
        words = f"lastiterate {row['command']}"
        table.add_row(words, f"{row['seconds']:.2f}", f"< {row['required']}", "" if row["passed"] else "FAILS")
    Console(width=120).print(table)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    sys.exit(0 if all(row["passed"] for row in rows) else 1)


def measured(command: str, required: float, status: int) -> dict[str, str | float | bool]:
    """The best of some runs, after one that may write compiled modules."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(REPEATS + 1):
            before = _children()
            words = [sys.executable, "-m", "lastiterate", *command.split()]
            done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, check=False)
            assert done.returncode == status, done.stderr.decode()
            times.append(_children() - before)
    seconds = min(times[1:])
    return {"command": command, "seconds": seconds, "required": required, "passed": seconds < required}


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
