"""How long an update of the explorer takes, from the question to the last byte of the answer.

    python benchmarks/explorer.py [--updates N] [--json FILE]

A server is started as people start it, and asked over HTTP as its page asks: the table, and beside it the lines of the
quick analyses and of the guarantee. Each update is another run, as when a slider moves, so that nothing is known
before. Exit status 1 if a requirement fails: the median until the table is there, and until the quick lines are.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from rich.console import Console
from rich.table import Table

# Ordinary runs: what the explorer begins with, the paper's example, and a fine-tuning.
RUNS = {
    "512 of 50,000, 60 epochs": {"dataset_size": "50000", "batch_size": "512", "epochs": "60"},
    "500 of 50,000, 1,000 steps": {"dataset_size": "50000", "batch_size": "500", "length": "steps", "steps": "1000"},
    "256 of 20,000, 3 epochs": {"dataset_size": "20000", "batch_size": "256", "epochs": "3"},
}
ASKED = {"table": "/api/answer", "quick lines": "/api/lines/quick", "guarantee's lines": "/api/lines/slow"}
COOKIE: dict[str, str] = {}  # the access token, which the browser keeps as a cookie
REQUIRED = {"table": 0.050}  # seconds, the median of all updates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=60, help="of each run")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    command = [sys.executable, "-m", "lastiterate", "explore", "--port", "0", "--json"]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as server:
        try:
            said = [server.stdout.readline() for _ in range(3)]  # type: ignore[union-attr]  # one object
            place = urlsplit(json.loads("".join(said))["url"])
            port = place.port
            COOKIE["Cookie"] = f"lastiterate-{port}={place.query.removeprefix('token=')}"
            ask(port, "/api/answer", {**next(iter(RUNS.values())), "noise_multiplier": "1", "delta": "1e-5"})
            first = time.monotonic() - began
            begun = spent = processor_time(server.pid)
            answers = 30
            for update in range(answers):
                asked = {**next(iter(RUNS.values())), "noise_multiplier": repr(0.5 + 0.001 * update), "delta": "1e-5"}
                ask(port, "/api/answer", asked)
            each = (processor_time(server.pid) - spent) / answers
            found = {name: measure(port, texts, options.updates) for name, texts in RUNS.items()}
        finally:
            server.terminate()
    faults = show(found, first, begun, each)
    if options.json:
        options.json.write_text(json.dumps({"first_answer": first, "processor_time": each, "runs": found}, indent=2))
    sys.exit(1 if faults else 0)


def ask(port: int | None, path: str, texts: dict[str, str]) -> float:
    """Seconds until the whole answer is there."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"{path}?{urlencode(texts)}", headers=COOKIE)
    response = connection.getresponse()
    response.read()
    if response.status != 200:
        raise RuntimeError(f"{path}: {response.status}")
    return time.perf_counter() - began


def measure(port: int | None, texts: dict[str, str], updates: int) -> dict[str, list[float]]:
    """Each update is asked as the page does: first the table, then all lines at once."""
    times: dict[str, list[float]] = {name: [] for name in ASKED}
    with ThreadPoolExecutor(2) as others:
        for update in range(updates):
            asked = {**texts, "noise_multiplier": repr(0.7 + 0.01 * update), "delta": "1e-5"}
            times["table"].append(ask(port, ASKED["table"], asked))
            rest = {name: others.submit(ask, port, ASKED[name], asked) for name in list(ASKED)[1:]}
            for name, answer in rest.items():
                times[name].append(answer.result())
    return times


def processor_time(session: int) -> float:
    """Seconds that all processes of the server have used so far, by what Linux tells."""
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = file.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[3]) == session:
            ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def show(found: dict[str, dict[str, list[float]]], first: float, begun: float, each: float) -> list[str]:
    table = Table(title="An update of the explorer, in milliseconds: median (95% of all)")
    for column in ("run", *ASKED):
        table.add_column(column)
    for run, times in found.items():
        cells = [f"{1e3 * statistics.median(each):.0f} ({1e3 * quantile(each):.0f})" for each in times.values()]
        table.add_row(run, *cells)
    console = Console()
    console.print(table)
    console.print(
        f"From the start of the program to its first answer: {first:.1f} s ({begun:.1f} s of processor time)."
    )
    console.print(f"Processor time of a table, in all processes of the server: {1e3 * each:.0f} ms.")
    faults = []
    for name, seconds in REQUIRED.items():
        median = statistics.median([each for times in found.values() for each in times[name]])
        met = median <= seconds
        faults += [] if met else [name]
        console.print(f"{name}: {1e3 * median:.0f} ms, required {1e3 * seconds:.0f} ms: {'met' if met else 'NOT met'}")
    return faults


def quantile(times: list[float]) -> float:
    return sorted(times)[int(0.95 * (len(times) - 1))]


if __name__ == "__main__":
    main()
