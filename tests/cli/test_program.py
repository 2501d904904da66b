"""The program as people start it: a process of its own."""

import subprocess
import sys

import pytest

COMMANDS = [
    "epsilon",
    "delta",
    "calibrate",
    "plan",
    "explore",
    "check",
    "audit",
    "report",
    "watch",
    "estimate",
    "probe",
    "reproduce",
]
ELSEWHERE = ["check", "audit", "report", "estimate"]  # whose examples CI runs, or tests that have their files
ELSEWHERE += ["explore", "watch"]  # or that do not end by themselves


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lastiterate", *arguments], capture_output=True, text=True, check=False
    )


def test_bad_input_is_one_line_and_status_2():
    result = start("epsilon", "--steps", "0", "--sample-rate", ".1", "--noise-multiplier", "1", "--delta", "1e-5")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "steps must be an integer at least 1, got 0\n"


def test_the_program_alone_shows_help(cli):
    result = cli("")
    assert result.exit_code == 0
    assert "Usage: lastiterate" in result.stdout
    assert all(command in result.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_that_works_and_describes_every_option(cli, command, tmp_path, monkeypatch):
    help_ = cli(f"{command} --help").stdout
    example = next(line.strip() for line in help_.splitlines() if line.startswith(f"    lastiterate {command}"))
    monkeypatch.chdir(tmp_path)
    if command not in ELSEWHERE:
        assert cli(example.removeprefix("lastiterate ")).exit_code == 0
    options = help_.split("Options:\n")[1].splitlines()
    for line, following in zip(options, [*options[1:], ""], strict=True):
        if line.startswith("  -"):
            described = len(line.split("  ")) > 2 or following.startswith(" " * 10)
            assert described, line


@pytest.mark.parametrize("command", ["audit", "probe quadratic --json"])
def test_a_missing_extra_is_one_sentence(command, tmp_path):
    code = f"import sys\nsys.modules['equinox'] = None\nfrom lastiterate.cli.app import app\napp({command.split()!r})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == 'training needs equinox, which is not installed: pip install "lastiterate[audit]"\n'
