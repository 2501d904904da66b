"""Kill audits, send them all signals, do every damage to their stores and clusters, and print what held.

python -m tests.tools.reliability --kills 100 --seed 1

Each part is a function that returns rows of the table. What depends on the moment is done at random ones. Linux only.
"""

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.auditing.stores.test_lost import KINDS as LOSSES
from tests.cli.test_stopping import COMMANDS, has_begun, stop
from tests.tools.kill_and_resume import (
    OPTIONS,
    TRAINER,
    Undisturbed,
    compare,
    compare_trials,
    finish,
    run_killed,
    run_undisturbed,
    start,
    trials,
    without_progress,
)
from tests.tools.lost_nodes import SOURCE, Nodes, survive, write_subject
from tests.tools.malformed import flip_many
from tests.web.running import Running

QUICK = ["--method", "clopper-pearson"]
# Exact draws, and canaries of one run, are stored all at once: no kill comes between their first and last trial.
SHARES = {"trainer": 64, "anytime": 60, "two workers": 20, "shipped model": 24, "language model": 24}
SHARES |= {"exact draws": 4, "one run": 4}
KILLS_AN_AUDIT = 8
SUSPEND = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
UNHEARD = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH, signal.SIGPIPE, signal.SIGXFSZ}
STOPPED = {signal.SIGINT: 130, signal.SIGTERM: 143}
NODES = [("digits", "node"), ("trainer", "own raylet"), ("trainer", "gcs"), ("language model", "head")]
# A clock that is set to any day of forty years at every call, whoever asks for it.
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long jump(void) { return random() % 1261440000L - 630720000L; }
int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(which, now);
    if (which == CLOCK_REALTIME) now->tv_sec += jump();
    return status;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec spec;
    clock_gettime(CLOCK_REALTIME, &spec);
    now->tv_sec = spec.tv_sec, now->tv_usec = spec.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *kept) {
    struct timespec spec;
    clock_gettime(CLOCK_REALTIME, &spec);
    if (kept) *kept = spec.tv_sec;
    return spec.tv_sec;
}
"""


@dataclass
class Row:
    """What was done how often, what was checked, and where that did not hold."""

    part: str
    checked: str
    cases: int = 0
    failures: list[str] = field(default_factory=list)
    skipped: str = ""
    between: int = 0  # kills between the first and the last trial

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        """One more case, which held unless it raises."""
        self.cases += 1
        try:
            yield
        except (AssertionError, OSError, LookupError, subprocess.SubprocessError) as error:
            self.failures.append(f"{self.part}, {name}: {error!r}"[:1000])
            print(f"FAILED {self.failures[-1]}", flush=True)

    @property
    def outcome(self) -> str:
        return self.skipped or (f"{len(self.failures)} FAILED" if self.failures else "held")

    @property
    def counted(self) -> str:
        """How many cases there are, and how many of them between the first and the last trial."""
        return f"{self.cases} ({self.between} between)" if self.between else str(self.cases)


class Place:
    """A folder of its own for audits, whose temporary files and processes are seen."""

    def __init__(self, scratch: str) -> None:
        self.folder = Path(scratch)
        self.temporary = self.folder / "t"  # short, as Ray's sockets are in it
        self.temporary.mkdir()
        self.more: dict[str, Any] = {"cwd": self.folder, "env": {"TMPDIR": str(self.temporary), "PYTHONPATH": SOURCE}}

    def subfolder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir()
        return folder

    def options(self, kind: str) -> list[str]:
        """The command of a small audit of this kind."""
        if kind == "language model":
            return [*write_subject(kind, self.folder), *QUICK]
        if kind in ("trainer", "anytime", "two workers"):
            (self.folder / "mine.py").write_text(TRAINER)
            more = ["--anytime"] if kind == "anytime" else QUICK
            return ["audit", "--trainer", "mine.py:train", "--models", "16", *more]
        if kind == "exact draws":
            return [*OPTIONS, "--attack", "adversarial", "--steps", "50", "--models", "4000", *QUICK]
        if kind == "one run":
            return [*OPTIONS, "--attack", "one-run", "--steps", "50", "--models", "100"]
        return [*OPTIONS, "--steps", "100", "--models", "96", *QUICK]

    def check_clean(self, store: Path) -> None:
        """Beside a store is nothing of it, no temporary folder is left, and no process runs."""
        beside = [path.name for path in store.parent.glob(f"{store.name}*") if path != store]
        left = [path.name for path in self.temporary.iterdir() if path.name != "ray"]  # Ray keeps its logs
        assert not beside + left, f"left behind: {beside + left}"
        until = time.monotonic() + 30.0
        while (running := self.processes()) and time.monotonic() < until:
            time.sleep(0.2)
        assert not running, f"still running: {running}"

    def processes(self) -> list[str]:
        """Whoever has our temporary folder in its environment."""
        found, mark = [], f"TMPDIR={self.temporary}\0".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes():
                    found.append((process / "comm").read_text().strip())
            except OSError:
                continue
        return found


@contextmanager
def a_place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as scratch:
        yield Place(scratch)


def kills(count: int, seed: int, shares: dict[str, int] = SHARES) -> list[Row]:
    """Kill audits with signal 9 while ``watch`` reads them, resume them, and compare with undisturbed ones."""
    rows = []
    for kind, share in shares.items():
        row = Row(f"kill -9: {kind}", "same trials to the last bit, none twice, same report, nothing left")
        with workers(kind) as ray, a_place() as place, row.case("all"):
            row.cases = 0
            _kill_audits(place, kind, ray, max(1, round(count * share / sum(shares.values()))), seed, row)
        rows.append(row)
    return rows


def _kill_audits(place: Place, kind: str, ray: list[str], count: int, seed: int, row: Row) -> None:
    options = place.options(kind)
    undisturbed = run_undisturbed(place.folder, options, **place.more)
    with read_by_watch(place.folder):
        for attempt in range(10 * count):
            if row.cases >= count:
                break
            folder = place.subfolder(f"killed-{attempt}")
            wanted = min(KILLS_AN_AUDIT, count - row.cases)
            store, done = run_killed(folder, [*options, *ray], undisturbed, wanted, seed + attempt, **place.more)
            row.cases += len(done)
            row.between += sum(kill.is_between for kill in done)
            place.check_clean(store)
            compare(undisturbed.store, store, *(QUICK if QUICK[0] in options else []))
    assert row.cases >= count, f"{10 * count} audits were done before {count} kills"


@contextmanager
def workers(kind: str) -> Iterator[list[str]]:
    """Options of the engine. Two workers are two nodes of Ray on this machine."""
    if kind != "two workers":
        yield []
        return
    cluster = Nodes()
    try:
        yield ["--engine", "ray", "--address", cluster.address]
    finally:
        cluster.close()


@contextmanager
def read_by_watch(folder: Path) -> Iterator[None]:
    """Read the list and the pages of all stores in a folder all the time, and raise if an answer is a fault."""
    watch, done, faults = Running("watch", str(folder), patience=600.0), threading.Event(), list[str]()

    def read_list() -> None:
        with suppress(OSError, ValueError), watch.events("/api/audits/events") as events:
            while not done.is_set() and events.readline():
                pass

    def read_pages() -> None:
        while not done.wait(10.0):
            for store in sorted(folder.rglob("killed.sqlite"))[-1:]:
                try:
                    status, answer = watch.json("/api/audits/one", store=store.relative_to(folder).as_posix())
                except OSError as error:
                    status, answer = 0, repr(error)
                if status not in (200, 404):  # 404: it has just been removed or is not yet there
                    faults.append(f"{status}: {answer}")

    threads = [threading.Thread(target=each, daemon=True) for each in (read_list, read_pages)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        threads[1].join()
        watch.stop()
    assert not faults, faults[:3]


@contextmanager
def beside_an_undisturbed_audit() -> Iterator[tuple[Place, list[str], Undisturbed]]:
    """A place with the audit of a trainer that nobody touched, and the options of others like it."""
    with a_place() as place:
        options = place.options("trainer")
        yield place, options, run_undisturbed(place.folder, options, **place.more)


def signals(seed: int, numbers: list[int] | None = None, repeat: int = 3, elsewhere: int = 24) -> list[Row]:
    """Send signals to an audit at random moments, and Ctrl-C and SIGTERM to other commands."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # what `nohup` ignores, the audits would ignore as well
    real_time = set(range(signal.SIGRTMIN + 1, signal.SIGRTMAX))
    numbers = sorted(signal.valid_signals() - real_time) if numbers is None else numbers
    stopping = Row("Ctrl-C and SIGTERM", "130 and 143, one sentence; the same command resumes, same trials")
    others = Row("other signals", "goes on, or dies of it at once; the same command resumes, same trials")
    generator = random.Random(seed)
    with beside_an_undisturbed_audit() as (place, options, undisturbed):
        for number in numbers:
            for _ in range(repeat if number in STOPPED else 1):
                row = stopping if number in STOPPED else others
                with row.case(f"signal {number}"):
                    _send(place, options, undisturbed, number, generator)
    anywhere = Row("Ctrl-C and SIGTERM in all commands", "130 and 143, one sentence, nothing left")
    for _ in range(elsewhere):
        command, number = generator.choice(COMMANDS), generator.choice(list(STOPPED))
        with tempfile.TemporaryDirectory() as folder, anywhere.case(command):
            wrong = stop(Path(folder), command, number, generator.uniform(0.0, 4.0))
            assert not wrong, wrong
    return [row for row in (stopping, others, anywhere) if row.cases]


