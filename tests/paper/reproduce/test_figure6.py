import pytest

import lastiterate as li
from lastiterate.paper.reproduce import figure6
from lastiterate.paper.reproduce.audited_figures import Audits
from tests.paper.reproduce.conftest import FOUND, Idle, stopped_after

COLUMNS = ["sample_rate", "steps", "noise_multiplier", "encoding", "last_iterate", "composition", "exact", *FOUND]
RATES, STEPS, MODELS = (0.1,), 30, 500
PAPER = figure6.RATES


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("figure6")


@pytest.fixture(scope="module", autouse=True)
def _few():
    """Few steps, and a sample rate at which composition is quick; those of the paper take minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure6, "MODELS", {"quick": {STEPS: MODELS}})
        patch.setattr(figure6, "RATES", RATES)
        yield


@pytest.fixture(scope="module")
def rows(store):
    """Stopped after one of the two rows, and resumed."""
    with pytest.raises(KeyboardInterrupt):
        figure6.rows("quick", stopped_after(1), Audits(store=store))
    assert len(list(store.iterdir())) == 1
    return figure6.rows("quick", audits=Audits(store=store))


def test_rows_have_the_papers_setting(rows):
    assert PAPER == (0.01, 0.1)
    assert [(row["sample_rate"], row["encoding"]) for row in rows] == [
        (rate, encoding) for rate in RATES for encoding in ("one-bit", "linear")
    ]
    for row in rows:
        assert list(row)[: len(COLUMNS)] == COLUMNS
        assert row["steps"] == STEPS
        assert row["models"] == MODELS
        assert row["confidence"] == 0.95
        assert row["composition"] == pytest.approx(8.0, rel=1e-5)
        run = li.DPSGD(STEPS, row["sample_rate"], row["noise_multiplier"])
        assert row["last_iterate"] == pytest.approx(li.last_iterate(run).epsilon(1e-5))


def test_one_bit_loses_and_the_value_of_every_step_does_not(rows):
    for row in rows:
        share = row["exact"] / row["composition"]
        assert share < 0.999 if row["encoding"] == "one-bit" else 0.999 <= share <= 1.0
        assert 0.4 * row["exact"] < row["empirical"] <= row["exact"]
        assert 0.4 * row["exact"] < row["empirical_composition"] <= row["exact"]


def test_one_bit_is_bounded_from_above_too_and_the_other_says_why_it_is_not(rows):
    one, linear = rows
    assert one["method"] == "the rates of independent bits"
    assert one["exact"] < one["empirical_upper"] < 2.0 * one["exact"]
    assert None not in one.values()
    assert linear["method"] == "composition family"
    assert linear["empirical_composition"] == linear["empirical"]
    assert [key for key, value in linear.items() if value is None] == ["empirical_upper"]
    assert linear["empirical_upper_reason"] == "the method gives only a lower bound on epsilon"


def test_what_was_trained_is_not_trained_again(rows, store):
    before = sorted(store.iterdir())
    assert len(before) == 2
    assert figure6.rows("quick", audits=Audits(store=store, engine=Idle())) == rows
    assert sorted(store.iterdir()) == before
