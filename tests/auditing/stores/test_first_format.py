"""Stores of the first format: they are reported and exported like those of today, and never written to."""

import csv
import json
import sqlite3
from contextlib import closing
from dataclasses import asdict, fields

import numpy as np
import pytest

import lastiterate as li
from lastiterate import attacks
from lastiterate.attacks.attack import LinearScores, Unknown, Words
from lastiterate.auditing.design import OneModel, Paired, Quality
from lastiterate.auditing.evidence.estimates import Question
from lastiterate.auditing.experiments.protocol import Crafted
from lastiterate.auditing.identity import Identity
from lastiterate.auditing.load_evidence import export, read
from lastiterate.auditing.stores.audit_record import Record, ScoredTrials
from lastiterate.auditing.stores.store import Store
from tests.auditing.stores.helpers import begin, contents, refusal

RUN = li.DPSGD(30, 0.1, 1.0, optimizer=li.SGD(0.02, momentum=0.5))
WORDS = Words("a test; score: none", "standard deviations of the noise", ("One caveat.",))
MODELS, SEED = 60, 1
SCHEMA = """
PRAGMA application_id = 1279877493; PRAGMA user_version = 1;
CREATE TABLE audit (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE trials (
  model INTEGER NOT NULL CHECK (model >= 0),
  world TEXT NOT NULL CHECK (world IN ('in', 'out')),
  score REAL NOT NULL,
  accuracy REAL,
  seconds REAL NOT NULL,
  seed INTEGER,
  PRIMARY KEY (model, world)
) WITHOUT ROWID;
"""
KINDS = {  # design, quality, of the model before training, what is expected of the scores
    "paired": (Paired(MODELS), Quality("accuracy"), None, LinearScores(0.8, 1.1)),
    "paired, unmeasured": (Paired(MODELS), None, None, Unknown()),
    "one run": (OneModel(MODELS, SEED), Quality("accuracy"), None, LinearScores()),
    "texts": (Paired(MODELS), Quality("perplexity"), 250.0, LinearScores(0.7, 1.0)),
    "texts, one run": (OneModel(MODELS, SEED), Quality("perplexity"), 2.0, LinearScores()),
    "texts, none held out": (Paired(MODELS), Quality("perplexity"), None, LinearScores()),
}


def scored(kind):
    design, quality, _, _ = KINDS[kind]
    generator = np.random.default_rng(3)
    numbers, present = design.planned()
    scores = 2.0 * present + generator.standard_normal(len(numbers))
    qualities = np.full(len(numbers), np.nan)
    if quality is not None and kind != "texts, none held out":
        qualities = generator.uniform(0.5, 1.0, len(numbers)) * (400.0 if quality.lower_is_better else 1.0)
        qualities[3] = np.nan
    return ScoredTrials.of(numbers, present, scores, qualities, seconds=1.5)


def first_format(path, kind, *, crafted=True):
    """As the first version wrote it: 1 / perplexity was called accuracy, and texts were known by one of the facts."""
    design, quality, before, expected = KINDS[kind]
    texts = quality is not None and quality.lower_is_better
    trials = scored(kind)
    run = {
        "steps": 30,
        "sample_rate": 0.1,
        "noise_multiplier": 1.0,
        "sampling": "poisson",
        "optimizer": asdict(RUN.optimizer),
        "clip_norm": 1.0,
    }
    attack = {"name": "GradientSpace", "direction": "quiet", "norm": 10.0, "references": 4, "seed": 0}
    asked = {"data": "what was trained", "problem": "1eccc7ac53533f5e", "models": MODELS, "seed": SEED}
    linear = isinstance(expected, LinearScores)
    facts = {
        "crafted": {"indices": [0], "centre": 0.5},
        "expected": {
            "kind": "linear" if linear else "none",
            "signal": expected.signal if linear else 1.0,
            "spread": expected.spread if linear else 1.0,
        },
        "words": asdict(WORDS),
        "one_run": isinstance(design, OneModel),
        "chunk_size": 22,
        **({"perplexity_before": before} if texts else {}),
    }
    values = {"specification": {"run": run, "attack": attack, **asked}, "setup": {"versions": {"python": "3.11.7"}}}
    values |= {"seconds": 6.5} | ({"facts": facts} if crafted else {})
    qualities = 1.0 / trials.qualities if texts else trials.qualities
    rows = zip(trials.models.tolist(), trials.worlds, trials.scores, qualities, trials.seconds, strict=True)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(SCHEMA)
        with database:
            database.executemany("INSERT INTO audit VALUES (?, ?)", [(k, json.dumps(v)) for k, v in values.items()])
            if crafted:
                database.executemany("INSERT INTO trials VALUES (?, ?, ?, ?, ?, NULL)", rows)
    return path


