"""Stores of the second format, which had no checksums: they are reported, and go on as ones of today's."""

import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest

import lastiterate as li
from lastiterate import attacks, data
from lastiterate.auditing.experiments.choose import Given, experiment_on
from lastiterate.auditing.identity import versions
from lastiterate.auditing.load_evidence import read
from lastiterate.auditing.stores.audit_record import Record
from lastiterate.auditing.stores.serialization import APPLICATION, SCHEMAS
from lastiterate.auditing.stores.store import Store
from lastiterate.training import problems
from tests.auditing.stores.helpers import CRAFTED, contents
from tests.auditing.stores.malformed import MODELS, RUN, finished, train, unfinished


def as_second(path):
    """The same store as the version before wrote it."""
    with closing(sqlite3.connect(path)) as database:
        values = database.execute("SELECT name, value FROM audit").fetchall()
        rows = database.execute("SELECT model, world, score, quality, seconds FROM trials").fetchall()
    path.unlink()
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = 2; {SCHEMAS[2]}")
        database.executemany("INSERT INTO audit VALUES (?, ?)", values)
        database.executemany("INSERT INTO trials VALUES (?, ?, ?, ?, ?)", rows)
    return path


def test_it_is_reported_and_not_a_byte_changes(tmp_path):
    path = finished(tmp_path / "s.sqlite")
    today = read(path)
    before = contents(as_second(path).parent)
    assert read(path).estimates == today.estimates
    assert contents(tmp_path) == before


def test_it_goes_on_as_one_of_todays_format(tmp_path):
    path = as_second(unfinished(tmp_path / "s.sqlite"))
    whole = li.audit(RUN, train, models=MODELS)
    resumed = li.audit(RUN, train, models=MODELS, store=path)
    np.testing.assert_array_equal(resumed.scores_in, whole.scores_in)
    np.testing.assert_array_equal(resumed.scores_out, whole.scores_out)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (3,)
    with Store.read(path) as store:
        told = store.versions()
    assert told[0] == {}  # nobody knows
    assert told[1]["numpy"] == np.__version__
    assert len(told) == 2


def test_another_audit_leaves_it_as_it_is(tmp_path):
    path = as_second(unfinished(tmp_path / "s.sqlite"))
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="holds another audit"):
        li.audit(RUN, train, models=MODELS, seed=1, store=path)
    assert contents(tmp_path) == before


def test_malformed_ones_are_refused(tmp_path):
    path = as_second(finished(tmp_path / "s.sqlite"))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"UPDATE trials SET model = {MODELS} WHERE model = 0")
    for call in (read, lambda path: li.audit(RUN, train, models=MODELS, store=path)):
        with pytest.raises(ValueError, match=r"^the store '.*' is damaged"):
            call(path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE trials SET model = 0 WHERE model > 11")
        database.execute("UPDATE audit SET value = ? WHERE name = 'record'", (json.dumps({"run": 1}),))
    with pytest.raises(ValueError, match=r"^the store '.*' is damaged"):
        read(path)


def test_going_on_with_other_versions_is_remarked(tmp_path, capsys, monkeypatch):
    path = unfinished(tmp_path / "s.sqlite")
    capsys.readouterr()
    now = {**versions(), "numpy": "9.9"}
    monkeypatch.setattr("lastiterate.auditing.run_audit.versions", lambda: now)
    li.audit(RUN, train, models=MODELS, store=path)
    assert capsys.readouterr().err == (
        f"trials in the store {str(path)!r} were trained with numpy {np.__version__}, here 9.9: scores may differ\n"
    )


def test_facts_of_another_shape_are_one_sentence(tmp_path):
    """With the right checksum: whoever wrote them did so on purpose."""
    run = li.DPSGD(5, 0.5, 1.0, optimizer=li.SGD(0.1))
    path, problem, attack = tmp_path / "s.sqlite", problems.logistic(data.digits()), attacks.GradientSpace("random")
    experiment = experiment_on(problem, Given(run, attack, 2, 0))
    with Store.open(path, experiment.identity(), Record(run, experiment.design, "", None, {})) as store:
        store.set_crafted({**CRAFTED, "facts": {"x": 1}})
    with pytest.raises(ValueError, match=r"^the store '.*' is damaged"):
        li.audit(run, problem, attack, models=2, store=path)
