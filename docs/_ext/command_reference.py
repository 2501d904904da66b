"""The directive `command-reference`: help and options of every command, read from the commands themselves."""

import inspect
import re

import typer
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from lastiterate.cli.app import app


class CommandReference(SphinxDirective):
    """A section for each command: its help, and a table of its options."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        group = typer.main.get_command(app)
        context = group.make_context("lastiterate", [], resilient_parsing=True)
        return [self.section(name, group.get_command(context, name)) for name in group.list_commands(context)]

    def section(self, name, command) -> nodes.section:
        """Return the section of one command."""
        title = f"lastiterate {name}"
        section = nodes.section(ids=[f"options-of-{name}"], names=[title])
        section += nodes.title(text=title)
        section += from_help(command.help)
        with command.make_context(name, [], resilient_parsing=True) as context:
            rows = [row for each in command.get_params(context) if (row := each.get_help_record(context))]
        section += table(rows)
        return section


def from_help(text: str) -> list[nodes.Node]:
    """Return paragraphs, and literal blocks where the help keeps its lines."""
    found: list[nodes.Node] = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text or "")):
        keeps_lines = block.startswith("\b")
        block = block.removeprefix("\b").strip("\n")
        found.append(
            nodes.literal_block(block, block) if keeps_lines else nodes.paragraph(text=" ".join(block.split()))
        )
    return found


def table(rows: list[tuple[str, str]]) -> nodes.table:
    """Return a table of two columns: option and meaning."""
    group = nodes.tgroup("", nodes.colspec(colwidth=35), nodes.colspec(colwidth=65), cols=2)
    group += nodes.thead("", row(nodes.paragraph(text="option"), nodes.paragraph(text="meaning")))
    body = nodes.tbody()
    for option, meaning in rows:
        body += row(nodes.paragraph("", "", nodes.literal(text=option)), nodes.paragraph(text=meaning))
    group += body
    return nodes.table("", group)


def row(*cells: nodes.Node) -> nodes.row:
    """Return a row of the table."""
    return nodes.row("", *(nodes.entry("", cell) for cell in cells))


def setup(app) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command-reference", CommandReference)
    return {"parallel_read_safe": True}
