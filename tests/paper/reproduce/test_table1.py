"""The table of language models, on a tiny one."""

import json

import pytest

import lastiterate as li
from lastiterate.lm.text_problem import EPOCHS
from lastiterate.paper.reproduce import table1
from lastiterate.paper.reproduce.audited_figures import Audits
from tests.lm.conftest import tiny_gemma2, tiny_texts  # noqa: F401
from tests.paper.reproduce.conftest import values

COLUMNS = (
    "batch_size, sample_rate, steps, noise_multiplier, last_iterate, composition, perplexity, empirical, confidence, "
    "models"
)


@pytest.fixture
def audits(tiny_gemma2, tiny_texts, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(table1, "BATCHES", {"quick": (16, 4), "full": (16, 4)})
    file = tmp_path / "dialogues.jsonl"
    file.write_text("".join(json.dumps({"turns": text.split("\n")}) + "\n" for text in tiny_texts.texts))
    return Audits(model=str(tiny_gemma2), text=file, store=tmp_path / "runs", models=3)


def test_rows_have_one_heuristic_and_the_columns_that_are_promised(audits):
    rows = table1.rows("quick", audits=audits)
    assert [row["batch_size"] for row in rows] == [16, 4]
    assert set(COLUMNS.split(", ")) <= set(rows[0])
    for row in rows:
        assert row["steps"] == round(2 * 32 / row["batch_size"])
        assert row["last_iterate"] == pytest.approx(6.0, abs=1e-8)
        assert row["perplexity"] > 1.0
        assert (row["examples"], row["models"], row["confidence"]) == (32, 3, 0.95)
    assert rows[0]["composition"] < rows[1]["composition"]
    assert len(list((audits.store).glob("table1-*.sqlite"))) == 2
    assert any("32 dialogues" in note for note in table1.notes(rows))
    perplexity = table1.chart(rows).to_dict()["hconcat"][1]
    assert perplexity["title"] == "Perplexity"
    assert [row["perplexity"] for row in values(perplexity["layer"][0])] == [row["perplexity"] for row in rows]


@pytest.mark.parametrize(("given", "words"), [({}, "text must be given"), ({"text": "x"}, "model must be given")])
def test_what_is_missing_is_named(given, words):
    with pytest.raises(ValueError, match=words):
        table1.rows("quick", audits=Audits(**given))


def test_the_size_of_data_that_the_papers_epsilons_are_consistent_with():
    batch, heuristic, standard = table1.PAPER[0]
    low, high = 2 * batch, 64 * batch
    while high - low > batch // 16:  # one step is half a batch of examples
        middle = (low + high) // 2
        run = li.DPSGD.from_batches(middle, batch, EPOCHS, 1.0)
        run = li.calibrate(run, epsilon=heuristic, delta=table1.DELTA, analysis=li.last_iterate)
        below = li.composition(run).epsilon(table1.DELTA) < standard
        low, high = (middle, high) if below else (low, middle)
    assert high == pytest.approx(table1.SIZES[0], abs=batch / 4)  # half a step
