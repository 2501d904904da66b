"""Designs: which trials there are."""

import numpy as np
import pytest

from lastiterate.auditing.design import OneModel, Quality


def test_coins_are_fair_and_depend_on_the_seed_alone():
    numbers, coins = OneModel(20_000, 3).planned()
    np.testing.assert_array_equal(numbers, np.arange(20_000))
    assert coins.mean() == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(20_000))
    np.testing.assert_array_equal(coins, OneModel(20_000, 3).planned()[1])
    assert np.any(coins != OneModel(20_000, 4).planned()[1])
    assert OneModel(20_000, 3).trials == 20_000


def test_each_canary_has_a_coin_of_its_own_in_every_audit():
    """Over 4,000 seeds: each coin is fair, no two canaries share one, nor do an audit and the next."""
    canaries, seeds = 16, 4000
    coins = np.array([OneModel(canaries, seed).planned()[1] for seed in range(seeds)], float) - 0.5
    most = 4.5 / np.sqrt(seeds)  # standard deviations, for 512 comparisons
    assert np.abs(2.0 * coins.mean(axis=0)).max() < most
    between_canaries, between_seeds = 4.0 * coins.T @ coins / seeds, 4.0 * coins[1:].T @ coins[:-1] / seeds
    np.testing.assert_array_equal(np.diag(between_canaries), 1.0)
    assert np.abs(between_canaries - np.eye(canaries)).max() < most
    assert np.abs(between_seeds).max() < most
    ins = (coins > 0).sum(axis=1)
    assert ins.var() == pytest.approx(canaries / 4, rel=0.1)  # of binomial numbers: neither balanced nor tied


def test_coins_are_those_of_every_version():
    """A store is resumed with the coins that it was begun with."""
    assert np.packbits(OneModel(32, 3).planned()[1]).tolist() == [242, 27, 60, 205]


def test_qualities_of_many_models_are_their_mean_and_perplexities_their_geometric_one():
    assert Quality("accuracy").of_all([0.5, float("nan"), 1.0]) == 0.75
    assert Quality("perplexity").of_all([1.0, 100.0, float("nan")]) == pytest.approx(10.0)
    assert Quality("accuracy").of_all([float("nan")]) is Quality("perplexity").of_all([]) is None
    assert Quality("perplexity").lower_is_better
    assert not Quality("accuracy").lower_is_better
