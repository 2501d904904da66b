"""Verdicts: claims are refuted by what scores show, and by nothing else."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate import attacks
from lastiterate.auditing.report import Question, read
from lastiterate.auditing.verdict import claim_of

RUN = li.DPSGD(50, 0.2, 1.0, optimizer=li.SGD(0.1))


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
