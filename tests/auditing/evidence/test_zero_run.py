"""Simulated models of known epsilon: members and non-members differ by features, or by more than the features say."""

import math

import numpy as np
import pytest
from scipy.special import expit

import lastiterate as li
from lastiterate.auditing.evidence import zero_run as module

RUNS = 40


def drawn(seed, rows=1500, epsilon=0.0, hidden=0.0, square=0.0, reveals=0.0):
    """Scores and features of members and others. Scores have a bit of each membership, flipped as epsilon allows."""
    generator = np.random.default_rng(seed)
    features, secret = generator.normal(size=(rows, 2)), generator.choice([-1.0, 1.0], rows)
    logits = features[:, 0] - 0.5 * features[:, 1] + hidden * secret + square * (features[:, 0] ** 2 - 1.0)
    present = generator.random(rows) < expit(logits)
    bit = present == (generator.random(rows) < expit(epsilon))
    shown = np.where(generator.random(rows) < reveals, 9.0 * (present - 0.5), 0.0)
    scores = 2.0 * features[:, 0] + 4.0 * bit + 2.0 * secret + shown + 0.1 * generator.normal(size=rows)
    return scores[present], scores[~present], features[present], features[~present]


def found(runs=RUNS, delta=1e-6, **world):
    return [li.zero_run(*drawn(seed, **world), delta, seed=seed) for seed in range(runs)]


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_the_bound_holds_if_features_explain_membership(epsilon):
    results = found(epsilon=epsilon)
    bounds = [math.log(each.explaining_odds) for each in results]  # refused ones as well
    assert sum(bound > epsilon + 1e-9 for bound in bounds) <= 6  # with 5% of 40, seven have probability 0.3%
    if epsilon:
        assert np.median(bounds) > epsilon / 6.0
    assert sum(each.epsilon is None for each in results) <= 6
    assert 0.4 < np.mean([each.calibration for each in results]) < 0.6


def test_leakage_is_claimed_without_features_where_there_is_none():
    results = found(epsilon=0.0)
    assert min(each.unadjusted for each in results) > 0.2
    assert sum((each.epsilon or 0.0) > 0.0 for each in results) <= 6


def test_with_many_examples_most_of_epsilon_is_found():
    assert 0.7 < li.zero_run(*drawn(0, 20_000, 1.0), delta=1e-6).epsilon < 1.0


def test_a_hidden_shift_breaks_the_bound_unless_it_is_within_the_odds():
    assert min(math.log(each.explaining_odds) for each in found(10, rows=4000, hidden=math.log(2.0))) > 0.2
    passed = [each for each in found(10, rows=4000, hidden=math.log(2.0)) if each.epsilon is not None]
    assert len(passed) >= 8  # neither the placebo nor the calibration can see it
    worlds = [drawn(seed, 4000, hidden=math.log(2.0)) for seed in range(10)]
    stated = [li.zero_run(*world, odds=4.0, seed=seed).epsilon for seed, world in enumerate(worlds)]
    assert all(not epsilon for epsilon in stated)


def test_odds_lower_the_bound_by_their_logarithm():
    one, other = (li.zero_run(*drawn(0, 4000, 2.0), odds=odds) for odds in (1.0, 1.5))
    assert one.epsilon - other.epsilon == pytest.approx(math.log(1.5), abs=1e-12)
    assert one.explaining_odds == other.explaining_odds == pytest.approx(math.exp(one.epsilon))


def test_a_mechanism_that_reveals_members_with_probability_delta_is_covered():
    results = found(delta=1e-3, reveals=1e-3, rows=4000)
    assert sum(each.explaining_odds > 1.0 for each in results) <= 6
    tight, loose = (li.zero_run(*drawn(0, 4000, 2.0), delta=delta) for delta in (1e-6, 1e-4))
    assert loose.explaining_odds < tight.explaining_odds


