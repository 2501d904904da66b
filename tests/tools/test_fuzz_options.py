"""A sample of ``fuzz_options``: in one process, since it forks its cases. About 10 seconds on an idle machine."""

import subprocess
import sys

import pytest

from tests.tools.option_cases import all_options, cases


@pytest.mark.slow
def test_no_option_of_any_command_takes_a_bad_value_badly():
    command = [sys.executable, "-m", "tests.tools.fuzz_options", "--cases", "50", "--limit", "120"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "50 cases" in ended.stdout


def test_every_option_has_its_turn():
    source = cases(seed=0)
    options = all_options()
    tried = [next(source) for _ in options * 2]  # in one of two rounds it may be what is left out
    for option in options:
        assert any(case[0] == option.command and _has(case, option.name) for case in tried), option


def _has(case: list[str], name: str) -> bool:
    return not name.startswith("-") or any(word.partition("=")[0] == name for word in case) or len(case) < 5