def _send(place: Place, options: list[str], undisturbed: Undisturbed, number: int, generator: random.Random) -> None:
    store = place.folder / f"{number}-{generator.random()}.sqlite"
    more = {**place.more, "limit": ("RLIMIT_CORE", 0)}
    audit = start(store, options, place.folder / "cache", **more)
    enough = generator.choice([0, generator.randint(1, len(trials(undisturbed.store)) // 2)])
    while not has_begun(audit) or (len(trials(store)) < enough and audit.poll() is None):
        time.sleep(0.005)
    time.sleep(generator.uniform(0.0, 0.1 if enough else undisturbed.start_up))
    early = len(trials(store)) < len(trials(undisturbed.store))
    audit.send_signal(number)
    if number in SUSPEND:
        time.sleep(0.3)
        audit.send_signal(signal.SIGCONT)
    said = without_progress(audit.communicate(timeout=120)[1])
    status = 0 if number in SUSPEND | UNHEARD else STOPPED.get(signal.Signals(number), -number)
    assert audit.returncode == status or (audit.returncode == 0 and not early), f"status {audit.returncode}: {said}"
    sentence = r"stopped(; the scores so far are in .*: the same command resumes)?\n"
    assert re.fullmatch(sentence if audit.returncode in STOPPED.values() else "", said), said
    finish(start(store, options, place.folder / "cache", **place.more))
    place.check_clean(store)
    compare_trials(undisturbed.store, store)


def losses(seed: int, kinds: list[Callable[[Path], None]] = LOSSES) -> list[Row]:
    """Take the store away under a running audit."""
    row = Row("stores lost under an audit", "status 3, one sentence, all trials in another store, which resumes")
    generator = random.Random(seed)
    with beside_an_undisturbed_audit() as (place, options, undisturbed):
        for damage in kinds:
            with row.case(damage.__name__):
                folder = place.subfolder(damage.__name__)
                _lose(place, folder, options, damage, generator.randint(1, 16))
                (rescued,) = place.folder.rglob("s-rescued.sqlite")
                compare_trials(undisturbed.store, rescued)
                rescued.unlink()
    return [row]


def _lose(place: Place, folder: Path, options: list[str], damage: Callable[[Path], None], after: int) -> None:
    store = folder / "s.sqlite"
    audit = start(store, options, place.folder / "cache", **place.more)
    while len(trials(store)) < after and audit.poll() is None:
        time.sleep(0.01)
    damage(store)
    said = without_progress(audit.communicate(timeout=120)[1])
    assert audit.returncode == 3, f"status {audit.returncode}: {said}"
    told = re.fullmatch(
        r"the store '.*' was [^\n]* while the audit ran: its (\d+) trials are now in '(.*)', and the same .*\n", said
    )
    assert told, said
    assert after <= int(told[1]) == len(trials(Path(told[2])))
    finish(start(Path(told[2]), options, place.folder / "cache", **place.more))
    place.check_clean(Path(told[2]))


def disks(seed: int, count: int = 8) -> list[Row]:
    """Let no file grow beyond a random size, as on a disk that fills up."""
    row = Row("disks that fill up", "status 3, one sentence; with room the same command finishes, same trials")
    generator = random.Random(seed)
    with beside_an_undisturbed_audit() as (place, options, undisturbed):
        for number in range(count):
            size = generator.randrange(200_000) if number else 0
            limited = {**place.more, "limit": ("RLIMIT_FSIZE", size)}
            with row.case(f"{size} bytes"):
                store = place.folder / f"{number}.sqlite"
                audit = start(store, options, place.folder / "cache", **limited)
                said = without_progress(audit.communicate(timeout=120)[1])
                assert (audit.returncode, said.count("\n")) in ((3, 1), (0, 0)), f"status {audit.returncode}: {said}"
                finish(start(store, options, place.folder / "cache", **place.more))
                place.check_clean(store)
                compare_trials(undisturbed.store, store)
    return [row]


def writers(count: int = 5) -> list[Row]:
    """Start three audits on one store at the same moment."""
    row = Row("three audits on one store", "one writes, the others say so with status 2; same trials")
    busy = r"another process is writing to the store '.*': wait for it or stop it first\n"
    with beside_an_undisturbed_audit() as (place, options, undisturbed):
        for number in range(count):
            with row.case(str(number)):
                store = place.folder / f"{number}.sqlite"
                audits = [start(store, options, place.folder / "cache", **place.more) for _ in range(3)]
                said = [without_progress(audit.communicate(timeout=120)[1]) for audit in audits]
                statuses = sorted(audit.returncode for audit in audits)
                assert statuses in ([0, 2, 2], [0, 0, 2], [0, 0, 0]), f"{statuses}: {said}"  # 0, once one is done
                assert all(re.fullmatch(busy, each) for each in said if each), said
                place.check_clean(store)
                compare_trials(undisturbed.store, store)
    return [row]


def clocks(kinds: tuple[str, ...] = ("trainer", "shipped model")) -> list[Row]:
    """Audit while every look at the clock finds another day."""
    row = Row("clocks that jump", "same trials")
    if not shutil.which("cc"):
        row.skipped = "skipped, as there is no C compiler"
        return [row]
    for kind in kinds:
        with a_place() as place, row.case(kind):
            options = place.options(kind)
            undisturbed = run_undisturbed(place.folder, options, **place.more)
            library = place.folder / "clock.so"
            compiler = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
            subprocess.run(compiler, input=CLOCK, text=True, check=True)
            store = place.folder / "jumping.sqlite"
            jumping = {**place.more, "env": {**place.more["env"], "LD_PRELOAD": str(library)}}
            audit = start(store, options, place.folder / "cache", **jumping)
            _, said = audit.communicate(timeout=240)  # in which XLA wonders how long it takes
            assert audit.returncode == 0, f"status {audit.returncode}: {said[-2000:]}"
            place.check_clean(store)
            compare_trials(undisturbed.store, store)
    return [row]


def flips(seed: int, count: int = 200) -> list[Row]:
    """Flip single bits of a store."""
    row = Row("flipped bits", "one sentence, or no effect; the file is left alone")
    with tempfile.TemporaryDirectory() as folder, row.case(f"{count} bits"):
        row.cases = count
        flip_many(Path(folder), count, seed)
    return [row]


def nodes(cases: list[tuple[str, str]] = NODES) -> list[Row]:
    """Kill nodes, services and the head of a cluster under audits."""
    row = Row("lost nodes and heads of Ray", "goes on without a node; status 3 without a head, and resumes")
    for kind, harm in cases:
        cluster = Nodes()
        try:
            with tempfile.TemporaryDirectory() as folder, row.case(f"{kind}, {harm}"):
                survive(cluster, kind, harm, Path(folder))
        finally:
            cluster.close()
    return [row]


def table(rows: list[Row]) -> str:
    """What held, for people."""
    width = max(len(row.part) for row in rows)
    lines = [f"{row.part:{width}}  {row.counted:18}  {row.outcome:9}  {row.checked}" for row in rows]
    failures = [f"FAILED {failure}" for row in rows for failure in row.failures]
    return "\n".join([f"{'part':{width}}  {'cases':18}  outcome    checked", *lines, *failures])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="some parts, with commas between them")
    asked = parser.parse_args()
    parts: dict[str, Callable[[], list[Row]]] = {
        "kills": lambda: kills(asked.kills, asked.seed),
        "signals": lambda: signals(asked.seed),
        "losses": lambda: losses(asked.seed),
        "disks": lambda: disks(asked.seed),
        "writers": writers,
        "clocks": clocks,
        "flips": lambda: flips(asked.seed),
        "nodes": nodes,
    }
    chosen = asked.only.split(",") if asked.only else list(parts)
    if unknown := set(chosen) - set(parts):
        parser.error(f"--only must name parts out of {', '.join(parts)}, got {', '.join(sorted(unknown))}")
    os.environ["PYTHONPATH"] = SOURCE  # also to those who work in other folders
    # which nohup and & have ignored, here and in children
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    rows = [row for name in chosen for row in parts[name]()]
    print(table(rows))
    sys.exit(any(row.failures for row in rows))


if __name__ == "__main__":
    main()
