import pytest

import lastiterate as li
from lastiterate.paper.reproduce import NAMES, figure1, find
from tests.paper.reproduce.conftest import values


@pytest.fixture(scope="module")
def rows():
    return figure1.rows("quick")


def panel(rows, name):
    return [row for row in rows if row["panel"] == name]


def test_every_point_is_what_the_analyses_say(rows):
    for row in rows[::3]:
        run = li.DPSGD(row["steps"], row["sample_rate"], row["noise_multiplier"])
        for name in ("last_iterate", "composition", "full_batch"):
            assert row[name] == pytest.approx(getattr(li, name)(run).epsilon(1e-6), rel=1e-9)


def test_the_heuristic_lies_between_its_baselines(rows):
    for row in rows:
        assert row["full_batch"] <= row["last_iterate"] * (1 + 1e-9)
        assert row["last_iterate"] <= row["composition"] * (1 + 1e-6)


def test_panel_c_shows_the_heuristic_falling_before_it_rises(rows):
    epsilons = [row["last_iterate"] for row in panel(rows, "c")]
    lowest = epsilons.index(min(epsilons))
    assert 0 < lowest < len(epsilons) - 1
    assert epsilons[0] > 2 * epsilons[lowest]
    for i, row in enumerate(panel(rows, "c")):
        assert row["max_over_steps"] == pytest.approx(max(epsilons[: i + 1]), rel=1e-9)


@pytest.mark.parametrize("number", [0, 1, 2], ids="abc")
def test_the_picture_has_a_line_for_every_analysis_of_a_panel(rows, number):
    name = "abc"[number]
    drawn = figure1.chart(rows).to_dict()["hconcat"][number]
    assert drawn["title"]["text"].startswith(f"({name})")
    assert drawn["mark"]["type"] == "line"
    for axis, field in (("x", "steps"), ("y", "epsilon")):
        assert (drawn["encoding"][axis]["field"], drawn["encoding"][axis]["scale"]["type"]) == (field, "log")
    labels = {"last_iterate": "last iterate (heuristic)", "composition": "composition (standard)"}
    labels["full_batch"] = "full batch (baseline)"
    if name == "c":
        labels["max_over_steps"] = "largest up to T (heuristic)"
    shown = {(row["analysis"], row["steps"]): row["epsilon"] for row in values(drawn)}
    assert shown == {(label, row["steps"]): row[key] for key, label in labels.items() for row in panel(rows, name)}


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ValueError, match="figure1"):
        find("figure99")
    assert all(find(name).TITLE for name in NAMES)
