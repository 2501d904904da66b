from __future__ import annotations

import time

import pytest
from scipy.stats import binom

import lastiterate as li
from lastiterate.paper.reproduce import figure3
from lastiterate.paper.reproduce.audited_figures import Audits
from tests.paper.reproduce.conftest import COMMON, FOUND, assert_shows


@pytest.fixture(scope="module")
def rows():
    """Every other point: T = 10, 100, 1,000 and 10,000."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure3, "_POINTS", {"quick": 4})
        return figure3.rows("quick")


def test_rows_have_the_papers_setting(rows):
    assert [(row["sample_rate"], row["steps"]) for row in rows] == [
        (rate, steps) for rate in (0.01, 0.1) for steps in (10, 100, 1000, 10_000)
    ]
    for row in rows:
        assert list(row) == COMMON + FOUND
        assert row["composition"] == pytest.approx(8.0, rel=2e-6)
        assert row["models"] == 100_000
        run = li.DPSGD(row["steps"], row["sample_rate"], row["noise_multiplier"])
        assert row["last_iterate"] == pytest.approx(li.last_iterate(run).epsilon(1e-5), rel=1e-9)


def test_the_attack_nearly_reaches_the_heuristic(rows):
    for row in rows:
        uses = row["steps"] * row["sample_rate"]
        share = row["empirical"] / row["last_iterate"]
        assert share >= (0.9 if uses >= 10 * (1 - 1e-9) else 0.75 if uses >= 1 - 1e-9 else 0.5), row


def test_no_more_rows_exceed_the_heuristic_than_the_confidence_allows(rows):
    above = sum(row["empirical"] > row["last_iterate"] for row in rows)
    assert above <= binom.ppf(0.999, len(rows), 0.05)


def test_a_hundred_thousand_draws_a_world_take_less_than_a_second():
    run = li.DPSGD(10_000, 0.1, 6.0)
    figure3.draw(run, 10, 0)
    began = time.process_time()
    inside, outside = figure3.draw(run, 100_000, 1)
    assert time.process_time() - began < 1.0
    assert len(inside) == len(outside) == 100_000
    assert inside.mean() > outside.mean()


def test_other_numbers_of_models_may_be_asked_for(monkeypatch):
    monkeypatch.setattr(figure3, "LEAST", 1000)
    monkeypatch.setattr(figure3, "_POINTS", {"full": 2})
    rows = figure3.rows("full", audits=Audits(models=500))
    assert {row["models"] for row in rows} == {500}
    panels = figure3.chart(rows).to_dict()["hconcat"]
    for panel, rate in zip(panels, figure3.RATES, strict=True):
        assert panel["title"]["text"] == f"q = {rate}"
        assert_shows(panel, [row for row in rows if row["sample_rate"] == rate], "steps")
    with pytest.raises(ValueError, match="models"):
        figure3.rows("full", audits=Audits(models=0))
