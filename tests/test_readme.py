"""What the README and the documentation show is true: their blocks are run here, each document from top to bottom.

Python is executed, commands go through the command line, and a ``text`` or ``json`` block right after one is what it
prints.
"""

import contextlib
import io
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lastiterate.cli.app import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    if "_build" not in path.parts
)
WRITES_FILES = ["docs/howto/zero-run.md"]  # by Python, for its commands
SETUP = "python3 -m venv .venv && .venv/bin/pip install "


@dataclass(frozen=True)
class Block:
    """A fenced block; ``output`` is the block of text or JSON that follows it with nothing between."""

    language: str
    text: str
    output: tuple[str, str] | None

    @property
    def needs_opacus(self) -> bool:
        return self.language == "python" and "opacus" in self.text

    @property
    def commands(self) -> list[str]:
        """The arguments of each ``lastiterate`` in a block of commands, also after a set-up."""
        if self.language not in ("bash", "console"):
            return []
        last = [line.split(" && ")[-1] for line in self.text.splitlines()]
        return [found[1] for line in last if (found := re.fullmatch(r"(?:\.venv/bin/)?lastiterate (.*)", line))]


def blocks(document: str) -> list[Block]:
    fences = re.compile(r"^```(\w+)\n(.*?)^```\n(\n?```(text|json)\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
    found = fences.finditer((ROOT / document).read_text(encoding="utf-8"))
    return [Block(m[1], m[2], (m[4], m[5]) if m[3] else None) for m in found]


def assert_prints(output: tuple[str, str] | None, printed: str) -> None:
    if output is None:
        return
    kind, expected = output
    if kind == "json":
        assert_same(json.loads(printed), json.loads(expected))
    else:
        assert printed == expected


def assert_same(found: Any, expected: Any) -> None:
    """Equal JSON, but for digits of floats that may differ from machine to machine."""
    assert type(found) is type(expected)
    match expected:
        case dict():
            assert list(found) == list(expected)
            for key in expected:
                assert_same(found[key], expected[key])
        case list():
            assert len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                assert_same(one, other)
        case float():
            assert found == pytest.approx(expected, rel=1e-6)
        case _:
            assert found == expected


def plain_python(document: str) -> list[Block]:
    return [block for block in blocks(document) if block.language == "python" and not block.needs_opacus]


def execute(block: Block, namespace: dict[str, Any]) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(block.text, "<documentation>", "exec"), namespace)
    assert_prints(block.output, printed.getvalue())


@pytest.mark.filterwarnings("ignore::lastiterate.HeuristicWarning")
@pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated:DeprecationWarning")  # jax-privacy's clipping
@pytest.mark.parametrize("document", [name for name in DOCUMENTS if plain_python(name)])
def test_python_does_what_the_document_says(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for the files it writes
    namespace: dict[str, Any] = {}
    for block in plain_python(document):
        execute(block, namespace)
    assert len(namespace) > 1  # beyond the builtins: something was defined or imported


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("document", [name for name in DOCUMENTS if any(b.needs_opacus for b in blocks(name))])
def test_opacus_does_what_the_document_says(document):
    namespace: dict[str, Any] = {}
    for block in blocks(document):
        if block.needs_opacus:
            execute(block, namespace)
    assert len(namespace) > 1


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if any(b.commands for b in blocks(name))])
def test_commands_do_what_the_document_says(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for the pictures they draw
    monkeypatch.setenv("COLUMNS", "80")
    namespace: dict[str, Any] = {}
    for block in blocks(document):
        if document in WRITES_FILES and block.language == "python":
            execute(block, namespace)
        if block.text.startswith(SETUP):  # these CI runs as they are
            continue
        printed = ""
        for arguments in block.commands:
            result = CliRunner().invoke(app, shlex.split(arguments), prog_name="lastiterate")
            assert result.exit_code == 0, result.output
            printed += result.stdout
        if block.commands:
            assert_prints(block.output, printed)


def test_the_readme_sets_up_with_exactly_the_two_commands_of_ci():
    shown = [block.text for block in blocks("README.md") if block.language == "bash"]
    assert len(shown) == 2
    assert all(command.startswith(SETUP) and command.count("\n") == 1 for command in shown)
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    first, tests = (text.strip() for text in shown)
    assert f"({first})" in script
    assert all(part in script for part in tests.split(" && "))


@pytest.mark.parametrize("document", [*DOCUMENTS, "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_to_files_and_headings(document):
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", (ROOT / document).read_text(encoding="utf-8")):
        name, _, heading = target.partition("#")
        path = (ROOT / document).parent / name if name else ROOT / document
        assert path.exists(), target
        assert not heading or heading in headings(path), target


def headings(path: Path) -> list[str]:
    """Headings as the links to them spell them."""
    lines = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines]
