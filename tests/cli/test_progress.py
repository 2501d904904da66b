"""Progress in logs: a line every 15 seconds, or as often as LASTITERATE_PROGRESS says."""

import json
import os
import re
import subprocess
import sys
import time

import pytest

from lastiterate.cli import output
from lastiterate.common.progress import lines
from tests.tools.kill_and_resume import TRAINER, without_progress
from tests.tools.lost_nodes import SOURCE


@pytest.mark.parametrize(("seconds", "said"), [("1", r"(\[[1-9] s\] training: [23] of 3\n){2,3}"), ("0", "")])
def test_without_a_terminal_a_line_says_what_is_done(monkeypatch, capsys, seconds, said):
    monkeypatch.setenv("LASTITERATE_PROGRESS", seconds)
    with lines():
        for _ in output.tracker("training")(range(3)):
            time.sleep(0.8)
    time.sleep(1.1)  # nothing is printed afterwards
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(said, err), err


def test_a_long_command_prints_lines_and_whole_json(tmp_path):
    (tmp_path / "mine.py").write_text(TRAINER.replace("0.05", "0.5"))
    options = ["audit", "--trainer", "mine.py:train", "--models", "3", "--method", "clopper-pearson"]
    environment = {**os.environ, "LASTITERATE_PROGRESS": "1", "PYTHONPATH": SOURCE}
    command = [sys.executable, "-m", "lastiterate", *options, "--store", "s.sqlite", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["models"] == 3
    assert re.search(r"^\[\d+ s\] training: [1-5]/6 models of 10 steps, ", done.stderr, re.MULTILINE), done.stderr
    assert without_progress(done.stderr) == ""
