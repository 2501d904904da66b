"""Formats of stores: a registered former format is read, and an audit that goes on rewrites it."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate.auditing.identity import versions
from lastiterate.auditing.stores.audit_record import ScoredTrials
from lastiterate.auditing.stores.serialization import APPLICATION, FORMAT, FORMER, Contents, Former
from lastiterate.auditing.stores.store import Store
from tests.auditing.stores.helpers import contents
from tests.tools.malformed import MODELS, RUN, finished, train

SCHEMA = "CREATE TABLE one (value TEXT);"  # of an imaginary earlier format: all in one value


@pytest.fixture
def former(tmp_path, monkeypatch):
    """An unfinished store of format 0, which has a registered reader."""

    def read_former(database):
        values, rows = json.loads(database.execute("SELECT value FROM one").fetchone()[0])
        models, worlds, scores = zip(*rows, strict=True)
        trials = ScoredTrials.of(models, [world == "in" for world in worlds], scores, seconds=0.0)
        return Contents(values, (replace(trials, versions={}),))

    monkeypatch.setitem(FORMER, 0, Former(SCHEMA, read_former))
    path = finished(tmp_path / "s.sqlite", 9)
    with closing(sqlite3.connect(path)) as database:
        values = dict(database.execute("SELECT name, value FROM audit").fetchall())
        rows = database.execute("SELECT model, world, score FROM trials").fetchall()
    path.unlink()
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(f"PRAGMA application_id = {APPLICATION}; {SCHEMA}")
        database.execute("INSERT INTO one VALUES (?)", (json.dumps([values, rows]),))
    return path


def test_a_store_of_a_registered_former_format_is_read_unchanged_and_rewritten_when_continued(former):
    before = contents(former.parent)
    with Store.read(former) as store:
        assert len(store.scores()) == 9
    with pytest.raises(ValueError, match="holds another audit"):
        li.audit(RUN, train, models=MODELS, seed=1, store=former)
    assert contents(former.parent) == before
    whole = li.audit(RUN, train, models=MODELS)
    resumed = li.audit(RUN, train, models=MODELS, store=former)
    np.testing.assert_array_equal(resumed.scores_in, whole.scores_in)
    np.testing.assert_array_equal(resumed.scores_out, whole.scores_out)
    with closing(sqlite3.connect(former)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (FORMAT,)
    with Store.read(former) as store:
        assert [told.get("numpy") for told in store.versions()] == [None, np.__version__]


def test_going_on_with_other_versions_is_remarked(tmp_path, capsys, monkeypatch):
    path = finished(tmp_path / "s.sqlite", 9)
    capsys.readouterr()
    now = {**versions(), "numpy": "9.9"}
    monkeypatch.setattr("lastiterate.auditing.run_audit.versions", lambda: now)
    li.audit(RUN, train, models=MODELS, store=path)
    assert capsys.readouterr().err == (
        f"trials in the store {str(path)!r} were trained with numpy {np.__version__}, here 9.9: scores may differ\n"
    )
