import os
import shutil
import subprocess
import sys

import pytest

import lastiterate as li
from lastiterate.auditing.stores.store import Store
from lastiterate.common.errors import DiskTrouble
from lastiterate.data.files import BadFile
from tests.auditing.stores.helpers import begin, chunk, contents, refusal
from tests.tools import malformed


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


def test_a_read_only_folder_can_be_read_but_not_written(forbidding):
    folder, forbid = forbidding
    with begin(folder / "x.sqlite") as store:
        store.add(chunk())
    forbid(0o555, folder, folder / "x.sqlite")
    with Store.read(folder / "x.sqlite") as store:
        assert len(store.scores()) == 8
    assert "cannot be used: Permission denied" in refusal(begin, folder / "x.sqlite")
    assert "cannot be used: Permission denied" in refusal(begin, folder / "new.sqlite")
    assert "cannot be used: Permission denied" in refusal(begin, folder / "new" / "x.sqlite")


def test_a_copy_without_its_log_is_read_in_a_read_only_folder_and_one_with_it_never_loses_the_log(forbidding):
    folder, forbid = forbidding
    with begin(folder / "source.sqlite") as store:
        store.add(chunk())
        shutil.copy(store.path, folder / "alone.sqlite")
        shutil.copy(store.path, folder / "x.sqlite")
        shutil.copy(f"{store.path}-wal", folder / "x.sqlite-wal")
    forbid(0o555, folder, *folder.iterdir())
    with Store.read(folder / "alone.sqlite") as store:
        assert len(store.scores()) == 0
    sentence = refusal(Store.read, folder / "x.sqlite")
    assert sentence.endswith("it must be readable and, after an interruption, its folder writable")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
@pytest.mark.parametrize("ending", ["-wal", "-shm", "-journal"])
def test_a_pipe_beside_a_store_is_one_sentence(path, ending):
    begin(path).close()
    os.mkfifo(f"{path}{ending}")
    command = [sys.executable, "-m", "lastiterate", "report", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert f"{ending}' must be a file, got a device" in ended.stderr


KINDS = malformed.kinds()
EMPTY = {"emptied"}  # to an audit an empty file is a new store
# A byte that nothing uses; of a finished audit nothing is trained.
HARMLESS = {"cut by a byte", "crafted.chunk_size: 5"}


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Of a finished audit and of an unfinished one, what they hold, and what they say."""
    folder = tmp_path_factory.mktemp("whole")
    done, begun = malformed.finished(folder / "done.sqlite"), malformed.finished(folder / "begun.sqlite", calls=9)
    return done.read_bytes(), begun.read_bytes(), malformed.outcome(done), malformed.outcome(begun)


@pytest.mark.parametrize("kind", KINDS)
def test_a_malformed_store_is_refused_in_a_sentence_and_nothing_changes(tmp_path, stores, kind):
    done, begun, *whole = stores
    for content, said in zip((done, begun), whole, strict=True):
        path = tmp_path / "s.sqlite"
        path.write_bytes(content)
        KINDS[kind](path)
        before = contents(tmp_path)
        found = malformed.outcome(path)
        if found == said and kind in HARMLESS:
            continue
        assert isinstance(found, str), f"{kind} is not noticed"
        assert found.startswith((f"the store {str(path)!r} ", f"{str(path)!r} "))
        assert "\n" not in found
        assert len(found) < 400
        if kind not in EMPTY:
            with pytest.raises(BadFile) as refused:
                li.audit(malformed.RUN, malformed.train, models=malformed.MODELS, store=path)
            assert "\n" not in str(refused.value)
        assert contents(tmp_path) == before
        for file in tmp_path.iterdir():
            file.unlink()


def test_a_flipped_bit_is_noticed_or_changes_nothing(tmp_path):
    refused, same = malformed.flip_many(tmp_path, 60, seed=5)
    assert refused + same == 60
    assert refused > 0
