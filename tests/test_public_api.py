"""Public names and their signatures stay: `python -m tests.test_public_api` writes those of a release."""

import importlib
import inspect
import json
from pathlib import Path

import pytest

MODULES = ("lastiterate", "lastiterate.attacks", "lastiterate.training", "lastiterate.lm", "lastiterate.data")
MODULES += ("lastiterate.schedules",)
SNAPSHOT = Path(__file__).parent / "data" / "public_api.json"
Signature = list[tuple[str, str, str | None]]  # name, kind and default of each parameter


def signature(value) -> Signature | None:
    try:
        found = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return None
    empty = inspect.Parameter.empty
    defaults = [
        None if each.default is empty else getattr(each.default, "__name__", repr(each.default)) for each in found
    ]
    return [(each.name, each.kind.name, default) for each, default in zip(found, defaults, strict=True)]


def public_api() -> dict[str, Signature | None]:
    """Functions, classes, and the public methods of classes, by their full names."""
    found = {}
    for module in map(importlib.import_module, MODULES):
        names = getattr(module, "__all__", [name for name in dir(module) if not name.startswith("_")])
        for name in sorted(names):
            value = getattr(module, name)
            if inspect.ismodule(value) or not callable(value):
                continue
            found[f"{module.__name__}.{name}"] = signature(value)
            members = [] if not inspect.isclass(value) else vars(value)
            for member in (each for each in members if not each.startswith("_") and callable(getattr(value, each))):
                found[f"{module.__name__}.{name}.{member}"] = signature(getattr(value, member))
    return found


def breaks(before: Signature | None, now: Signature | None) -> list[str]:
    """What callers of the old signature would trip over."""
    if before is None or now is None or any(kind == "VAR_KEYWORD" for _, kind, _ in now):
        return []
    kinds, defaults = {name: kind for name, kind, _ in now}, {name: default for name, _, default in now}
    found = [f"{name} is gone" for name, _, _ in before if name not in kinds]
    found += [f"{name} is {kinds[name]}" for name, kind, _ in before if name in kinds and kinds[name] != kind]
    for name, _, default in before:
        if default is not None and name in defaults and defaults[name] != default:
            found.append(f"the default of {name} is {defaults[name]}")
    known = [name for name, _, _ in before]
    found += [f"{name} is new and has no default" for name, _, default in now if name not in known and default is None]
    places = [[name for name, kind, _ in each if kind != "KEYWORD_ONLY"] for each in (before, now)]
    if places[1][: len(places[0])] != places[0]:
        found.append("places have changed")
    return found


def test_nothing_public_is_gone_or_called_otherwise():
    """If this is meant, follow the deprecation policy in CONTRIBUTING.md."""
    now = public_api()
    before = json.loads(SNAPSHOT.read_text())
    assert [name for name in before if name not in now] == []
    broken = {name: found for name, each in before.items() if (found := breaks(each, now[name]))}
    assert broken == {}


@pytest.mark.parametrize(
    ("after", "found"),
    [
        ("def f(a, b=1, *, c=2, d=3): ...", []),
        ("def f(a, *, c=2): ...", ["b is gone", "places have changed"]),
        ("def f(b=1, a=0, *, c=2): ...", ["places have changed"]),
        ("def f(a, b=2, *, c=2): ...", ["the default of b is 2"]),
        ("def f(a, b=1, *, c=2, e): ...", ["e is new and has no default"]),
    ],
)
def test_what_breaks_a_call_is_found(after, found):
    names: dict = {}
    exec(f"def before(a, b=1, *, c=2): ...\n{after}", names)
    assert breaks(signature(names["before"]), signature(names["f"])) == found


if __name__ == "__main__":
    rows = [f"{json.dumps(name)}: {json.dumps(each)}" for name, each in public_api().items()]
    SNAPSHOT.write_text("{\n" + ",\n".join(rows) + "\n}\n")
