"""The malicious data set as a whole: exact epsilons, what was found, and what is said of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom, norm

import lastiterate as li
from lastiterate.cli.probe import STORIES
from lastiterate.paper.counterexamples import malicious
from lastiterate.plot.counterexample import counterexample_chart

SETTING = replace(malicious.DEFAULTS, steps=30, sample_rate=0.1, models=2000, seed=1)


@pytest.fixture(scope="module")
def found():
    return malicious.probe(SETTING)


def test_the_most_telling_encoding_comes_last(found):
    assert found.name == "malicious"
    assert [case.label for case in found.cases] == ["one-bit", "linear"]
    assert found.setting == SETTING
    assert found.run.steps == 30
    assert [(row["encoding"], row["exact"], row["empirical"], row["models"]) for row in found.rows] == [
        (case.label, case.exact.value, case.empirical, 2000) for case in found.cases
    ]


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


def test_sentences_carry_the_numbers_and_the_caveat(found):
    one, linear, caveat = STORIES["malicious"].sentences(found)
    share = one_share(found)
    assert f"{share:.2g} of composition" in one
    heuristic = found.predictions["last_iterate"].value
    assert f"The heuristic predicts {heuristic:.4g}" in one
    assert f"leaks {100 * (found.cases[1].exact.value / heuristic - 1):.3g}% more" in linear
    assert "all other examples conspire" in caveat


def test_one_step_is_no_counterexample_and_one_bit_of_it_matches():
    found = malicious.probe(replace(malicious.DEFAULTS, steps=1, sample_rate=0.1, models=20))
    one, linear, _ = STORIES["malicious"].sentences(found)
    assert "with 1 of composition's epsilon: it matches the standard analysis" in one
    assert "this is no counterexample" in linear


def one_share(found):
    return found.cases[0].exact.value / found.predictions["composition"].value


def test_one_encoding_may_be_asked_for_and_the_scores_are_kept(found, tmp_path, monkeypatch):
    setting = replace(SETTING, encoding="linear", store=tmp_path)
    first = malicious.probe(setting)
    assert [case.label for case in first.cases] == ["linear"]
    assert first.cases[0] == found.cases[1]
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("malicious-linear-")
    monkeypatch.setattr("lastiterate.training.Trainer", _unreachable)
    assert malicious.probe(setting).cases == first.cases


def test_other_settings_are_other_files(tmp_path, monkeypatch):
    files = []

    def look(experiment, *, store, engine):
        files.append(store)
        raise KeyboardInterrupt  # nothing has to be trained to see this

    monkeypatch.setattr("lastiterate.auditing.run_audit.collected", look)
    for change in ({}, {"seed": 2}, {"models": 20}, {"steps": 4}, {"sample_rate": 0.2}, {"delta": 1e-6}, {}):
        setting = replace(SETTING, noise_multiplier=1.0, store=tmp_path, encoding="one-bit", **change)
        with pytest.raises(KeyboardInterrupt):
            malicious.probe(setting)
    assert len(set(files)) == 6
    assert files[0] == files[-1]


def test_the_picture_has_a_bar_for_every_epsilon(found):
    bars, texts = counterexample_chart(found, "A title").to_dict()["layer"]
    one, linear = found.cases
    assert {bar["what"]: bar["epsilon"] for bar in bars["data"]["values"]} == {
        "last iterate (heuristic)": found.predictions["last_iterate"].value,
        "composition (standard)": found.predictions["composition"].value,
        "one-bit, this example (exact)": one.exact.value,
        "one-bit, found by the attack": one.empirical,
        "linear, this example (exact)": linear.exact.value,
        "linear, found by the attack": linear.empirical,
    }
    assert [(layer["mark"]["type"], layer["encoding"]["x"]["field"]) for layer in (bars, texts)] == [
        ("bar", "epsilon"),
        ("text", "epsilon"),
    ]
    assert [text["text"] for text in texts["data"]["values"][2:4]] == ["5.84", "4.66"]


def _unreachable(*arguments, **options):
    pytest.fail("what was trained before was trained again")
