"""Verdicts: claims are refuted by what scores show, and by nothing else."""

import io
import sys

import numpy as np
import pytest

import lastiterate as li
from lastiterate import attacks
from lastiterate.attacks.attack import LikelihoodRatio, LinearScores, Unknown
from lastiterate.auditing.design import Paired
from lastiterate.auditing.evidence.claims import claim_of, remark_on
from lastiterate.auditing.evidence.estimates import Estimates, Question
from lastiterate.auditing.evidence.score_signal import Kind, expected_signal, failure_of, kind_of, signal_of
from lastiterate.auditing.evidence.threshold import OTHER_WAY
from lastiterate.auditing.evidence.verdict import judge_scores, verdict_on
from lastiterate.auditing.load_evidence import read
from lastiterate.compare_analyses import Answer
from lastiterate.formatting import spell_up

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


def test_reason_names_claim_method_and_confidence(store):
    reason = read(store, Question(claim_noise=2.0)).reason
    assert "noise multiplier 2" in reason
    assert "95% confidence" in reason


def test_claims_are_checked():
    with pytest.raises(ValueError, match="claim_epsilon and claim_noise were both given: give one"):
        claim_of(RUN, 1e-5, 1.0, 1.0)
    with pytest.raises(ValueError, match="claim_epsilon must be greater than 0 and finite, got -1"):
        claim_of(RUN, 1e-5, -1)


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


def test_a_claim_that_no_number_of_models_can_refute_says_so():
    scores = normal(0, 5.0, 50), normal(1, 0.0, 50)
    _, reason, _ = judge_scores(*scores, claim_of(None, 1e-5, 30.0), LAST, 1e-5, 0.95, 2.5, None)
    assert "Even 65,536 models per world would not be enough." in reason


def test_equal_scores_of_one_run_are_why_it_cannot_tell():
    scores = np.ones(100), np.zeros(100)
    verdict, reason, _ = judge_scores(*scores, claim_of(None, 1e-5, 1.0), ONE, 1e-5, 0.95, "a-priori", None)
    assert verdict == "inconclusive"
    assert "Too many scores are equal" in reason
    assert judge_scores(*scores, claim_of(None, 1e-5, 1.0), ONE, 1e-5, 0.95, "corrected", None)[0] == "violation"


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


def test_equal_scores_tell_nothing_whatever_was_expected():
    assert judged([3.0] * 500, [3.0] * 500)[0] == "inconclusive"
    assert failure_of(np.full(3, np.inf), np.zeros(3), 1.0) is None


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


def test_inconclusive_comes_after_what_was_found_and_before_consistent():
    run = li.DPSGD(1, 1.0, 1.0, sampling="full")
    above = judged(normal(0, 1.9, 30), normal(1, 0.0, 30), run, claim_epsilon=300.0, threshold=0.9)
    assert above[0] == "inconclusive"  # no outcome could have refuted 300, and nothing exceeds its heuristic
    wrong_sign = judged(normal(0, -9.0, 30), normal(1, 0.0, 30), run, threshold=0.9)
    assert wrong_sign[:2] == ("inconclusive", OTHER_WAY)


def test_a_claim_below_what_the_run_itself_has_is_remarked():
    predictions = {name: Answer(getattr(li, name)(RUN).epsilon(1e-5)) for name in ("composition", "last_iterate")}
    guarantee, heuristic = predictions["composition"].value, predictions["last_iterate"].value
    between = remark_on(claim_of(RUN, 1e-5, 0.5 * (guarantee + heuristic)), RUN, predictions)
    assert "below the run's own guarantee" in between
    assert "heuristic" not in between
    assert f"below the heuristic's {spell_up(heuristic, 4)}" in remark_on(claim_of(RUN, 1e-5, 1.0), RUN, predictions)
    assert f"below the heuristic's {spell_up(heuristic, 4)}" in remark_on(
        claim_of(RUN, 1e-5, noise=3.0), RUN, predictions
    )
    for claim in (claim_of(RUN, 1e-5), claim_of(RUN, 1e-5, noise=1.0), claim_of(RUN, 1e-5, guarantee)):
        assert remark_on(claim, RUN, predictions) is None


SAID = []


def train(seed, canary):
    SAID.append(sys.stderr.getvalue())
    return float(canary)


def test_the_remark_comes_once_the_first_model_is_fit_and_in_the_report(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    result = li.audit(RUN, train, models=2, claim_epsilon=1.0, progress=False)
    assert SAID[0] == ""  # a trainer whose first model is refused gets one sentence, not two
    assert SAID[1].startswith("The claim (epsilon 1 at delta 1e-5) is below the run's own guarantee")
    assert SAID[1].count("\n") == 1
    assert SAID[1].strip() in result.caveats
    assert result.verdict == "inconclusive"
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert SAID[1].strip() not in li.audit(RUN, train, models=2, progress=False).caveats
    assert SAID[-1] == ""
