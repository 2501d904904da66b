"""Models that are finished are stored before the next begins, whatever the next does: in real processes."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

TRAINER = """
import os, sys, time
calls = 0

def train(seed, canary):
    global calls
    calls += 1
    if calls == 8:
        print("next", file=sys.stderr, flush=True)
        how = os.environ["HOW"]
        if how == "exit":
            os._exit(9)
        if how == "sys.exit":
            sys.exit(9)
        if how == "kill":
            os.kill(os.getpid(), 9)
        if how == "hold":  # nothing else of this process runs any more, no thread either
            import re
            re.match("(a+)+b", "a" * 60)
        while how == "hang":
            time.sleep(0.1)
    return seed % 100 / 50
"""
ENDS = {"exit": 9, "sys.exit": 3, "kill": -signal.SIGKILL}


def stored(path):
    if not path.exists():
        return 0
    with closing(sqlite3.connect(path.as_uri() + "?mode=ro", uri=True)) as database:
        return database.execute("SELECT count(*) FROM trials").fetchone()[0]


@pytest.mark.parametrize("how", ["exit", "sys.exit", "kill", "hang", "hold", "ctrl-c"])
def test_quick_models_are_stored_before_the_next_one_hangs_or_ends_everything(tmp_path, how):
    (tmp_path / "t.py").write_text(TRAINER)
    store = tmp_path / "s.sqlite"
    run = ["--steps", "30", "--sample-rate", "0.1", "--noise-multiplier", "1", "--models", "10"]
    command = [sys.executable, "-m", "lastiterate", "audit", "--trainer", "t.py:train", *run, "--store", str(store)]
    environment = {**os.environ, "HOW": "hang" if how == "ctrl-c" else how}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as audit:
        try:
            assert audit.stderr.readline() == "next\n"
            if how in ("hang", "hold", "ctrl-c"):
                time.sleep(0.2)
                assert stored(store) == 7
                audit.send_signal(signal.SIGINT if how == "ctrl-c" else signal.SIGKILL)
            audit.wait(60)
        finally:
            audit.kill()
    assert audit.returncode == ENDS.get(how, 130 if how == "ctrl-c" else -signal.SIGKILL)
    assert stored(store) == 7
