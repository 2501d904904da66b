import csv

import numpy as np
import pytest

from lastiterate.auditing.stores import export as module
from lastiterate.auditing.stores.export import COLUMNS, export
from lastiterate.auditing.stores.store import Store
from lastiterate.auditing.stores.trials import StoredTrials


@pytest.fixture
def trials():
    rng = np.random.default_rng(1)
    scores = rng.standard_normal(40) * 10.0 ** rng.integers(-300, 300, 40)
    scores[:2] = np.inf, -np.inf
    accuracies = np.where(np.arange(40) < 5, np.nan, rng.random(40))
    return StoredTrials(np.repeat(np.arange(20), 2), np.tile([True, False], 20), scores, accuracies, rng.random(40))


def check(rows, trials):
    assert [row["world"] for row in rows] == ["in", "out"] * 20
    assert [int(row["model"]) for row in rows] == trials.models.tolist()
    for name, column in (("score", trials.scores), ("seconds", trials.seconds)):
        np.testing.assert_array_equal([float(row[name]) for row in rows], column)
    accuracies = [np.nan if row["accuracy"] in ("", None) else float(row["accuracy"]) for row in rows]
    np.testing.assert_array_equal(accuracies, trials.accuracies)


def test_csv_gives_every_number_back_exactly(tmp_path, trials):
    export(trials, tmp_path / "scores.csv")
    with (tmp_path / "scores.csv").open(newline="") as file:
        reader = csv.DictReader(file)
        check(list(reader), trials)
        assert tuple(reader.fieldnames) == COLUMNS
    assert [path.name for path in tmp_path.iterdir()] == ["scores.csv"]


def test_parquet_gives_every_number_back_exactly(tmp_path, trials):
    parquet = pytest.importorskip("pyarrow.parquet")
    export(trials, tmp_path / "scores.PARQUET")
    table = parquet.read_table(tmp_path / "scores.PARQUET")
    check(table.to_pylist(), trials)
    assert tuple(table.column_names) == COLUMNS
    assert [str(field.type) for field in table.schema] == ["int64", "string", "double", "double", "double"]


def test_a_store_is_exported_like_its_trials(tmp_path, trials):
    with Store.open(tmp_path / "x.sqlite", {}, {}) as store:
        store.add(trials)
        export(store, tmp_path / "store.csv")
    export(trials, tmp_path / "trials.csv")
    assert (tmp_path / "store.csv").read_bytes() == (tmp_path / "trials.csv").read_bytes()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_no_trials_make_an_empty_table(tmp_path, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    empty = StoredTrials([], np.zeros(0, bool), np.zeros(0), np.zeros(0), np.zeros(0))
    export(empty, tmp_path / f"x{suffix}")
    assert (tmp_path / f"x{suffix}").stat().st_size > 0


def test_a_file_that_cannot_be_written_is_refused(tmp_path, trials):
    with pytest.raises(ValueError, match=r"^the export's file must end in \.csv or \.parquet, got '.*x\.xlsx'$"):
        export(trials, tmp_path / "x.xlsx")
    with pytest.raises(ValueError, match=r"^the export's folder must exist, got '.*missing'$"):
        export(trials, tmp_path / "missing" / "x.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ValueError, match=r"^the export's file must not be a folder, got '.*folder\.csv'$"):
        export(trials, tmp_path / "folder.csv")


def test_a_failed_export_leaves_the_old_file_whole(tmp_path, trials, monkeypatch):
    (tmp_path / "x.csv").write_text("old")

    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(tmp_path), "write_bytes", full)
    with pytest.raises(ValueError, match=r"^the export cannot be written to '.*x\.csv': No space left on device$"):
        export(trials, tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_missing_pyarrow_is_one_sentence(tmp_path, trials, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'^Parquet needs pyarrow.*: pip install "lastiterate\[parquet\]"$'):
        export(trials, tmp_path / "x.parquet")
