"""Scores from a CSV file: a row a model, or a canary of one run, with its world and its score."""

from __future__ import annotations

import csv
from array import array
from io import TextIOWrapper
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.data.files import BadFile, find
from lastiterate.data.limits import LINE, PARSED, most_bytes, too_large
from lastiterate.values import written_number

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lastiterate.arrays import FloatArray

_COLUMNS = ("world", "score")
_COINS = ("coin", "canary")  # columns that a file of one run may have: no two rows share a value
_LONGEST_SHOWN = 100  # characters of what is wrong


def read_scores(path: Path, one_run: bool = False) -> tuple[FloatArray, FloatArray]:
    """Scores in and out. What is wrong with a file is said in one sentence that names the line.

    With ``one_run`` the rows are canaries: a column ``coin`` or ``canary``, if there is one, must not repeat a value.
    """
    worlds = {"in": array("d"), "out": array("d")}
    try:
        size = find(path, "file").stat().st_size
        if size > most_bytes(PARSED):
            raise too_large(f"{str(path)!r} must have", PARSED, f"{size:,}")
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(_lines(path, file))
            header = [name.strip() for name in next(rows, [])]
            world, score = (_column(path, header, name) for name in _COLUMNS)
            if not one_run and "coin" in header:
                raise ValueError(
                    f"{str(path)!r} has a column coin, so its rows are canaries of one run, which are not independent "
                    "models: choose a one-run method"
                )
            coins: dict[str, dict[str, int]] = {name: {} for name in _COINS if one_run and name in header}
            for row in rows:
                if row:
                    where = f"{path.name} line {rows.line_num}"
                    _add(worlds, row, world, score, where)
                    for name, used in coins.items():
                        _toss(used, name, row[header.index(name) :][:1], where, rows.line_num)
    except UnicodeDecodeError:
        raise BadFile(f"{str(path)!r} must be a CSV file in UTF-8, and is none") from None
    except csv.Error as error:
        raise BadFile(f"{str(path)!r} must be a CSV file, but: {error}") from None
    for name, scores in worlds.items():
        if not scores:
            raise ValueError(f"{str(path)!r} must hold scores of both worlds, in and out, but has none of world {name}")
    return np.array(worlds["in"]), np.array(worlds["out"])


def _lines(path: Path, file: TextIOWrapper) -> Iterator[str]:
    longest = most_bytes(LINE)
    for number, line in enumerate(iter(lambda: file.readline(longest + 1), ""), 1):
        if len(line) > longest:
            raise too_large(f"{str(path)!r} must have lines of", LINE, f"more in line {number}")
        yield line


def _column(path: Path, header: list[str], name: str) -> int:
    if name not in header:
        found = _shortened(", ".join(header)) if any(header) else "none"
        raise ValueError(f"{str(path)!r} must have the columns world and score in its first line, got {found}")
    return header.index(name)


def _add(worlds: dict[str, array[float]], row: list[str], world: int, score: int, where: str) -> None:
    if len(row) <= max(world, score):
        raise ValueError(f"{where} must have a world and a score, got {_shortened(','.join(row))!r}")
    name, text = row[world].strip(), row[score].strip()
    if name not in worlds:
        raise ValueError(f"{where}: world must be in or out, got {_shortened(name)!r}")
    value = written_number(text, infinite=True)
    if value is None:
        raise ValueError(f"{where}: score must be a number in plain digits or inf, got {_shortened(text)!r}")
    worlds[name].append(value)


def _toss(used: dict[str, int], name: str, cell: list[str], where: str, line: int) -> None:
    """Refuse a coin that another canary had: a one-run bound would count one coin as several."""
    coin = "".join(cell).strip()
    if not coin:
        raise ValueError(f"{where} must name its {name}, as the first line has that column, got nothing")
    if (before := used.setdefault(coin, line)) != line:
        raise ValueError(
            f"{where}: {name} {_shortened(coin)!r} is that of line {before}, too. One-run methods need a fair coin of "
            "its own for each canary: give one row for each coin"
        )


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]} [...]"
