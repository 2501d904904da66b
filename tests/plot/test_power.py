"""The pictures of an audit's power and of its waterfall have all that the tables have."""

import json

import pytest

import lastiterate as li

RUN = li.DPSGD(100, 0.1, 0.94)


def drawn(chart):
    return json.dumps(chart.to_dict(), allow_nan=False)


@pytest.mark.parametrize(("one_run", "noise"), [(False, 0.3), (True, 0.1), (False, 0.94)])
def test_the_picture_shows_what_it_takes_or_that_nothing_does(one_run, noise):
    method = "one-run" if one_run else "clopper-pearson"
    found = li.power(RUN, 200, methods=[method], one_run=one_run, leaks_noise=noise)
    spec = drawn(found.plot())
    assert ('for 80%"' in spec) == (found.needed is not None)
    assert ("canaries (log scale)" in spec) == one_run
    assert f'"models": {found.models}, "chance": {json.dumps(found.chance)}' in spec
    assert "a heuristic" in spec
