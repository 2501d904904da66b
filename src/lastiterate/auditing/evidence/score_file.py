"""Scores from a CSV file: a row a model, its world and its score."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from lastiterate.arrays import FloatArray

_COLUMNS = ("world", "score")


def read_scores(path: Path) -> tuple[FloatArray, FloatArray]:
    """Scores in and out. What is wrong with a file is said in one sentence that names the line."""
    if not path.exists():
        raise ValueError(f"there is no file {str(path)!r}")
    if path.is_dir():
        raise ValueError(f"the scores must be a CSV file, got the folder {str(path)!r}")
    worlds: dict[str, list[float]] = {"in": [], "out": []}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            header = [name.strip() for name in next(rows, [])]
            world, score = (_column(path, header, name) for name in _COLUMNS)
            for row in rows:
                if row:
                    _add(worlds, row, world, score, f"{path.name} line {rows.line_num}")
    except UnicodeDecodeError:
        raise ValueError(f"{str(path)!r} must be a CSV file in UTF-8, and is none") from None
    except csv.Error as error:
        raise ValueError(f"{str(path)!r} must be a CSV file, but: {error}") from None
    for name, scores in worlds.items():
        if not scores:
            raise ValueError(f"{str(path)!r} must hold scores of both worlds, in and out, but has none of world {name}")
    return np.array(worlds["in"]), np.array(worlds["out"])


def _column(path: Path, header: list[str], name: str) -> int:
    if name not in header:
        found = ", ".join(header) if any(header) else "none"
        raise ValueError(f"{str(path)!r} must have the columns world and score in its first line, got {found}")
    return header.index(name)


def _add(worlds: dict[str, list[float]], row: list[str], world: int, score: int, where: str) -> None:
    if len(row) <= max(world, score):
        raise ValueError(f"{where} must have a world and a score, got {','.join(row)!r}")
    name, text = row[world].strip(), row[score].strip()
    if name not in worlds:
        raise ValueError(f"{where}: world must be in or out, got {name!r}")
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if value != value:
        raise ValueError(f"{where}: score must be a number, got {text!r}")
    worlds[name].append(value)
