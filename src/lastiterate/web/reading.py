"""How what is typed into a page becomes a run: by whoever reads the options of the command line, which is handed in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lastiterate.run import DPSGD

if TYPE_CHECKING:
    from lastiterate.answers import Curves


@dataclass(frozen=True)
class Reader:
    """The command line's ways to read texts, each of which refuses by a ValueError with the command line's sentence.

    Attributes:
        run: a run by the names and texts of its options; those that are no run's are ignored.
        curves: analyses that need more than the run, by the same texts.
        number: the number that the text of an option is.
        integers: whole numbers with commas between them.
    """

    run: Callable[[Mapping[str, str]], DPSGD]
    curves: Callable[[Mapping[str, str]], Curves]
    number: Callable[[str, str], float]
    integers: Callable[[str, str], list[int]]


def blamed(sentence: str, names: Iterable[str]) -> str | None:
    """The field that a refusal names first; None: none of these."""
    places: dict[int, str] = {}
    for name in sorted(names, key=len):  # of two that begin at one place the longer is meant
        spelled = re.escape(name).replace("_", "[_ -]")
        if found := re.search(rf"(?<![\w-])(?:--)?{spelled}(?![\w-])", sentence):
            places[found.start()] = name
    return places[min(places)] if places else None
