"""Only a held lock means that somebody writes to a store; a lock file that was left behind does not."""

import threading
import time

import pytest

from lastiterate.auditing.stores.store import Store
from lastiterate.auditing.stores.store_file import BadFile, WriterLock, is_written
from tests.auditing.stores.helpers import begin, chunk


def test_a_lock_file_that_nobody_holds_is_no_writer(tmp_path):
    store = tmp_path / "s.sqlite"
    (tmp_path / "s.sqlite.lock").touch()
    assert not is_written(store)
    lock = WriterLock(store)
    assert is_written(store)
    with pytest.raises(BadFile, match="another process is writing"):
        WriterLock(store)
    lock.release()
    assert not is_written(store)


def test_looking_keeps_no_writer_out(tmp_path):
    store, done = tmp_path / "s.sqlite", threading.Event()

    def look():
        while not done.is_set():
            is_written(store)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(200):
            WriterLock(store).release()
    finally:
        done.set()
        looking.join()


def test_a_reader_who_looks_for_a_moment_leaves_no_log_behind(path):
    store = begin(path)
    store.add(chunk())
    with Store.read(path) as reader:
        closing = threading.Thread(target=store.close)
        closing.start()
        assert len(reader.scores())
        time.sleep(0.2)
    closing.join()
    assert [each.name for each in path.parent.iterdir()] == [path.name]
