"""The malicious data set as a whole: exact epsilons, what was found, and what is said of them."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom, norm

import lastiterate as li
from lastiterate.paper.counterexamples import malicious

SETTING = replace(malicious.DEFAULTS, steps=30, sample_rate=0.1, models=2000, seed=1)


@pytest.fixture(scope="module")
def found():
    return malicious.probe(SETTING)


def test_without_a_noise_the_standard_epsilon_is_8(found):
    assert found.predictions["composition"].value == pytest.approx(8.0, rel=1e-5)
    assert found.predictions["last_iterate"].value == pytest.approx(li.last_iterate(found.run).epsilon(1e-5))
    assert malicious.DEFAULTS.delta == 1e-5
    assert malicious.DEFAULTS.models == 100_000


def test_the_value_of_every_step_leaks_what_composition_says(found):
    exact, standard = found.cases[-1].exact.value, found.predictions["composition"].value
    assert 0.999 * standard <= exact <= standard
    assert exact > found.predictions["last_iterate"].value


def test_one_bit_leaks_its_own_exact_epsilon(found):
    """The largest over a grid of thresholds, of two binomials by SciPy: no test that counts bits tells more."""
    noise, count, thresholds = found.run.noise_multiplier, np.arange(31)[:, None], np.linspace(0.0, 4.0, 2001)
    without = norm.sf(thresholds, 0.0, noise)
    together = 0.9 * without + 0.1 * norm.sf(thresholds, 1.0, noise)
    inside, outside = binom.sf(count - 1, 30, together), binom.sf(count - 1, 30, without)
    scanned = np.log(np.maximum(inside - 1e-5, 1e-300) / outside).max()
    exact = found.cases[0].exact.value
    assert exact == pytest.approx(scanned, rel=1e-3)
    assert exact < 0.9 * found.predictions["composition"].value


def test_what_was_found_is_much_and_not_more_than_there_is(found):
    one, linear = found.cases
    assert 0.5 * linear.exact.value < linear.empirical <= linear.exact.value
    assert 0.5 * one.exact.value < one.empirical <= one.exact.value <= one.at_most.value
    assert 0.3 * one.exact.value < one.by_composition <= one.exact.value
    assert linear.at_most.value is None
    assert linear.by_composition is None


def test_one_encoding_may_be_asked_for_and_the_scores_are_kept(found, tmp_path, monkeypatch):
    setting = replace(SETTING, encoding="linear", store=tmp_path)
    first = malicious.probe(setting)
    assert [case.label for case in first.cases] == ["linear"]
    assert first.cases[0] == found.cases[1]
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("malicious-linear-")
    monkeypatch.setattr("lastiterate.training.Trainer", _unreachable)
    assert malicious.probe(setting).cases == first.cases


def _unreachable(*arguments, **options):
    pytest.fail("what was trained before was trained again")
