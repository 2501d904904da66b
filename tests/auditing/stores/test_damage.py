import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from lastiterate.auditing.stores.store import Store
from lastiterate.common.errors import DiskTrouble
from tests.auditing.stores.helpers import begin, chunk, contents, refusal


def make_foreign(path):
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE mine (x)")
    database.close()


@pytest.mark.parametrize(
    "make",
    [make_foreign, lambda path: path.write_text("model,score\n" * 100), lambda path: path.write_text("x")],
    ids=["foreign", "text", "short"],
)
def test_a_file_of_another_kind_is_refused_and_left_alone(path, make):
    make(path)
    before = contents(path.parent)
    for call in (begin, Store.read):
        said = f"{str(path)!r} must be the store of an audit, got a file of another kind"
        assert refusal(call, path) == said
    assert contents(path.parent) == before


def test_an_empty_file_is_new_to_an_audit_and_nothing_to_a_report(path):
    path.touch()
    assert refusal(Store.read, path) == f"{str(path)!r} must be the store of an audit, got an empty file"
    begin(path).close()
    Store.read(path).close()


def test_a_folder_and_nothing_are_refused(tmp_path):
    assert refusal(begin, tmp_path) == f"the store must be a file, got the folder {str(tmp_path)!r}"
    assert refusal(Store.read, tmp_path) == f"the store must be a file, got the folder {str(tmp_path)!r}"
    missing = tmp_path / "missing"
    assert refusal(Store.read, missing) == f"the store must exist, but nothing is at {str(missing)!r}"
    (tmp_path / "file").touch()
    assert "cannot be used: File exists" in refusal(begin, tmp_path / "file" / "x.sqlite")
    assert sorted(found.name for found in tmp_path.iterdir()) == ["file"]


@pytest.mark.parametrize("damage", ["truncated", "scribbled", "identity"])
def test_a_damaged_store_is_refused(path, damage):
    with begin(path) as store:
        store.add(chunk(count=2000))
    if damage == "identity":
        with sqlite3.connect(path) as database:
            database.execute("UPDATE audit SET value = '{' WHERE name IN ('identity', 'record')")
        database.close()
    else:
        content = path.read_bytes()
        half = len(content) // 2
        path.write_bytes(content[:half] + (b"" if damage == "truncated" else b"\x55" * half))
    before = contents(path.parent)
    for call in (begin, lambda path: Store.read(path).record):
        assert refusal(call, path) == (
            f"the store {str(path)!r} is damaged: restore it from a copy, or choose another store"
        )
    assert contents(path.parent) == before


def test_an_unknown_format_is_refused_and_left_alone(path):
    begin(path).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 2")
    before = contents(path.parent)
    said = f"{str(path)!r} has store format 2, which this version of lastiterate cannot read: choose another store"
    assert refusal(begin, path) == refusal(Store.read, path) == said
    assert contents(path.parent) == before


def test_a_full_disk_loses_nothing_that_was_stored(path):
    with begin(path) as store:
        store.add(chunk())
        database = store._database
        database.execute(f"PRAGMA max_page_count = {database.execute('PRAGMA page_count').fetchone()[0]}")
        with pytest.raises(DiskTrouble) as caught:
            store.add(chunk(4, count=5000))
        told = f"the disk of the store {str(path)!r} is full: make room, then run the same command again"
        assert str(caught.value) == told
        assert len(store.scores()) == 8
        database.execute("PRAGMA max_page_count = 100000")
        store.add(chunk(4, count=5000))
    with Store.read(path) as store:
        assert len(store.scores()) == 10_008


@pytest.fixture
def nobody():
    """A folder and a way to take the right to write away from everything in it; root is nobody meanwhile."""
    folder = Path(tempfile.mkdtemp())
    user = os.geteuid()

    def protect(*paths):
        for path in paths:
            path.chmod(0o555)
        if user == 0:
            os.seteuid(65534)

    yield folder, protect
    os.seteuid(user)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    shutil.rmtree(folder)


def test_a_read_only_folder_can_be_read_but_not_written(nobody):
    folder, protect = nobody
    with begin(folder / "x.sqlite") as store:
        store.add(chunk())
    protect(folder, folder / "x.sqlite")
    with Store.read(folder / "x.sqlite") as store:
        assert len(store.scores()) == 8
    assert "cannot be used: Permission denied" in refusal(begin, folder / "x.sqlite")
    assert "cannot be used: Permission denied" in refusal(begin, folder / "new.sqlite")
    assert "cannot be used: Permission denied" in refusal(begin, folder / "new" / "x.sqlite")


def test_a_read_only_file_is_refused_to_a_writer(nobody):
    folder, protect = nobody
    begin(folder / "x.sqlite").close()
    folder.chmod(0o777)
    protect(folder / "x.sqlite")
    assert "must be writable, but it is protected" in refusal(begin, folder / "x.sqlite")
    Store.read(folder / "x.sqlite").close()


def test_a_copy_without_its_log_is_read_in_a_read_only_folder_and_one_with_it_never_loses_the_log(nobody):
    folder, protect = nobody
    with begin(folder / "source.sqlite") as store:
        store.add(chunk())
        shutil.copy(store.path, folder / "alone.sqlite")
        shutil.copy(store.path, folder / "x.sqlite")
        shutil.copy(f"{store.path}-wal", folder / "x.sqlite-wal")
    protect(folder, *folder.iterdir())
    with Store.read(folder / "alone.sqlite") as store:
        assert len(store.scores()) == 0
    sentence = refusal(Store.read, folder / "x.sqlite")
    assert sentence.endswith("it must be readable and, after an interruption, its folder writable")
