import pytest

import lastiterate as li
from lastiterate.paper.reproduce import figure3
from tests.paper.reproduce.conftest import COMMON, FOUND


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
