"""Imports go one way: every room imports only rooms above it in ``ROOMS``, late imports included.

A room is a package or a module under ``lastiterate``; the longest name that fits decides. Calls in the other direction
are by name, through ``late``, and ``UPWARD`` lists all of them.
"""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "lastiterate"

ROOMS = (
    "common",
    "mechanism",
    "optimizer",
    "schedules",
    "run",
    "supported_runs",
    "privacy.gaussian_dp",
    "privacy.curve",
    "privacy.mixtures",
    "privacy.losses",
    "privacy.convex",
    "privacy.analyses",
    "privacy",
    "labels",
    "formatting",
    "compare_analyses",
    "citation",
    "data",
    "trainers",
    "training",
    "integrations",
    "attacks",
    "auditing.user_code",
    "auditing.design",
    "auditing.identity",
    "auditing.stores",
    "auditing.experiments",
    "auditing.engines",
    "auditing.evidence",
    "auditing.stopping_rules",
    "auditing.load_evidence",
    "auditing.audit_target",
    "auditing.run_audit",
    "auditing",
    "checking",
    "lm",
    "paper.counterexamples",
    "plot",
    "paper.reproduce",
    "paper",
    "web",
    "__init__",
    "cli",
    "__main__",
)
PUBLIC = {"cli", "paper.reproduce"}  # rooms that may use the library as its users do, by ``import lastiterate``
MATHEMATICS = ("privacy.mixtures", "privacy.losses", "privacy.analyses")
NO_MATHEMATICS = {"plot", "web", "cli"}  # rooms that show what others have computed
UPWARD = {  # methods of a value that a room above carries out
    "plot.audit_charts:audit_chart",
    "plot.check:check_chart",
    "plot.page:write_page",
    "plot.run_charts:power_chart",
    "integrations.opacus_run:run_from_opacus",
    "integrations.jax_privacy_run:run_from_jax_privacy",
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
    """Return whether a name begins with a module or a package; otherwise it is one of the package's public names."""
    first = SOURCE / name.split(".")[0]
    return first.is_dir() or first.with_suffix(".py").exists()


def within(name: str, room: str) -> bool:
    return name == room or name.startswith(f"{room}.")


def room_of(module: str) -> str:
    rooms = [room for room in ROOMS if within(module, room)]
    assert rooms, f"{module} is in no room: give it a place in ROOMS"
    return max(rooms, key=len)


def violations(module: str, text: str) -> list[str]:
    room = room_of(module)
    found = []
    for line, name in imports(text, module):
        if name == "lastiterate":
            is_allowed = room in PUBLIC or "__version__" in text.splitlines()[line - 1]
        else:
            other = room_of(name)
            is_allowed = ROOMS.index(other) <= ROOMS.index(room)
            is_allowed &= not (room in NO_MATHEMATICS and any(within(name, each) for each in MATHEMATICS))
        if not is_allowed:
            found.append(f"{module}, line {line}: {room} may not import {name}")
    return found


@pytest.mark.parametrize("module", modules())
def test_imports_go_one_way(module):
    assert violations(module, (SOURCE / f"{module.replace('.', '/')}.py").read_text()) == []


def test_every_upward_call_is_listed_and_exists():
    called = set()
    for file in SOURCE.rglob("*.py"):
        called |= set(re.findall(r'late\("([^"]+)"\)', file.read_text()))
    assert called == UPWARD
    for path in UPWARD:
        module, _, name = path.partition(":")
        assert callable(getattr(import_module(f"lastiterate.{module}"), name))


def test_a_name_of_a_module_occurs_once_but_for_mirrors_of_commands():
    rooms: dict[str, list[str]] = {}
    for module in modules():
        room, _, name = module.rpartition(".")
        if name != "__init__":
            rooms.setdefault(name, []).append(room.split(".")[0])
    repeated = {name: found for name, found in rooms.items() if len(found) > 1}
    assert all(set(found) & {"cli", "plot"} and len(found) <= 3 for found in repeated.values()), repeated
