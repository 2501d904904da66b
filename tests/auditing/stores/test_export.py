import csv

import numpy as np
import pytest

from lastiterate.auditing.load_evidence import export
from lastiterate.auditing.stores.audit_record import ScoredTrials
from tests.auditing.stores.helpers import begin

COLUMNS = ("model", "world", "score", "accuracy", "seconds")


@pytest.fixture
def trials():
    rng = np.random.default_rng(1)
    scores = rng.standard_normal(40) * 10.0 ** rng.integers(-300, 300, 40)
    scores[:2] = np.inf, -np.inf
    qualities = np.where(np.arange(40) < 5, np.nan, rng.random(40))
    return ScoredTrials(np.repeat(np.arange(20), 2), np.tile([True, False], 20), scores, qualities, rng.random(40))


@pytest.fixture
def store(path, trials):
    with begin(path) as store:
        store.add(trials)
        yield store


@pytest.fixture
def folder(tmp_path):
    """Of the exports alone."""
    folder = tmp_path / "exports"
    folder.mkdir()
    return folder


def check(rows, trials, quality="accuracy"):
    assert [row["world"] for row in rows] == ["in", "out"] * 20
    assert [int(row["model"]) for row in rows] == trials.models.tolist()
    for name, column in (("score", trials.scores), ("seconds", trials.seconds)):
        np.testing.assert_array_equal([float(row[name]) for row in rows], column)
    qualities = [np.nan if row[quality] in ("", None) else float(row[quality]) for row in rows]
    np.testing.assert_array_equal(qualities, trials.qualities)


def test_csv_gives_every_number_back_exactly(folder, store, trials):
    export(store, folder / "scores.csv")
    with (folder / "scores.csv").open(newline="") as file:
        reader = csv.DictReader(file)
        check(list(reader), trials)
        assert tuple(reader.fieldnames) == COLUMNS
    assert [path.name for path in folder.iterdir()] == ["scores.csv"]


def test_parquet_gives_every_number_back_exactly(folder, store, trials):
    import pyarrow.parquet as parquet

    export(store, folder / "scores.PARQUET")
    table = parquet.read_table(folder / "scores.PARQUET")
    check(table.to_pylist(), trials)
    assert tuple(table.column_names) == COLUMNS
    assert [str(field.type) for field in table.schema] == ["int64", "string", "double", "double", "double"]


def test_a_failed_export_leaves_the_old_file_whole(folder, store, monkeypatch):
    (folder / "x.csv").write_text("old")

    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(folder), "write_bytes", full)
    with pytest.raises(ValueError, match=r"^the export cannot be written to '.*x\.csv': No space left on device$"):
        export(store, folder / "x.csv")
    assert (folder / "x.csv").read_text() == "old"
    assert len(list(folder.iterdir())) == 1
