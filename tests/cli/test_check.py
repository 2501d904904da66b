"""``lastiterate check`` with its four statuses, and the files it writes."""

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.tools import trainers

FILE = """
from trainers_of_tests import Numpy, li, short

run = short(steps=8, sample_rate=0.25, noise_multiplier=2.0)
train = Numpy(run)
wrong = Numpy(run, fault="clip norm", size=1.5)
rare = Numpy(short(steps=8, sample_rate=0.25, noise_multiplier=2.0))


def apart(seed, canary):  # takes no steps, and 8 models do not tell twice the rate
    return rare(seed, canary)


number = 3


def broken(seed, canary, steps):
    raise RuntimeError("no GPU")


def talks(seed, canary, steps):
    print("epoch 1")
    return train(seed, canary, steps)
"""
RUN = "--steps 8 --sample-rate .25 --noise-multiplier 2 --learning-rate .002"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(Path(trainers.__file__), tmp_path / "trainers_of_tests.py")
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "plain.py").write_text(FILE.replace("run = short", "declared = short").replace("(run", "(declared"))
    return tmp_path


def test_a_correct_training_passes_with_status_0(cli, mine):
    result = cli("check --trainer mine.py:train --seed 1")
    assert result.exit_code == 0, result.output
    assert "checks passed." in result.stdout
    assert "noise x" in result.stdout
    assert result.stdout.startswith("mine.py:train: 8 steps, sample rate 0.25")


def test_a_fault_is_status_1_and_says_where_to_look(cli, mine):
    result = cli("check --trainer mine.py:wrong")
    assert result.exit_code == 1, result.output
    assert "clipped to another norm" in result.stdout


def test_a_trainer_that_breaks_is_status_3(cli, mine):
    result = cli("check --trainer mine.py:broken")
    assert result.exit_code == 3
    assert "RuntimeError: no GPU" in result.stderr


def test_json_is_alone_on_stdout(cli, mine):
    result = cli("check --trainer mine.py:talks --json --seed 1")
    fields = json.loads(result.stdout)
    assert fields["passed"] is True
    assert fields["clip_norm"] == 1.0
    assert fields["models"] == 32
    assert fields["summary"].startswith("All ")
    assert any(row["smallest_fault"] for row in fields["rows"])
    assert {row["status"] for row in fields["rows"]} <= {"ok", "not checked"}


def test_a_junit_file_and_a_picture_are_written_beside(cli, mine):
    result = cli("check --trainer mine.py:wrong --junit found.xml --plot found.svg")
    assert result.exit_code == 1
    suite = ElementTree.parse(mine / "found.xml").getroot()
    assert int(suite.get("failures")) >= 1
    assert (mine / "found.svg").read_text().startswith("<svg")
    assert "JUnit file: found.xml" in result.stdout
