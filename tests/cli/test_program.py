"""The program as people start it: a process of its own."""

import inspect
import io
import subprocess
import sys
import time

import pytest
import typer

from lastiterate.cli import output as progress
from lastiterate.cli.app import SUMMARIES, app

# CI runs the examples of these, or other tests, which have their files. The last two do not end by themselves.
ELSEWHERE = ["check", "audit", "audit-lm", "report", "estimate", "explore", "watch"]


def test_the_program_alone_shows_help(cli):
    result = cli("")
    assert result.exit_code == 0
    assert "Usage: lastiterate" in result.stdout
    assert all(command in result.stdout for command in SUMMARIES)


@pytest.mark.parametrize("command", SUMMARIES)
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
    assert (
        result.stderr
        == 'training needs equinox, which is not installed: pip install ".[audit]" in a clone of lastiterate\n'
    )


HEAVY = ["scipy", "jax", "torch", "transformers", "altair", "pandas"]


@pytest.mark.parametrize("name", SUMMARIES)
def test_the_list_says_of_a_command_what_its_own_help_begins_with(name):
    help_ = typer.main.get_command(app).commands[name].help  # type: ignore[attr-defined]
    assert inspect.cleandoc(help_).split("\n\n")[0] == SUMMARIES[name]


@pytest.mark.parametrize(
    ("command", "status", "allowed"),
    [
        ("--version", 0, []),
        ("--help", 0, []),
        ("audit --models 0", 2, []),
        ("audit --data mistyped.npz", 2, ["scipy"]),
        ("audit-lm", 2, []),
        ("audit-lm --model x --text y --models 0", 2, []),
    ],
)
def test_quick_answers_load_nothing_heavy(command, status, allowed, tmp_path):
    code = (
        f"import sys\nsys.argv = ['lastiterate', *{command.split()!r}]\nfrom lastiterate.cli import main\n"
        "status = 0\ntry:\n    main()\nexcept SystemExit as done:\n    status = done.code or 0\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], status, sep='|', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == f"{allowed}|{status}"


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


def test_without_a_terminal_nothing_is_shown(monkeypatch, capsys):
    monkeypatch.setattr("lastiterate.common.progress.PATIENCE", 0.0)
    for _ in progress.tracker("training")(range(2)):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""
