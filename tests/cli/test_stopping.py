"""Ctrl-C and SIGTERM, sent to real processes at any moment: one sentence, a status, and nothing is left behind.

All of it takes about a minute; ``python -m tests.tools.reliability --only signals`` sends more at random moments.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lastiterate.cli.audit_options import resumable

RUN = "--steps 1000 --sample-rate 0.01 --noise-multiplier 1 --delta 1e-5"
COMMANDS = [
    "audit --models 64 --store s.sqlite",
    f"epsilon {RUN} --plot a.html",
    f"power {RUN} --models 4096 --plot a.html",
    "audit-lm --help",
    "probe shift",
]
TRAINER = """
import os, signal, subprocess, sys, time
import lastiterate as li
run = li.DPSGD(steps=30, sample_rate=0.1, noise_multiplier=1.0)

def slow(seed, canary):
    open("began", "w").close()
    time.sleep(60)

def forks(seed, canary):
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    time.sleep(0.1)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    return float(seed % 7 + canary)
"""


def start(folder, command, **environment):
    (folder / "temporary").mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "lastiterate", *command.split()],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(folder / "temporary"), **environment},
    )  # fmt: skip


def is_left_behind(folder):
    return [*(folder / "temporary").iterdir(), *folder.rglob("*.part")]


def has_begun(process):
    """Whether Python itself has started, for which nobody can answer: the program's first act is to catch SIGTERM."""
    if process.poll() is not None:
        return True
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def stop(folder, command, number, seconds):
    """What went wrong, if anything, where a signal came so many seconds after the program began."""
    process = start(folder, command)
    while not has_begun(process):
        time.sleep(0.002)
    time.sleep(seconds)
    process.send_signal(number)
    errors = process.communicate(timeout=120)[1]
    if process.returncode in (0, 1, 4) and not errors:  # it was done before
        return ""
    sentence = r"stopped(; (what was trained is|the scores so far are) in .*: the same command resumes)?\n"
    fine = process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number] and re.fullmatch(sentence, errors)
    left = is_left_behind(folder)
    return "" if fine and not left else f"{command} after {seconds:.3f} s: {process.returncode}, {errors}, left {left}"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_models_are_trained_says_how_to_resume(tmp_path, number, status):
    (tmp_path / "mine.py").write_text(TRAINER)
    process = start(tmp_path, "audit --trainer mine.py:slow --models 4 --store s.sqlite")
    while not (tmp_path / "began").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (status, "")
    assert errors == "stopped; the scores so far are in s.sqlite: the same command resumes\n"
    assert not is_left_behind(tmp_path)
    assert [each.name for each in tmp_path.glob("s.sqlite*")] == ["s.sqlite"]  # no lock and no log


def test_a_signal_while_a_training_is_checked_is_one_sentence_and_nothing_is_written(tmp_path):
    (tmp_path / "mine.py").write_text(TRAINER)
    process = start(tmp_path, "check --trainer mine.py:slow --models 8 --junit found.xml --json")
    while not (tmp_path / "began").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert (*process.communicate(timeout=60), process.returncode) == ("", "stopped\n", 130)
    assert not is_left_behind(tmp_path)
    assert not (tmp_path / "found.xml").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_temporary_files_go(tmp_path, number):
    code = (
        "import time\nfrom pathlib import Path\nfrom lastiterate.cli.signals import watch\n"
        "from lastiterate.common.atomic_write import removed_afterwards\n"
        "watch()\nwith removed_afterwards(Path('.x.part')):\n    Path('.x.part').touch()\n"
        "    print('began', flush=True)\n    time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "began\n"
    process.send_signal(number)
    process.communicate(timeout=30)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("ignored", [True, False])
def test_the_handler_of_a_signal_is_afterwards_what_it_was(tmp_path, number, ignored):
    usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    before = signal.SIG_IGN if ignored else usual
    own = signal.signal(number, before)
    try:
        with resumable(tmp_path):
            assert (signal.getsignal(number) is before) == ignored
        assert signal.getsignal(number) is before
    finally:
        signal.signal(number, own)
