"""Trainers in files of their own, in real processes: what they may import, be called and print."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lastiterate
from lastiterate.auditing.user_code import import_file

RUN = "--steps 1 --sampling full --noise-multiplier 1 --models 4"


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    """The path and the modules as they were."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        del sys.modules[name]


def audit(folder: Path, file: str, options: str = RUN) -> subprocess.CompletedProcess[str]:
    """The command as it is installed: with its own folder first on the path, and neither this one nor the trainer's."""
    program = "import sys; sys.path[0] = ''; del sys.path[0]; from lastiterate.cli.app import app; app()"
    store = folder.parent / "store.sqlite"
    command = ["audit", "--trainer", f"{folder / file}:train", *options.split(), "--store", str(store), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(Path(lastiterate.__file__).parents[1])}
    run = subprocess.run(
        [sys.executable, "-c", program, *command], cwd=folder.parent, env=environment, capture_output=True, text=True
    )
    store.unlink(missing_ok=True)
    return run


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.py").write_text(content)
    return folder


def test_a_trainer_called_like_a_module_of_python_imports_what_is_beside_it_and_spoils_nothing(tmp_path):
    """Also late, inside the function, and in a process that it starts; what it prints by whatever way is on stderr."""
    folder = write(
        tmp_path / "code",
        json="""
import ctypes, json, os
from dataclasses import dataclass
from multiprocessing import get_context
import helper

@dataclass
class Score:
    value: float

def doubled(score):
    return Score(2 * score.value)

def train(seed, canary):
    import late
    print("from Python")
    ctypes.CDLL(None).printf(b"from C, and kept back\\n")
    os.system("echo from a shell")
    if not os.path.exists("started"):
        open("started", "w").close()
        with get_context("spawn").Pool(1) as pool:
            assert pool.map(doubled, [Score(2.0)]) == [Score(4.0)]
    return json.loads(late.text(canary)) + helper.zero

print("loaded as", __name__)
if __name__ == "__main__":
    raise SystemExit("run as a program")
""",
        helper="import deeper\nzero = deeper.zero\n",
        deeper="zero = 0.0\n",
        late="import numpy\ntext = lambda canary: str(float(numpy.float64(canary)))\n",
        numpy="raise RuntimeError('this is no numpy')\n",
        scipy="raise RuntimeError('this is no scipy')\n",
        sqlite3="raise RuntimeError('this is no sqlite3')\n",
    )
    run = audit(folder, "json.py")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["models"] == 4
    for words in ("from Python", "from C, and kept back", "from a shell", "loaded as lastiterate.auditing"):
        assert words in run.stderr
    assert "run as a program" not in run.stderr


def test_two_files_of_one_name_are_two_modules_and_a_changed_file_is_read_again(tmp_path):
    one, two = (write(tmp_path / name, mine=f"WHERE = {name!r}\n") / "mine.py" for name in ("one", "two"))
    first, second = import_file(one), import_file(two)
    assert (first.WHERE, second.WHERE) == ("one", "two")
    assert first.__name__.endswith(f"user_code.{one.with_suffix('')}")
    assert sys.modules[first.__name__] is first
    assert sys.modules[second.__name__] is second
    one.write_text("WHERE = 'changed by now'\n")
    assert import_file(one).WHERE == "changed by now"
