"""Who may import whom: data flows one way, and what is imported late, inside a function, counts too.

To add a room, give it a line in ``MAY_IMPORT``. A room is a package or a module under ``lastiterate``; the longest name
that fits decides, so that ``privacy.mixtures`` may have a line of its own beside ``privacy``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "lastiterate"

# What everything else stands on: what a run is, checks, arrays, rows, files, bars.
FOUNDATIONS = {
    "arrays",
    "contraction",
    "extras",
    "fields",
    "machine",
    "optimizer",
    "progress_bar",
    "rows",
    "run",
    "trainer_failure",
}
FOUNDATIONS |= {
    "breakdown",
    "schedules",
    "scratch",
    "second_moment",
    "training_diverged",
    "training_progress",
    "values",
    "whole_file",
}
WORDS = {"answers", "reporting", "tables", "vocabulary", "wording"}
PRIVACY = {"privacy.curve", "privacy.mixtures", "privacy.losses", "privacy.analyses"}
TRAINING = {"batch_order", "data", "training"}

MAY_IMPORT: dict[str, set[str]] = {
    # Foundations know of each other, from the left to the right, and of nothing else.
    "arrays": set(),
    "breakdown": set(),
    "contraction": {"values"},
    "extras": set(),
    "fields": set(),
    "machine": set(),
    "progress_bar": set(),
    "rows": set(),
    "scratch": {"breakdown"},
    "training_diverged": set(),
    "trainer_failure": {"breakdown"},
    "training_progress": {"progress_bar"},
    "whole_file": {"scratch"},
    "values": {"arrays"},
    "optimizer": {"arrays", "values"},
    "schedules": {"arrays", "optimizer", "values"},
    # `DPSGD.from_opacus` and `DPSGD.from_jax_privacy`
    "run": {"arrays", "optimizer", "values", "integrations.jax_privacy_run", "integrations.opacus_run"},
    "second_moment": {"arrays", "optimizer", "run", "values"},
    # From a run to a privacy curve. Privacy knows nothing of audits, and each of its rooms only of those before it.
    "privacy": set(),
    "privacy.curve": FOUNDATIONS,
    "privacy.mixtures": FOUNDATIONS | {"privacy.curve"},
    "privacy.losses": FOUNDATIONS | {"privacy.curve", "privacy.mixtures"},
    "privacy.analyses": FOUNDATIONS | {"privacy.curve", "privacy.mixtures", "privacy.losses"},
    "integrations": FOUNDATIONS | PRIVACY | {"wording"},
    "integrations.canary_own": FOUNDATIONS | TRAINING,
    # Words: of analyses and methods, for numbers and runs.
    "vocabulary": FOUNDATIONS | PRIVACY,
    "wording": FOUNDATIONS | {"vocabulary"},
    "tables": {"wording"},
    "answers": FOUNDATIONS | PRIVACY | {"lastiterate", "vocabulary", "wording"},
    "reporting": FOUNDATIONS | {"answers", "vocabulary", "wording"},
    # Trainings, and attacks on them, which know nothing of engines, stores or estimates.
    "batch_order": FOUNDATIONS | {"privacy.mixtures"},
    "data": FOUNDATIONS,
    "training": FOUNDATIONS | PRIVACY | TRAINING,
    "attacks": FOUNDATIONS | PRIVACY | TRAINING,
    # Audits. Evidence knows scores and not where they come from; stores keep what they are given; engines compute
    # whatever speaks the protocol; only who conducts an audit knows all of them.
    "auditing": set(),
    "auditing.design": FOUNDATIONS,
    "auditing.sources": set(),
    "auditing.versions": set(),
    "auditing.looks": set(),
    "auditing.identity": FOUNDATIONS | {"answers", "auditing.design", "auditing.sources"},
    "auditing.stores": FOUNDATIONS | {"data.files", "auditing.design", "auditing.identity", "auditing.versions"},
    "auditing.evidence": FOUNDATIONS | PRIVACY | WORDS | {"data.files", "data.limits", "attacks", "auditing.design"},
    "auditing.evidence.reach": FOUNDATIONS | WORDS | {"plot"},  # `Power.plot`
    "auditing.evidence.result": FOUNDATIONS | WORDS | {"auditing.evidence", "plot"},  # `AuditResult.plot` and `.page`
    "auditing.experiments": FOUNDATIONS
    | TRAINING
    | {"attacks", "auditing.design", "auditing.identity", "auditing.sources", "auditing.stores.trials"},
    "auditing.engines": FOUNDATIONS
    | {"auditing.experiments.protocol", "auditing.sources", "auditing.stores.trials", "auditing.versions"},
    "auditing.reading": {"auditing.design", "auditing.evidence", "auditing.experiments.protocol", "auditing.stores"},
    "auditing.card": FOUNDATIONS | WORDS | {"auditing.evidence", "auditing.stores"},
    "auditing.until": FOUNDATIONS | WORDS | {"auditing.evidence.result"},
    "auditing.conduct": FOUNDATIONS | WORDS | {"attacks", "auditing", "data.files"},
    "auditing.trainer_files": set(),
    "auditing.subject": FOUNDATIONS | PRIVACY | TRAINING | {"auditing.experiments", "auditing.trainer_files"},
    # Checks measure parameters; of audits they know only what a trainer may say about its training.
    "checking": FOUNDATIONS
    | {"auditing.experiments.trained", "plot.check", "plot.style", "privacy.mixtures", "wording"},
    "lm": FOUNDATIONS | PRIVACY | {"batch_order", "data", "attacks", "auditing"},
    # Counterexamples are mathematics, attacks and audits. Pictures format what others have computed.
    "counterexamples": FOUNDATIONS | PRIVACY | TRAINING | WORDS | {"attacks", "auditing"},
    "plot": FOUNDATIONS
    | WORDS
    | {"lastiterate", "privacy.curve", "auditing.evidence", "checking.result", "counterexamples"},
    "reproduce": FOUNDATIONS
    | PRIVACY
    | WORDS
    | {"lastiterate", "attacks", "auditing", "counterexamples", "lm", "plot"},
    # Pages that a server answers. Of commands it knows nothing: how texts are read is handed in.
    "web": FOUNDATIONS | WORDS | {"privacy.curve", "auditing", "plot"},
    # Commands may ask anybody. Nobody imports them, but for the program itself.
    "cli": FOUNDATIONS
    | WORDS
    | {"lastiterate", "attacks", "auditing", "checking", "counterexamples", "data"}
    | {"lm", "plot", "reproduce", "web"},
    "__main__": {"cli"},
    "__init__": FOUNDATIONS | PRIVACY | {"auditing", "checking", "integrations", "reporting", "training.contraction"},
}


def modules() -> list[str]:
    return sorted(".".join(file.relative_to(SOURCE).with_suffix("").parts) for file in SOURCE.rglob("*.py"))


def imports(text: str, module: str) -> Iterator[tuple[int, str]]:
    """Lines and names, without ``lastiterate.``, of all that a module imports of the package, wherever in it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}, line {node.lineno}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "lastiterate":
                yield node.lineno, rest if rest and is_module(rest) else "lastiterate"


