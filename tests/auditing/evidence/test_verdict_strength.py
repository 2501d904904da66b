"""The strength of a verdict: no audit is consistent that would not have caught the fault."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate import attacks
from lastiterate.attacks.attack import LinearScores, Unknown
from lastiterate.auditing.evidence.claims import claim_of
from lastiterate.auditing.evidence.score_signal import Kind, share_of, signal_bound, spread_of
from lastiterate.auditing.evidence.verdict_strength import strength_of

RUN = li.DPSGD(50, 0.1, 1.0)


def trainer(noise, spread=0.0):
    """A trainer of RUN with this noise multiplier, whose score has some spread of its own."""

    def train(seed, canary):
        generator = np.random.default_rng([seed, canary])
        used = np.sum(generator.random(RUN.steps) < RUN.sample_rate) if canary else 0
        return float(used + np.sqrt(RUN.steps) * np.hypot(noise, spread) * generator.standard_normal())

    return train


def audit(train, models, **options):
    return li.audit(RUN, train, models=models, methods=["clopper-pearson"], **options)


@pytest.mark.parametrize("seed", range(3))
def test_a_few_models_of_a_training_with_half_the_noise_are_inconclusive(seed):
    result = audit(trainer(0.5), 24, seed=seed)
    assert result.verdict == "inconclusive"
    assert result.strength.chance < 0.1


def test_a_few_models_that_return_parameters_are_inconclusive():
    run, canary = li.DPSGD(8, 0.3, 1.0, optimizer=li.SGD(1.0)), np.ones(4) / 2.0

    def train(seed, canary_is_in):
        generator = np.random.default_rng([seed, canary_is_in])
        used = generator.binomial(8, 0.3) if canary_is_in else 0
        return -used * canary + np.sqrt(8.0) * generator.standard_normal(4)

    result = li.audit(run, train, attacks.Displacement(canary), models=12, methods=["clopper-pearson"])
    assert result.verdict == "inconclusive"


def test_enough_models_of_a_correct_training_are_consistent_and_say_what_they_would_have_caught():
    result = audit(trainer(1.0), 2500)
    assert result.verdict == "consistent"
    assert result.strength.chance >= 0.8
    assert result.strength.caught > 0.5
    assert "This audit would have caught noise below 0.5" in str(result)
    assert "if the noise of training moves the scores" in result.strength.words


def test_the_share_of_the_signal_and_the_spread_invert_the_expected_signal():
    from lastiterate.auditing.evidence.score_signal import expected_signal

    for run in (RUN, RUN.replace(neighbours="replace")):
        assert share_of(run, expected_signal(run, 0.6, 1.2), 1.2) == pytest.approx(0.6)
        assert spread_of(run, expected_signal(run, 1.0, 1.7)) == pytest.approx(1.7)


def test_the_signals_lower_bound_holds_as_often_as_stated():
    generator, covered = np.random.default_rng(0), 0
    for _ in range(2000):
        covered += signal_bound(generator.normal(1.0, 1.0, 60), generator.normal(size=60)) <= 1.0
    assert 0.93 < covered / 2000 < 0.97


def test_the_strength_of_known_scores_counts_the_spread_that_was_measured():
    generator = np.random.default_rng(0)
    used = generator.binomial(50, 0.1, 2000) / np.sqrt(50.0)
    claim = claim_of(RUN, 1e-5)
    options = {"delta": 1e-5, "confidence": 0.95, "threshold": "a-priori"}

    def chance(spread, expected):
        scores = used + spread * generator.normal(size=2000), spread * generator.normal(size=2000)
        return strength_of(claim, Kind.LAST_ITERATE, RUN, expected, scores, **options).chance

    assert chance(1.0, LinearScores()) > 0.9 > 0.5 > chance(1.5, LinearScores())
    assert chance(1.5, Unknown()) < 0.5
