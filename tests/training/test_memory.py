"""Chunks and blocks fit the machine, and compiled programs are kept."""

import os
import subprocess
import sys
from pathlib import Path

from lastiterate.common.system import cache_folder
from lastiterate.training.trainer import choose_chunk_size, working_bytes

PROGRAM = """
import numpy as np
import lastiterate as li
from lastiterate.data import digits
from lastiterate.training import problems, train

run = li.DPSGD(2, 0.01, 1.0, optimizer=li.SGD(0.1))
print(train(run, problems.mlp(digits()), models=4, chunk_size=2).flat().sum())
"""


def test_a_chunk_moves_through_no_more_than_the_working_memory():
    size = choose_chunk_size(100_000, 2_000, 50, models=10_000, workers=2)
    assert size * (100_000 + 50 * 2_000) <= working_bytes() < (size + 1) * (100_000 + 50 * 2_000)


def run_program(**environment: str) -> str:
    variables = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"} | environment
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=variables, capture_output=True, text=True, check=True
    ).stdout


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("atime")}


def test_compiled_programs_are_kept_in_the_users_cache_and_found_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    first = run_program(XDG_CACHE_HOME=str(tmp_path))
    kept = files(cache_folder("compiled"))
    assert kept
    assert run_program(XDG_CACHE_HOME=str(tmp_path)) == first
    assert files(cache_folder("compiled")) == kept
