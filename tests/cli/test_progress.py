from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time

import pytest

from lastiterate.cli import output as progress
from lastiterate.common.progress import lines
from tests.auditing.engines.lost_nodes import SOURCE
from tests.auditing.kill_and_resume import TRAINER, without_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_long_work_shows_a_bar_on_stderr(monkeypatch, capsys):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("lastiterate.common.progress.PATIENCE", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    done = []
    for item in progress.tracker("training")(range(3)):
        time.sleep(0.15)
        done.append(item)
    assert done == [0, 1, 2]
    assert "training" in screen.getvalue()
    assert capsys.readouterr().out == ""


def test_quick_work_shows_nothing(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    assert list(progress.tracker("training")(range(3))) == [0, 1, 2]
    assert screen.getvalue() == ""


@pytest.mark.parametrize(("seconds", "said"), [("1", r"(\[[1-9] s\] training: [23] of 3\n){2,3}"), ("0", "")])
def test_without_a_terminal_a_line_says_what_is_done(monkeypatch, capsys, seconds, said):
    monkeypatch.setenv("LASTITERATE_PROGRESS", seconds)
    with lines():
        for _ in progress.tracker("training")(range(3)):
            time.sleep(0.8)
    time.sleep(1.1)  # nothing is printed afterwards
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(said, err), err


def test_a_long_command_prints_lines_and_whole_json(tmp_path):
    (tmp_path / "mine.py").write_text(TRAINER.replace("0.05", "0.5"))
    options = [
        "audit",
        "--trainer",
        "mine.py:train",
        "--models",
        "3",
        "--method",
        "clopper-pearson",
        "--store",
        "s.sqlite",
    ]
    environment = {**os.environ, "LASTITERATE_PROGRESS": "1", "PYTHONPATH": SOURCE}
    command = [sys.executable, "-m", "lastiterate", *options, "--store", "s.sqlite", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["models"] == 3
    assert re.search(r"^\[\d+ s\] training: [1-5]/6 models of 10 steps, ", done.stderr, re.MULTILINE), done.stderr
    assert without_progress(done.stderr) == ""
