"""The source of a user's code: which files it is in, and which code is nobody's but ours."""

import subprocess
import sys

import pytest

from lastiterate.auditing.user_code import neighbours, own_source

MINE = "import helper\ndef train(seed, canary):\n    return helper.score(seed) + canary\n"
HELPER = "import deeper\ndef score(seed):\n    return deeper.NOISE * (seed % 7)\n"


def test_a_file_its_helpers_and_their_helpers_are_the_source(load):
    train = load(mine=MINE, helper=HELPER, deeper="NOISE = 1.0\n", other="NOISE = 1.0\n")
    first = own_source(train)
    assert own_source(load()) == first
    for changed in (
        {"deeper": "NOISE = 2.0\n"},
        {"helper": HELPER + "# a comment\n"},
        {"mine": MINE + "\n"},
        {"mine": MINE.replace("\n", "\r\n")},
        {"mine": MINE.encode() + b"# \xff"},
    ):
        assert own_source(load(**changed)) != first
        load(mine=MINE, helper=HELPER, deeper="NOISE = 1.0\n")
    assert own_source(load(other="NOISE = 2.0\n")) == first
    assert own_source(load()) == first


@pytest.mark.parametrize(
    "line",
    [
        "import box.part",
        "import box.part as p",
        "from box import part",
        "from box.part import NUMBER",
        "from box.part import *",
        "if False:\n    import box.part",
    ],
)
def test_every_way_to_import_leads_to_the_module_and_its_package(load, line):
    mine = f"{line}\ndef train(seed, canary):\n    return 0.0\n"
    files = {"box__in____init__": "", "box__in__part": "from . import inner\nNUMBER = 1\n", "box__in__inner": "X = 1\n"}
    train = load(mine=mine, **files)
    found = {path.name for path in neighbours(_file(train))}
    assert found == {"mine.py", "__init__.py", "part.py", "inner.py"}


def test_which_folder_code_is_in_does_not_count_but_which_helper_is_which_does(load, tmp_path):
    train = load(mine="import one, two\ndef train(seed, canary):\n    return 0.0\n", one="X = 1\n", two="X = 2\n")
    first = own_source(train)
    assert own_source(load(one="X = 2\n", two="X = 1\n")) != first
    load(one="X = 1\n", two="X = 2\n")
    copied = tmp_path / "elsewhere"
    subprocess.run(["cp", "-r", str(_file(train).parent), str(copied)], check=True)
    assert _in_another_process(copied, "from mine import train", "own_source(train)") == first


def _file(function):
    from pathlib import Path

    return Path(function.__code__.co_filename)


def _in_another_process(folder, code, expression):
    program = f"from lastiterate.auditing.user_code import own_source\n{code}\nprint({expression})"
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, cwd=folder, env=_environment(), capture_output=True, text=True, check=True)
    return found.stdout.strip()


def _environment():
    import os
    from pathlib import Path

    import lastiterate

    return {**os.environ, "PYTHONPATH": str(Path(lastiterate.__file__).parents[1])}
