"""Verdicts: claims are refuted by what scores show, and by nothing else."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate import attacks
from lastiterate.attacks.attack import LikelihoodRatio, LinearScores, Unknown
from lastiterate.auditing.design import Paired
from lastiterate.auditing.evidence.claims import claim_of
from lastiterate.auditing.evidence.estimates import Estimates, Question
from lastiterate.auditing.evidence.score_signal import Kind, expected_signal, failure_of, kind_of, signal_of
from lastiterate.auditing.evidence.threshold import OTHER_WAY
from lastiterate.auditing.evidence.verdict import judge_scores, verdict_on
from lastiterate.auditing.load_evidence import read

RUN = li.DPSGD(50, 0.2, 1.0, optimizer=li.SGD(0.1))
LAST, ONE = Kind.LAST_ITERATE, Kind.ONE_MODEL


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("verdict") / "x.sqlite"
    li.audit(RUN, None, attacks.Adversarial(), models=5000, seed=1, store=path)
    return path


def verdict(store, **question):
    return read(store, Question(**question)).verdict


def test_true_claims_are_consistent(store):
    assert verdict(store) == "consistent"
    assert verdict(store, claim_noise=1.0, confidence=0.999) == "consistent"
    assert verdict(store, claim_noise=0.5) == "consistent"
    assert verdict(store, claim_epsilon=li.composition(RUN).epsilon(1e-5) + 0.01) == "consistent"


def test_claims_of_more_privacy_than_there_is_are_violations(store):
    assert verdict(store, claim_noise=2.0, confidence=0.999) == "violation"
    assert verdict(store, claim_epsilon=1.0, confidence=0.999) == "violation"


def test_between_heuristic_and_guarantee_lies_above_heuristic(store):
    result = read(store)
    found = result.empirical["last-iterate"]
    noise = next(
        each
        for each in np.linspace(1.0, 2.0, 101)
        if li.last_iterate(RUN.replace(noise_multiplier=each)).epsilon(1e-5) < found
    )
    assert li.composition(RUN.replace(noise_multiplier=noise)).epsilon(1e-5) > found
    assert verdict(store, claim_noise=noise) == "above heuristic"


def test_shuffled_runs_are_judged_by_the_bound_that_holds():
    run = li.DPSGD(20, 0.1, 1.0, sampling="shuffled")
    claim = claim_of(run, 1e-5)
    assert claim.guarantee == li.no_amplification(run).epsilon(1e-5)


NOTHING = Unknown()


def judged(scores_in, scores_out, run=RUN, expected=NOTHING, **question):
    """As a report would judge these scores."""
    asked = Question(**question)
    estimates = Estimates(run, expected, np.asarray(scores_in, float), np.asarray(scores_out, float), asked)
    return verdict_on(asked.claim(run), kind_of(Paired(len(scores_in)), expected), estimates)


def normal(seed, shift, size):
    return np.random.default_rng(seed).normal(shift, 1.0, size)


def test_shuffled_runs_are_refuted_by_error_rates_that_no_amplification_forbids():
    run = li.DPSGD(20, 0.1, 1.0, sampling="shuffled")
    verdict, reason, _ = judged(normal(0, 9.0, 200), normal(1, 0.0, 200), run)
    assert verdict == "violation"
    assert "error rates of at most" in reason
    assert judged(normal(0, 0.4, 200), normal(1, 0.0, 200), run)[0] == "inconclusive"


def test_too_few_scores_are_inconclusive_and_say_the_chance_and_how_many_it_takes():
    verdict, reason, strength = judge_scores(
        normal(0, 0.6, 100), normal(1, 0.0, 100), claim_of(None, 1e-5, 3.0), LAST, 1e-5, 0.95, 1.0, None
    )
    assert verdict == "inconclusive"
    assert "refutes a training with 2 times the claimed epsilon with probability" in reason
    assert "models per world would" in reason
    assert strength.chance < 0.8


@pytest.mark.parametrize("expected", [LinearScores(), Unknown()])
def test_a_tenth_of_the_noise_and_scores_of_the_wrong_sign_are_not_consistent(expected):
    """What the attack knows of its scores decides: a given direction is inconclusive, a chosen one finds the leak."""
    generator = np.random.default_rng(0)
    used = generator.binomial(50, 0.2, 400) / np.sqrt(50)
    scores = -(used + 0.1 * generator.normal(size=400)), -0.1 * generator.normal(size=400)
    assert signal_of(*scores) < -2.0
    verdict, reason, _ = judged(*scores, expected=expected)
    assert verdict == ("inconclusive" if expected == LinearScores() else "violation")
    if expected == LinearScores():
        assert reason == OTHER_WAY
        assert judged(*scores, expected=expected, threshold="split")[0] == "violation"


def test_an_attack_without_its_signal_is_inconclusive_where_one_was_expected():
    noise = normal(0, 0.0, 3000), normal(1, 0.0, 3000)
    verdict, reason, _ = judged(*noise, expected=LinearScores())
    assert verdict == "inconclusive"
    assert "The attack failed" in reason
    assert f"{expected_signal(RUN):.3g} was expected" in reason
    assert judged(*noise)[0] == "inconclusive"  # nothing is expected of a user's scores, and nothing is seen
    assert judged(*noise, expected=LinearScores(signal=0.02))[0] == "inconclusive"
    ratios = judged(*noise, expected=LikelihoodRatio(), run=li.DPSGD(8, 0.3, 1.2))
    assert (ratios[0], "The attack failed" in ratios[1]) == ("inconclusive", True)
    few = normal(0, 0.0, 100), normal(1, 0.0, 100)
    assert judged(*few, expected=LinearScores())[0] == "inconclusive"


def test_the_signals_bound_is_that_of_simulated_audits():
    """An attack with a tenth of the signal is said to have failed in one audit of a hundred."""
    run, generator = li.DPSGD(1, 1.0, 0.5), np.random.default_rng(0)
    failed = 0
    for _ in range(3000):
        scores = generator.normal(0.2, 1.0, 300), generator.normal(size=200)
        failed += failure_of(*scores, expected_signal(run)) is not None
    assert expected_signal(run) == pytest.approx(2.0)
    assert 0.004 < failed / 3000 < 0.018


def test_noise_refutes_a_small_claim_no_more_often_than_stated_though_thresholds_are_shown_uncorrected():
    claim = claim_of(None, 1e-5, 0.01)
    audits = [(normal(2 * seed, 0.0, 1000), normal(2 * seed + 1, 0.0, 1000)) for seed in range(60)]
    verdicts = [judge_scores(*audit, claim, LAST, 1e-5, 0.8, "uncorrected", None)[0] for audit in audits]
    assert verdicts.count("violation") <= 3
    uncorrected = [li.estimate(*audit, confidence=0.8, threshold="uncorrected").epsilon for audit in audits]
    assert np.mean(np.array(uncorrected) > 0.01) > 0.3
