import json
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from lastiterate.auditing.stores.audit_record import ScoredTrials
from lastiterate.auditing.stores.store import Store
from lastiterate.auditing.stores.store_file import WriterLock, is_written
from tests.auditing.stores.helpers import VALUES, begin, chunk, contents, refusal


def test_what_was_added_comes_back_ordered_and_exact(path):
    rng = np.random.default_rng(0)
    models = rng.permutation(100)
    scores = rng.standard_normal(100) * 10.0 ** rng.integers(-300, 300, 100)
    scores[:2] = np.inf, -np.inf
    qualities = np.where(rng.random(100) < 0.5, np.nan, rng.random(100))
    present, seconds = rng.random(100) < 0.5, rng.random(100)
    with begin(path) as store:
        store.add(ScoredTrials(models[:50], present[:50], scores[:50], qualities[:50], seconds[:50]))
        store.add(ScoredTrials(models[50:], present[50:], scores[50:], qualities[50:], seconds[50:]))
    order = np.argsort(models)
    with Store.read(path) as store:
        found = store.scores()
        assert store.done() == set(zip(models.tolist(), present.tolist(), strict=True))
    for column, expected in zip(
        (found.models, found.present, found.scores, found.qualities, found.seconds),
        (models, present, scores, qualities, seconds),
        strict=True,
    ):
        np.testing.assert_array_equal(column, expected[order])
        assert column.dtype == expected.dtype


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 1}, "seed is 0 in the store and 1 in this audit"),
        ({"run": {"steps": 11, "weights": [1.0, 0.5]}}, "run.steps is 10 in the store and 11 in this audit"),
        ({"run": {"steps": 10, "weights": [1.0]}}, "run.weights[1] is 0.5 in the store and absent in this audit"),
        ({"attack": "dirac"}, "attack is absent in the store and 'dirac' in this audit"),
        ({"seed": {"x": "y" * 100}}, "seed is 0 in the store and {'x': 'yyyy"),
        ({"a": 1, "b": 2, "c": 3, "d": 4}, "c is absent in the store and 3 in this audit and more)"),
    ],
)
def test_another_identity_is_refused_and_not_a_byte_changes(path, change, said):
    with begin(path) as store:
        store.add(chunk())
    before = contents(path.parent)
    sentence = refusal(begin, path, {**VALUES, **change})
    assert said in sentence
    assert sentence.startswith(f"the store {str(path)!r} holds another audit (")
    assert contents(path.parent) == before


def test_a_killed_store_is_read_and_continued(killed):
    with Store.read(killed) as store:
        assert len(store.scores()) == 8
    with begin(killed) as store:
        store.add(chunk(4))
        assert len(store.scores()) == 16
    with Store.read(killed) as store:
        assert len(store.scores()) == 16


def test_a_store_killed_while_its_log_was_folded_in_is_sound(path):
    with begin(path) as store:
        store.add(chunk(count=2000))
        log, rest = Path(f"{path}-wal").read_bytes(), path.read_bytes()[4096:]
    path.write_bytes(path.read_bytes()[:4096] + rest)  # its first page tells of pages that only the log has
    Path(f"{path}-wal").write_bytes(log)
    with Store.read(path) as store:
        assert len(store.scores()) == 4000
    with begin(path) as store:
        assert len(store.scores()) == 4000


def test_a_half_written_switch_of_journals_is_undone(path):
    """What a kill leaves in the instant in which SQLite turns its log on or off: a journal to roll back."""
    with begin(path) as store:
        store.add(chunk())
    with sqlite3.connect(path, isolation_level=None) as database:
        database.execute("PRAGMA cache_size = 1")
        database.execute("BEGIN")
        database.execute("CREATE TABLE filler AS SELECT randomblob(100000)")
        database.execute("UPDATE trials SET score = 0")
        for ending in ("", "-journal"):
            shutil.copy(f"{path}{ending}", f"{path}.copy{ending}")
        database.execute("ROLLBACK")
    database.close()
    for ending in ("", "-journal"):
        Path(f"{path}.copy{ending}").replace(f"{path}{ending}")
    with Store.read(path) as store:
        np.testing.assert_array_equal(store.scores().scores, np.arange(8.0))
    begin(path).close()


