"""Trials as a table for other programs: CSV or Parquet, written whole or not at all."""

from __future__ import annotations

import csv
import io
import math
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from lastiterate.auditing.stores.store import Store
from lastiterate.data.files import as_path
from lastiterate.whole_file import check_writable, is_same_file, write_whole

if TYPE_CHECKING:
    from lastiterate.auditing.stores.trials import ScoredTrials
    from lastiterate.data.files import Location

FORMATS = (".csv", ".parquet")


def export(store: Store, path: Location) -> None:
    """Write the trials into a file of the format that its name ends in. ``lastiterate estimate`` reads the CSV.

    Every number comes back exactly; an accuracy that was not measured is an empty field, in Parquet null.
    """
    target = check_target(path)
    if is_same_file(target, store.path):
        raise ValueError(f"the export's file must not be the store's, got {str(target)!r}")
    quality = store.record.quality
    columns = ("model", "world", "score", quality.name if quality else "accuracy", "seconds")
    write = _parquet if target.suffix.lower() == ".parquet" else _csv
    write_whole(target, write(store.scores(), columns), "export")


def check_target(path: Location) -> Path:
    """Refuse a file that could not be written later."""
    target = as_path(path)
    if target.suffix.lower() not in FORMATS:
        raise ValueError(f"the export's file must end in {' or '.join(FORMATS)}, got {str(target)!r}")
    if target.suffix.lower() == ".parquet" and find_spec("pyarrow") is None:
        raise ValueError('Parquet needs pyarrow, which is not installed: pip install "lastiterate[parquet]"')
    check_writable(target, "export")
    return target


def _csv(trials: ScoredTrials, columns: tuple[str, ...]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    qualities = ("" if math.isnan(quality) else quality for quality in trials.qualities.tolist())
    numbers = (trials.scores.tolist(), qualities, trials.seconds.tolist())  # csv writes a float's repr
    writer.writerows(zip(trials.models.tolist(), trials.worlds, *numbers, strict=True))
    return text.getvalue().encode()


def _parquet(trials: ScoredTrials, columns: tuple[str, ...]) -> bytes:
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    qualities = pyarrow.array(trials.qualities, from_pandas=True)  # NaN becomes null
    values = [trials.models, trials.worlds, trials.scores, qualities, trials.seconds]
    content = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table(dict(zip(columns, values, strict=True))), content)
    return bytes(content.getvalue())
