"""Commands are listed without being loaded, and refuse what is plainly wrong before anything heavy is."""

import inspect
import subprocess
import sys

import pytest
import typer

from lastiterate.cli.app import SUMMARIES, app

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
