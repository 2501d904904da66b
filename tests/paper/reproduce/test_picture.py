"""Pictures of audits show the rows that they are given, nothing else, and all of it within their axes."""

import pytest

from lastiterate.paper.reproduce.audited_figures import Panel, by_batch_size, by_steps
from tests.paper.reproduce.conftest import assert_shows, audited, values


def drawn(rows, attacks=None):
    (panel,) = by_steps("A title", [Panel("q = 0.1", "noise 2", rows)], attacks).to_dict()["hconcat"]
    return panel


def test_an_attack_that_found_no_number_has_no_point():
    first, second = audited(steps=(10, 30))
    panel = drawn([{**first, "empirical": None, "empirical_reason": "none"}, second])
    assert [row["epsilon"] for row in values(panel["layer"][1])] == [second["empirical"]]


@pytest.mark.parametrize(
    ("quality", "shown"), [("accuracy", ["25.0%", "50.0%"]), ("perplexity", ["0.25", "0.5"])], ids=str
)
def test_batch_sizes_have_privacy_and_quality_side_by_side(quality, shown):
    rows = [{**row, quality: good} for row, good in zip(audited(batch_size=(64, 16)), (0.25, 0.5), strict=True)]
    privacy, good = by_batch_size("A title", rows, quality).to_dict()["hconcat"]
    assert (privacy["title"], good["title"]) == ("Privacy", quality.capitalize())
    assert_shows(privacy, rows, "batch_size")
    points, texts = good["layer"]
    assert (points["mark"]["type"], texts["mark"]["type"]) == ("point", "text")
    for layer in good["layer"]:
        assert (layer["encoding"]["x"]["field"], layer["encoding"]["y"]["field"]) == ("batch_size", quality)
        assert [(row["batch_size"], row[quality]) for row in values(layer)] == [(64, 0.25), (16, 0.5)]
    assert [row["text"] for row in values(texts)] == shown