def is_module(name: str) -> bool:
    """Whether a name begins with that of a module or a package; otherwise it is one of the package's public names."""
    first = SOURCE / name.split(".")[0]
    return first.is_dir() or first.with_suffix(".py").exists()


def within(name: str, room: str) -> bool:
    return name == room or name.startswith(f"{room}.")


def room_of(module: str, rooms: set[str] | dict[str, set[str]]) -> str | None:
    return max((room for room in rooms if within(module, room)), key=len, default=None)


def violations(module: str, text: str) -> list[str]:
    room = room_of(module, MAY_IMPORT)
    assert room is not None, f"{module} is in no room: give it one in MAY_IMPORT"
    return [
        f"{module}, line {line}: {room} may not import {name}"
        for line, name in imports(text, module)
        if not within(name, room) and not any(within(name, allowed) for allowed in MAY_IMPORT[room])
    ]


@pytest.mark.parametrize("module", modules())
def test_imports_go_one_way(module):
    assert violations(module, (SOURCE / f"{module.replace('.', '/')}.py").read_text()) == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("privacy.mixtures.law", "def late():\n    from lastiterate.privacy.analyses.composition import composition"),
        ("privacy.losses.step_loss", "import lastiterate.privacy.analyses.last_iterate"),
        ("privacy.analyses.grid", "from lastiterate import auditing"),
        ("privacy.curve", "from lastiterate import last_iterate"),
        ("attacks.attack", "if TYPE_CHECKING:\n    from lastiterate.auditing.engines.engine import Engine"),
        ("auditing.evidence.report", "from lastiterate.cli.app import app"),
        ("plot.roc", "from lastiterate.privacy.analyses.composition import composition"),
        ("run", "from lastiterate.integrations.dp_accounting import LastIterateAccountant"),
    ],
)
def test_what_goes_the_other_way_is_found(module, text):
    assert len(violations(module, text)) == 1
