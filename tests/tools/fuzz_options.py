"""Good and bad values for all options of all commands, each case a process of its own in an empty folder.

    python -m tests.tools.fuzz_options --cases 5000 --seed 0

What must hold: a refusal has status 2, one line on stderr, and leaves nothing behind; everything else ends with a
documented status; nobody ever sees a traceback or a warning. Cases are forked from one process that has imported
everything, since starting Python takes longer than most commands; every fiftieth is started from scratch.
"""

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lastiterate
from tests.tools.given_files import make_files
from tests.tools.option_cases import FILES, cases

ANSWERS = (0, 1, 4)  # judged and not refuted, refuted, inconclusive
REFUSED, BROKE = 2, 3
TRAINING = ("audit", "check", "audit-lm", "probe", "reproduce")  # may take as long as the options ask for
SERVERS = ("explore", "watch")  # are done when they have said where they are
_FROM_SCRATCH = 50
_MEMORY = 8 * 2**30
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "JAX_PLATFORMS": "cpu",
    "PYTHONDONTWRITEBYTECODE": "1",
    "COLUMNS": "120",
    "BROWSER": "true",
}


@dataclass(frozen=True)
class Ended:
    """How a case ended; status None: it was still at work when its time was over."""

    arguments: list[str]
    status: int | None
    stdout: str
    stderr: str
    changed: list[str]
    seconds: float

    def faults(self) -> list[str]:
        """What is wrong with it, in words."""
        found = []
        if self.status is None and self.arguments[0] not in TRAINING:
            found.append("takes too long")
        elif self.status is not None and self.status not in (*ANSWERS, REFUSED, BROKE):
            found.append(f"ends with the undocumented status {self.status}")
        if "Traceback" in self.stderr or "Warning" in self.stderr:
            found.append("shows a traceback or a warning")
        if self.status in (REFUSED, BROKE) and len(self.stderr.splitlines()) != 1:
            found.append(f"says {len(self.stderr.splitlines())} lines, not one")
        if self.status == REFUSED and self.stdout:
            found.append("refuses, but prints something on stdout")
        if self.status == REFUSED and self.changed:
            found.append(f"refuses, but leaves {', '.join(self.changed)}")
        if self.status in ANSWERS and "--json" in self.arguments and not _is_json(self):
            found.append("prints something else than one JSON object")
        return found


def _is_json(ended: Ended) -> bool:
    if "Usage:" in ended.stdout:  # --help
        return True
    try:
        return isinstance(json.loads(ended.stdout, parse_constant=lambda name: None), dict)
    except ValueError:
        return False


class Fuzzer:
    """Runs cases, several at a time, each in a folder of its own."""

    def __init__(self, folder: Path, limit: float, workers: int) -> None:
        self.folder, self.limit, self.workers = folder, limit, workers
        self.files = folder / "given"
        self.cache = folder / "compiled"  # of JAX: the same few programs again and again
        os.environ.update(_ENVIRONMENT | {"JAX_COMPILATION_CACHE_DIR": str(self.cache), "HOME": str(folder / "home")})
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        os.environ["PYTHONPATH"] = str(Path(lastiterate.__file__).parents[1])  # whatever the folder of a case
        make_files(self.files)
        _import_everything()

    def run(self, commands: Iterator[list[str]]) -> Iterator[Ended]:
        """How each of the commands ends, in any order."""
        numbered = enumerate(commands)
        running: dict[int, tuple[list[str], Path, float, list[str], dict[str, str]]] = {}
        while True:
            for number, arguments in itertools.islice(numbered, self.workers - len(running)):
                place = self.folder / f"case{number}"
                real = [self._materialize(place, each) for each in arguments]
                before = _listing(place)
                pid = self._start(place, real, number % _FROM_SCRATCH == _FROM_SCRATCH - 1)
                running[pid] = (real, place, time.monotonic(), arguments, before)
            if not running:
                return
            for pid, (real, place, began, _, before) in list(running.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                seconds = time.monotonic() - began
                serves = not ended and real[0] in SERVERS and "http://" in self._said(place, "out")
                is_early = seconds < self.limit or (not ended and self._has_had_little(pid, real, seconds))
                if not ended and not serves and is_early:
                    continue
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                if not ended:
                    os.waitpid(pid, 0)
                del running[pid]
                code = os.waitstatus_to_exitcode(status) if ended else 0 if serves else None
                texts = [self._said(place, kind) for kind in ("out", "err")]
                yield Ended(real, code, texts[0], texts[1], _changes(before, _listing(place)), seconds)
                shutil.rmtree(place)
                for kind in ("out", "err"):
                    (self.folder / f"{place.name}.{kind}").unlink()
            time.sleep(0.002)

    def _said(self, place: Path, kind: str) -> str:
        return (self.folder / f"{place.name}.{kind}").read_text("utf-8", "replace")

    def _has_had_little(self, pid: int, arguments: list[str], seconds: float) -> bool:
        """Whether a command that must not take long has had less of a processor than it may: others are busy, too."""
        if arguments[0] in TRAINING or seconds > 20 * self.limit:
            return False
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]  # its own, and its children's
        return sum(map(int, times)) < self.limit * os.sysconf("SC_CLK_TCK")

    def _materialize(self, place: Path, argument: str) -> str:
        """Give the case the file that its argument names after @, and the argument without that."""
        for part in ("home", "tmp", "a/b/here"):
            (place / part).mkdir(parents=True, exist_ok=True)
        if "@" not in argument:
            return argument
        name = next((each for each in FILES if argument.partition("@")[2].startswith(each)), None)
        if name and not os.path.lexists(place / "a/b/here" / name):
            copy = shutil.copytree if (self.files / name).is_dir() else shutil.copyfile
            copy(self.files / name, place / "a/b/here" / name, **_AS_LINK.get(name, {}))
        return argument.replace("@", "")

    def _start(self, place: Path, arguments: list[str], from_scratch: bool) -> int:
        outputs = [open(self.folder / f"{place.name}.{kind}", "wb") for kind in ("out", "err")]  # noqa: PTH123, SIM115
        here = place / "a/b/here"
        environment = {"HOME": str(place / "home"), "TMPDIR": str(place / "tmp")}
        if from_scratch and not any("\0" in each for each in arguments):
            words = [each.encode("utf-8", "surrogateescape") for each in arguments]
            with contextlib.ExitStack() as stack:
                for output in outputs:
                    stack.enter_context(output)
                process = subprocess.Popen(
                    [sys.executable, "-m", "lastiterate", *words],
                    cwd=here, stdin=subprocess.DEVNULL, stdout=outputs[0], stderr=outputs[1],
                    env=os.environ | environment, start_new_session=True,
                )  # fmt: skip
            process.returncode = 0  # waited for by its number
            return process.pid
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _be_the_program(here, environment, outputs, arguments)
        for output in outputs:
            output.close()
        return pid