def second_format(path, kind):
    design, quality, before, expected = KINDS[kind]
    crafted = Crafted({"indices": [0], "centre": 0.5}, expected, WORDS, before)
    with Store.open(path, Identity({}), Record(RUN, design, "what was trained", quality, {})) as store:
        store.set_crafted({**crafted.fields(), "chunk_size": 22})
        store.add_seconds(6.5)
        store.add(scored(kind))
    return path


@pytest.fixture(params=KINDS)
def both(request, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    return first_format(old / "x.sqlite", request.param), second_format(new / "x.sqlite", request.param), request.param


def test_reports_are_those_of_the_same_scores_in_the_second_format(both):
    old, new, kind = both
    before = contents(old.parent)
    for question in (Question(), Question(1e-6, 0.9, threshold="corrected", claim_epsilon=0.5)):
        one, other = read(old, question), read(new, question)
        for field in fields(one):
            if field.name != "store":
                _assert_same(getattr(one, field.name), getattr(other, field.name))
    assert one.models == MODELS
    assert (one.perplexity is not None, one.accuracy is not None) == {
        "paired": (False, True),
        "one run": (False, True),
        "texts": (True, False),
        "texts, one run": (True, False),
    }.get(kind, (False, False))
    assert contents(old.parent) == before


def _assert_same(one, other):
    if isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-14)  # of perplexities the inverse was written
    else:
        assert one == other


def test_exports_are_those_of_the_second_format(both, tmp_path):
    tables = []
    for path in both[:2]:
        before = contents(path.parent)
        with Store.read(path) as store:
            export(store, tmp_path / "x.csv")
        assert contents(path.parent) == before
        with (tmp_path / "x.csv").open(newline="") as file:
            tables.append(list(csv.reader(file)))
    one, other = tables
    assert (
        one[0] == other[0] == ["model", "world", "score", "perplexity" if "texts" in both[2] else "accuracy", "seconds"]
    )
    assert len(one) == len(other) == 1 + KINDS[both[2]][0].trials
    for row, same in zip(one[1:], other[1:], strict=True):
        assert row[:3] + row[4:] == same[:3] + same[4:]
        assert (row[3] == "") == (same[3] == "")
        assert row[3] == "" or float(row[3]) == pytest.approx(float(same[3]), rel=1e-14)


def test_going_on_is_refused_in_a_sentence_and_not_a_byte_changes(both):
    old, _, _ = both
    before = contents(old.parent)
    sentence = refusal(begin, old)
    assert sentence.startswith(f"the store {str(old)!r} was begun by an earlier version")
    assert sentence.endswith("it can be reported and exported, but not continued; name another store")
    assert contents(old.parent) == before
    with pytest.raises(ValueError, match="was begun by an earlier version"):
        li.audit(RUN, None, attacks.Adversarial(), models=MODELS, seed=SEED, store=old)
    assert contents(old.parent) == before


def test_what_was_begun_with_is_told(tmp_path):
    with Store.read(first_format(tmp_path / "x.sqlite", "texts")) as store:
        assert store.record.setup == {"versions": {"python": "3.11.7"}}
        assert (store.record.run, store.record.data, store.seconds) == (RUN, "what was trained", 6.5)
        assert store.crafted["facts"] == {"indices": [0], "centre": 0.5}


def test_one_that_was_stopped_before_its_first_model_says_so(tmp_path):
    path = first_format(tmp_path / "x.sqlite", "paired", crafted=False)
    assert "has no trial yet" in refusal(read, path)
    with Store.read(path) as store:
        export(store, tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text() == "model,world,score,accuracy,seconds\n"


def test_a_useless_model_among_texts_has_no_perplexity(tmp_path):
    """Its chance of a token was rounded to zero: it is left out, as then."""
    path = first_format(tmp_path / "x.sqlite", "texts")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE trials SET accuracy = 0.0 WHERE model = 7")
    known = np.delete(scored("texts").qualities, [14, 15])
    assert read(path).perplexity == pytest.approx(np.exp(np.nanmean(np.log(known))))
