"""Kill an audit again and again, resume it by the same command, and compare it with one that nobody touched."""

import json
import math
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = [sys.executable, "-m", "lastiterate"]
OPTIONS = ["audit", "--model", "logistic", "--sample-rate", "0.1", "--noise-multiplier", "1"]
TRAINER = """
import random, time
import lastiterate
run = lastiterate.DPSGD(steps=10, sample_rate=0.1, noise_multiplier=1.0)

def train(seed, canary):
    time.sleep(0.05)
    return random.Random(seed).gauss(0.5 * canary, 1.0)
"""


@dataclass(frozen=True)
class Undisturbed:
    """An audit that ran in one go: its store, and how long it took to the first trials and to the end."""

    store: Path
    start_up: float
    seconds: float


@dataclass(frozen=True)
class Kill:
    """A session that was killed: after how many seconds, and what the store had before and afterwards."""

    after: float
    before: int
    stored: int
    planned: int

    @property
    def is_between(self) -> bool:
        """Whether this session had stored trials of its own, and the last trial was not yet stored."""
        return self.before < self.stored < self.planned

    def __str__(self) -> str:
        return f"killed after {self.after:5.2f} s: {self.before} -> {self.stored} of {self.planned} trials"


def start(store: Path, options: list[str], folder: Path, **more: Any) -> subprocess.Popen[str]:
    """Begin an audit or resume it. Programs that it compiles are kept in a folder of ours, to be killed over, too."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder), **more.pop("env", {})}
    command = [*limiting(*more.pop("limit", ())), *PROGRAM, *options, "--store", str(store), "--json"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def limiting(resource: str = "", most: int = 0) -> list[str]:
    """What a command begins with whose process may have at most so much of a resource."""
    if not resource:
        return []
    limit = f"resource.setrlimit(resource.{resource}, ({most}, {most}))"
    return [sys.executable, "-c", f"import os, resource, sys; {limit}; os.execv(sys.argv[1], sys.argv[1:])"]


def finish(audit: subprocess.Popen[str]) -> str:
    """What an audit prints in the end."""
    output, said = audit.communicate()
    errors = without_progress(said)
    if audit.returncode or errors:
        raise AssertionError(f"the audit exits with {audit.returncode} and says {errors!r}")
    return output


def without_progress(said: str) -> str:
    """Drop the lines that a long command prints every 15 seconds."""
    return re.sub(r"^\[\d+ s\] .*\n", "", said, flags=re.MULTILINE)


def trials(store: Path) -> list[tuple[object, ...]]:
    """All trials that are stored, but for how long they took."""
    return _rows(store, "SELECT model, world, score, quality FROM trials ORDER BY model, world")


def report(store: Path, *options: str) -> dict[str, object]:
    """What ``lastiterate report`` says, but for where the store is and how long it took."""
    command = [*PROGRAM, "report", str(store), *options, "--json"]
    said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {name: value for name, value in said.items() if name not in ("store", "seconds")}


def run_undisturbed(folder: Path, options: list[str], **more: Any) -> Undisturbed:
    """An audit to compare with."""
    store, began, start_up = folder / "undisturbed.sqlite", time.monotonic(), 0.0
    audit = start(store, options, folder / "cache-undisturbed", **more)
    while audit.poll() is None and not start_up:
        time.sleep(0.02)
        start_up = time.monotonic() - began if trials(store) else 0.0
    finish(audit)
    return Undisturbed(store, start_up, time.monotonic() - began)


def run_killed(
    folder: Path, options: list[str], undisturbed: Undisturbed, count: int, seed: int, **more: Any
) -> tuple[Path, list[Kill]]:
    """An audit that is killed so many times, and then finished.

    Nine of ten kills come once the session has stored a random number of new trials, and a random part of the time
    between two commits later; the others at any moment before. Trials and not seconds are counted, as a machine may be
    busier now than before.
    """
    store, cache, generator = folder / "killed.sqlite", folder / "cache-killed", random.Random(seed)
    planned = len(trials(undisturbed.store))
    most = max(1, int(1.5 * planned / (count + 1)))
    gap = (undisturbed.seconds - undisturbed.start_up) / max(1, len(_rows(undisturbed.store, "SELECT 1 FROM chunks")))
    kills: list[Kill] = []
    while len(kills) < count:
        before, began = len(trials(store)), time.monotonic()
        enough, patience = generator.randint(1, most), math.inf
        if generator.random() < 1 / 10:
            enough, patience = 1, generator.uniform(0.0, undisturbed.start_up)
        audit = start(store, options, cache, **more)
        while audit.poll() is None and time.monotonic() - began < patience and len(trials(store)) < before + enough:
            time.sleep(0.005)
        time.sleep(generator.uniform(0.0, min(gap, 0.5)))
        audit.kill()
        _, errors = audit.communicate()
        if audit.returncode == 0:  # it was done before
            break
        assert audit.returncode == -signal.SIGKILL, f"it broke by itself, {audit.returncode}: {errors}"
        kills.append(Kill(time.monotonic() - began, before, len(trials(store)), planned))
        print(f"{len(kills):3}  {kills[-1]}", flush=True)
    finish(start(store, options, cache, **more))
    return store, kills


def _rows(store: Path, query: str) -> list[tuple[object, ...]]:
    if not store.exists():
        return []
    with closing(sqlite3.connect(store.absolute().as_uri() + "?mode=ro", uri=True)) as database:
        try:
            return database.execute(query).fetchall()
        except sqlite3.OperationalError:  # which is just being made
            return []


def compare_trials(undisturbed: Path, killed: Path) -> None:
    """The same trials, none lost, none twice, every bit of every score."""
    one, other = trials(undisturbed), trials(killed)
    assert one, "there is nothing to compare with"
    assert len({row[:2] for row in other}) == len(other), "a trial is stored twice"
    assert [row[:2] for row in one] == [row[:2] for row in other], "trials are missing, or others are there"
    assert one == other, "scores differ"


def compare(undisturbed: Path, killed: Path, *options: str) -> None:
    """The same trials, and the same report."""
    compare_trials(undisturbed, killed)
    assert report(undisturbed, *options) == report(killed, *options), "reports differ"
