"""A pipe beside a store is refused before SQLite opens it: SQLite would wait for the pipe forever."""

import os
import subprocess
import sys

import pytest

from tests.auditing.stores.test_store import begin


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
@pytest.mark.parametrize("ending", ["-wal", "-shm", "-journal"])
def test_a_pipe_beside_a_store_is_one_sentence(path, ending):
    begin(path).close()
    os.mkfifo(f"{path}{ending}")
    command = [sys.executable, "-m", "lastiterate", "report", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert f"{ending}' must be a file, got a device" in ended.stderr