def test_equal_scores_tell_nothing_though_members_come_first():
    for seed in range(20):
        scores_in, scores_out, features_in, features_out = drawn(seed)
        result = li.zero_run(0.0 * scores_in, 0.0 * scores_out, features_in, features_out, seed=seed)
        assert result.explaining_odds < 1.1


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_the_tail_is_that_of_equal_coins_and_at_least_that_of_unequal_ones(spread):
    generator = np.random.default_rng(0)
    for _ in range(20):
        chosen, one = spread * generator.normal(size=(40, 2)), np.ones(40)
        right = int(generator.integers(28, 40))
        guessed = module._Guessed(chosen, one > 0.0, 0.5 * one, chosen, one, right, np.ones(2), np.zeros((2, 2)), 40)
        epsilon = guessed.bound(1e-4, 0.05)  # a fifth of the error is for coefficients, and 40 * delta / 2 for delta
        law = np.ones(1)
        for rate in expit(chosen @ np.ones(2) + epsilon):
            law = np.convolve(law, [1.0 - rate, rate])
        assert epsilon == 0.0 or law[right:].sum() == pytest.approx(0.038) or (spread and law[right:].sum() < 0.038)


def test_a_wrong_propensity_model_is_refused_and_a_right_one_is_not():
    scores_in, scores_out, features_in, features_out = drawn(0, 6000, square=0.7)
    refused = li.zero_run(scores_in, scores_out, features_in, features_out)
    assert (refused.epsilon, "calibration" in refused.refusal) == (None, True)
    features_in, features_out = (np.column_stack([each, each[:, 0] ** 2]) for each in (features_in, features_out))
    assert li.zero_run(scores_in, scores_out, features_in, features_out).epsilon == 0.0


def test_non_members_whose_scores_drift_are_refused():
    scores_in, scores_out, features_in, features_out = drawn(0, 4000, 2.0)
    drift = np.linspace(0.0, 6.0, scores_out.size)
    refused = li.zero_run(scores_in, scores_out + drift, features_in, features_out)
    assert (refused.epsilon, refused.placebo > 0.2, "placebo" in refused.refusal) == (None, True, True)
    explained = li.zero_run(scores_in, scores_out, features_in, features_out)
    assert (explained.placebo, explained.refusal) == (0.0, "")


def test_members_that_are_nothing_like_the_others_are_refused():
    scores_in, scores_out, features_in, features_out = drawn(0)
    refused = li.zero_run(scores_in, scores_out, features_in + 50.0, features_out)
    assert (refused.epsilon, "overlap" in refused.refusal) == (None, True)
    assert refused.explaining_odds < 1.1


def test_the_result_says_what_it_rests_on():
    result = li.zero_run(*drawn(0, 4000, 2.0), odds=1.2)
    assert "no test can confirm" in str(result)
    assert "within a factor of 1.2 of the modelled ones" in result.rests_on[1]
    assert str(li.zero_run(*drawn(0, 6000, square=0.7))).startswith("No bound: the propensity model")


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("scores_in", lambda world: [world[0][:5], world[1], world[2][:5], world[3]]),
        ("scores_out", lambda world: [world[0], world[1] + math.inf, *world[2:]]),
        ("scores_out", lambda world: [world[0], [[1.0], [1.0, 2.0]], *world[2:]]),
        ("features_in", lambda world: [world[0], world[1], world[2][:-1], world[3]]),
        ("features_out", lambda world: [*world[:3], world[3][:, :1]]),
        ("features_out", lambda world: [*world[:3], [["young"]] * len(world[3])]),
    ],
)
def test_bad_arguments_are_named(name, changed):
    with pytest.raises(ValueError, match=f"^{name} must "):
        li.zero_run(*changed(drawn(0)))
    with pytest.raises(ValueError, match=r"^odds must be at least 1 and finite, got 0\.5"):
        li.zero_run(*drawn(0), odds=0.5)
