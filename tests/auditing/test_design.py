"""Designs: which trials there are."""

import numpy as np
import pytest

from lastiterate.auditing.design import OneModel, Paired, Quality


def test_a_pair_is_a_model_in_both_worlds():
    numbers, present = Paired(3).planned()
    np.testing.assert_array_equal(numbers, [0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(present, [True, False] * 3)
    assert Paired(3).trials == 6


def test_coins_are_fair_and_depend_on_the_seed_alone():
    numbers, coins = OneModel(20_000, 3).planned()
    np.testing.assert_array_equal(numbers, np.arange(20_000))
    assert coins.mean() == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(20_000))
    np.testing.assert_array_equal(coins, OneModel(20_000, 3).planned()[1])
    assert np.any(coins != OneModel(20_000, 4).planned()[1])
    assert OneModel(20_000, 3).trials == 20_000


def test_coins_are_those_of_every_version():
    """A store is resumed with the coins that it was begun with."""
    assert np.packbits(OneModel(32, 3).planned()[1]).tolist() == [242, 27, 60, 205]


def test_qualities_of_many_models_are_their_mean_and_perplexities_their_geometric_one():
    assert Quality("accuracy").of_all([0.5, float("nan"), 1.0]) == 0.75
    assert Quality("perplexity").of_all([1.0, 100.0, float("nan")]) == pytest.approx(10.0)
    assert Quality("accuracy").of_all([float("nan")]) is Quality("perplexity").of_all([]) is None
    assert Quality("perplexity").lower_is_better
    assert not Quality("accuracy").lower_is_better