_AS_LINK: dict[str, Any] = {"loop": {"follow_symlinks": False}}


def _be_the_program(here: Path, environment: dict[str, str], outputs: list[Any], arguments: list[str]) -> None:
    """In the forked process: become ``lastiterate`` with these arguments, and never return."""
    status = 70
    try:
        os.setsid()
        os.chdir(here)
        os.environ.update(environment)
        tempfile.tempdir = None
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in enumerate([nothing, outputs[0].fileno(), outputs[1].fileno()]):
            os.dup2(source, target)
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
        from lastiterate.cli.app import app
        from lastiterate.paper.reproduce import figure1

        figure1._POINTS = {"quick": 3, "full": 4}  # figures are computed in full by their own tests
        figure1._STEPS = {"a": (10, 1000), "b": (1000, 100_000), "c": (300, 10_000)}
        try:
            app(arguments, prog_name="lastiterate")
        except SystemExit as left:
            status = left.code if isinstance(left.code, int) else 71
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _import_everything() -> None:
    """What commands import when they need it; nothing that starts threads, which would not survive a fork."""
    import warnings

    import altair  # noqa: F401
    import equinox  # noqa: F401
    import jax  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import transformers.models.auto  # noqa: F401

    import lastiterate.attacks.input_space
    import lastiterate.auditing.experiments.choose
    import lastiterate.auditing.run_audit
    import lastiterate.cli.report
    import lastiterate.lm  # noqa: F401

    warnings.filterwarnings("ignore", message=r"os\.fork\(\)")


def _listing(place: Path) -> dict[str, str]:
    """Every file and folder, and a digest of what is in it."""
    found = {}
    for folder, _, files in os.walk(place):
        found[os.path.relpath(folder, place)] = "folder"
        for file in files:
            path = Path(folder) / file
            name = os.path.relpath(path, place)
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
    return found


def _changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return sorted(ascii(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def _show(ended: Ended, faults: list[str]) -> None:
    shown = shlex.join(each if len(each) < 100 else f"{each[:20]}...{len(each)}" for each in ended.arguments)
    print(f"lastiterate {shown.encode('utf-8', 'backslashreplace').decode()}")
    print(f"    {'; '.join(faults)} (status {ended.status}, {ended.seconds:.1f} s)")
    for line in ended.stderr.splitlines()[-4:]:
        print(f"    | {line[:200]}", flush=True)


def main() -> int:
    """Run the cases, print what does not hold and a count of how they ended; status 1 if anything does not."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=30.0, help="seconds for one case")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--command", help="only this one")
    asked = parser.parse_args()
    ends: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    faulty = 0
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(Path(folder), asked.limit, asked.workers)
        wanted = (case for case in cases(asked.seed) if asked.command in (None, case[0]))
        for ended in fuzzer.run(itertools.islice(wanted, asked.cases)):
            seconds[ended.arguments[0]] += ended.seconds
            ends["still training" if ended.status is None else f"status {ended.status}"] += 1
            if faults := ended.faults():
                faulty += 1
                _show(ended, faults)
            if sum(ends.values()) % 250 == 0:
                print(f"{sum(ends.values())} cases, {faulty} faulty: {dict(ends)}", file=sys.stderr)
    print(f"{asked.cases} cases: {', '.join(f'{count} {end}' for end, count in sorted(ends.items()))}; {faulty} faulty")
    print(f"seconds: {', '.join(f'{command} {spent:.0f}' for command, spent in seconds.most_common())}")
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