@pytest.mark.parametrize(
    ("columns", "again"),
    [({}, "model 0 of world 'in'"), ({"models": np.array([4, 4, 5, 5, 6, 6, 3, 3])}, "model 3 of world 'in'")],
)
def test_a_trial_is_stored_once_and_its_chunk_not_at_all(path, columns, again):
    with begin(path) as store:
        store.add(chunk())
        assert refusal(store.add, chunk(scores=np.zeros(8), **columns)).endswith(f"got {again} again")
        np.testing.assert_array_equal(store.scores().scores, np.arange(8.0))
        twice = chunk(8, models=np.full(8, 9))
        assert refusal(store.add, twice).endswith("got model 9 of world 'in' again")
        store.add(chunk(4))
        assert len(store.scores()) == 16


def test_a_second_writer_is_refused_and_a_reader_sees_what_is_there(path):
    with begin(path) as store:
        store.add(chunk())
        other = f"another process is writing to the store {str(path)!r}: wait for it or stop it first"
        assert refusal(begin, path) == other
        with Store.read(path) as reader:
            assert len(reader.scores()) == 8
            store.add(chunk(4))
            assert len(reader.scores()) == 16
            assert "must be writable, but it was opened only for reading" in refusal(reader.add, chunk(8))
    begin(path).close()


def test_a_reader_does_not_loosen_the_writers_locks(path):
    """If it did, a foreign program could believe to be the last one and take the log away from under the writer."""
    program = "import sqlite3, sys; d = sqlite3.connect(sys.argv[1]); d.execute('select * from trials'); d.close()"
    with begin(path) as store:
        store.add(chunk())
        Store.read(path).close()
        subprocess.run([sys.executable, "-c", program, path], check=True, timeout=60)
        store.add(chunk(4))
        assert Path(f"{path}-wal").exists()
    with Store.read(path) as reader:
        assert len(reader.scores()) == 16


WRITER = """
import json, sys
import numpy as np
from lastiterate.auditing.stores.audit_record import ScoredTrials
from tests.auditing.stores.helpers import begin
path, models = sys.argv[1], np.arange(5)
with begin(path, json.loads(sys.argv[2])) as store:
    first = max((model for model, _ in store.done()), default=-1) + 1
    print("open", flush=True)
    for start in range(first, 10**6, 5):
        columns = np.sqrt(models + start), np.full(5, np.nan), np.zeros(5)
        store.add(ScoredTrials(models + start, np.full(5, True), *columns))
        print(start + 5, flush=True)
"""


def test_a_writer_killed_at_any_moment_loses_nothing_that_it_reported(path):
    chance = random.Random(0)
    reported = 0
    for attempt in range(10):
        command = [sys.executable, "-c", WRITER, str(path), json.dumps(VALUES)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            if attempt % 3 != 2:  # every third is killed while it starts
                assert writer.stdout.readline() == "open\n"
            timer = threading.Timer(chance.uniform(0.0, 0.15), writer.send_signal, [signal.SIGKILL])
            timer.start()
            lines = writer.stdout.read().split("\n")
            timer.join()
        assert writer.returncode == -signal.SIGKILL
        reported = max([reported, *(int(line) for line in lines if line.isdigit())])
        if reported:
            with Store.read(path) as store:
                found = store.scores()
            assert len(found) in (reported, reported + 5)  # the last chunk may be stored and not yet reported
            np.testing.assert_array_equal(found.models, np.arange(len(found)))
            np.testing.assert_array_equal(found.scores, np.sqrt(found.models))
            reported = len(found)
    assert reported > 0
    with begin(path) as store:
        store.add(chunk(reported))
        assert len(store.scores()) == reported + 8
    assert [file.name for file in path.parent.iterdir()] == [path.name]


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
