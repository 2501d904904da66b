"""A run that was found in the explorer, to be taken along: as a command and as Python."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from lastiterate.run import DPSGD

# What need not be said.
_USUAL = {"sampling": "poisson", "group_size": "1", "min_separation": "1"}


def command_of(texts: Mapping[str, str], delta: str) -> str:
    """The command that answers the same; ``texts`` are those of options."""
    given = {name: text.strip() for name, text in texts.items() if text.strip() != _USUAL.get(name)}
    options = [f"--{name.replace('_', '-')} {shlex.quote(text)}" for name, text in {**given, "delta": delta}.items()]
    return " ".join(["lastiterate epsilon", *options])


def python_of(run: DPSGD, delta: float, contraction: float | None = None) -> str:
    """The same in Python. With a contraction there is the guarantee of convex losses, too."""
    lines = ["import lastiterate as li", "", "run = " + re.sub(r"\b(DPSGD|SGD|Adam)\(", r"li.\1(", repr(run))]
    lines += [f"print(li.last_iterate(run).epsilon({delta!r}))  # a heuristic"]
    if contraction is None:
        return "\n".join([*lines, f"print(li.sentence(run, {delta!r}))"])
    lines += [f'curves = {{"convex": lambda run: li.convex(run, contraction={contraction!r})}}']
    return "\n".join([*lines, f"print(li.sentence(run, {delta!r}, curves))"])
