"""The vocabulary agrees with the analyses that it names."""

import pytest

import lastiterate as li
from lastiterate.labels import ANALYSES, FAMILIES, METHODS, ONE_RUN_METHODS, PAIRED_METHODS

SMALL = li.DPSGD(2, 0.5, 1.0)


@pytest.mark.parametrize("name", ANALYSES)
def test_an_analysis_is_the_public_function_of_its_name_and_a_guarantee_where_its_curve_is(name):
    analysis = ANALYSES[name]
    assert analysis.curve is getattr(li, name)
    more = {"contraction": 0.9} if name == "convex" else {}
    assert analysis.curve(SMALL, **more).is_guarantee == analysis.is_guarantee


def test_every_method_is_for_models_or_for_canaries_of_one_and_families_assume_something():
    assert {*PAIRED_METHODS, *ONE_RUN_METHODS} == METHODS.keys()
    assert not {*PAIRED_METHODS} & {*ONE_RUN_METHODS}
    assert all("nothing" not in METHODS[name].assumes for name in FAMILIES)
    assert METHODS["clopper-pearson"].assumes == "assumes nothing about the mechanism"
