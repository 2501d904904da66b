import json
import shlex
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lastiterate.cli.app import app
from lastiterate.paper.reproduce import figure1


class Cli:
    """The real commands in this process."""

    def __call__(self, command: str) -> Any:
        return CliRunner().invoke(app, shlex.split(command), prog_name="lastiterate")

    def json(self, command: str) -> Any:
        """What a command prints with --json, which is one object and nothing else."""
        result = self(f"{command} --json")
        assert result.exit_code == 0, result.stderr
        assert result.stderr == ""
        return json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))

    def refusal(self, command: str) -> str:
        """The one sentence on stderr with which a command refuses."""
        result = self(command)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        assert result.stderr.count("\n") == 1
        assert result.stderr.endswith("\n")
        assert "Traceback" not in result.stderr
        assert result.stderr.isascii()
        return str(result.stderr).strip()


@pytest.fixture(autouse=True)
def _few_points(monkeypatch):
    """Figures are computed in full by their own tests."""
    monkeypatch.setattr(figure1, "_POINTS", {"quick": 3, "full": 4})
    monkeypatch.setattr(figure1, "_STEPS", {"a": (10, 1000), "b": (1000, 100_000), "c": (300, 10_000)})


@pytest.fixture
def cli() -> Cli:
    return Cli()


@pytest.fixture
def stopped(cli, tmp_path, monkeypatch):
    """What a command with --json says on stderr when Ctrl-C comes while ``name`` of ``module`` is called."""

    def interrupt(*arguments):
        raise KeyboardInterrupt

    def leave(status):
        raise typer.Exit(status)

    def run(command, module, name):
        monkeypatch.setattr("lastiterate.cli.signals.os._exit", leave)  # which would end the tests, too
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(module, name, interrupt)
        result = cli(f"{command} --json")
        assert result.exit_code == 130
        assert result.stdout == ""
        return result.stderr

    return run
