"""One run and the families of its run: claims about the noise, from one training."""

import math
from functools import cache

import numpy as np
import pytest
from scipy.special import ndtr

import lastiterate as li
from lastiterate.attacks.attack import LinearScores
from lastiterate.auditing.evidence.estimates import Estimates, Question
from lastiterate.auditing.evidence.one_run.allowed_guesses import least_p_value, lines_of, nodes_of, slack
from lastiterate.auditing.evidence.one_run.one_run_power import allowed_by, best_guesses
from lastiterate.auditing.evidence.score_signal import Kind
from lastiterate.auditing.evidence.verdict import verdict_on
from lastiterate.labels import METHODS
from lastiterate.privacy.mixtures.law import law_of

AUDITS = 1000
SPARSE, DENSE = li.DPSGD(100, 0.1, 0.94), li.DPSGD(4, 0.5, 0.8)
SHUFFLED = li.DPSGD(20, 0.1, 1.2, sampling="shuffled")


def scores_of(run, canaries, generator, noise=1.0):
    """Coins, and scores of canaries that each have a last iterate of their own, as the linear analysis has it."""
    is_in = generator.random(canaries) < 0.5
    law, moved = law_of(run), np.full(canaries, law_of(run).constant)
    for weight, rate, count in zip(law.weights, law.rates, law.counts, strict=True):
        moved += weight * generator.binomial(int(count), rate, canaries)
    for values, chances in law.blocks:
        moved += generator.choice(values, canaries, p=np.asarray(chances) / np.sum(chances))
    return is_in, moved / law.noise * is_in + noise * generator.normal(size=canaries)


def right_guesses(is_in, scores, guesses):
    order = np.argsort(scores)
    return int(is_in[order[is_in.size - (guesses - guesses // 2) :]].sum() + (~is_in[order[: guesses // 2]]).sum())


@cache
def counts(run, canaries, guesses, noise=1.0, audits=AUDITS):
    """How many guesses are right in many audits."""
    generator = np.random.default_rng(5)
    return np.array([right_guesses(*scores_of(run, canaries, generator, noise), guesses) for _ in range(audits)])


def allowed_by_family(run, method):
    curve = METHODS[method].family.curve(run)
    return lines_of(curve, nodes_of(curve.analysis))


def share_refuted(allowed, right, canaries, guesses, error):
    refuted = {r: slack(allowed, canaries, guesses, int(r), error) < 0.0 for r in np.unique(right)}
    return float(np.mean([refuted[r] for r in right]))


@pytest.mark.parametrize("run", [SPARSE, DENSE, SHUFFLED], ids=["sparse", "dense", "shuffled"])
@pytest.mark.parametrize("guesses", [20, 60, 200])
def test_a_run_that_is_as_claimed_is_refuted_no_more_often_than_stated(run, guesses):
    """At the boundary: the linear analysis is exact for these scores, so that its own curve has nothing to spare."""
    right = counts(run, 200, guesses)
    for error in (0.05, 0.3):
        allowed = error + 3.0 * math.sqrt(error * (1.0 - error) / AUDITS)
        assert share_refuted(allowed_by(run), right, 200, guesses, error) <= allowed
        by_family = allowed_by_family(run, "one-run-last-iterate")
        assert share_refuted(by_family, right, 200, guesses, error) <= allowed


def test_the_guesses_of_a_mechanism_that_tells_everything_seldom_are_as_it_allows():
    """(0, 0.1)-DP: with probability 0.1 all coins are revealed. A binomial bound would be refuted by that."""

    def a_tenth(of_right):
        return max(of_right - 0.1, 0.0)

    for canaries in (20, 100, 1000):
        assert 0.1 <= ndtr(least_p_value(a_tenth, canaries, [(canaries, canaries)])[0]) < 0.3


@pytest.mark.parametrize("method", ["one-run-last-iterate", "one-run-composition"])
def test_the_estimate_of_a_family_is_where_its_curve_begins_to_refute(method):
    is_in, scores = scores_of(SPARSE, 600, np.random.default_rng(2))
    found = li.estimate(scores[is_in], scores[~is_in], method=method, threshold="a-priori", run=SPARSE)
    guesses = best_guesses(SPARSE, 600)
    right = right_guesses(is_in, scores, guesses)
    assert (found.guesses, found.guessed - found.false_positives - found.false_negatives) == (guesses, right)
    assert 0.5 < found.epsilon < li.last_iterate(SPARSE).epsilon(1e-5)
    for factor, is_refuted in ((1.001, True), (0.995, False)):
        claim = SPARSE.replace(noise_multiplier=factor * found.noise_multiplier)
        assert (slack(allowed_by_family(claim, method), 600, guesses, right, 0.05) < 0.0) == is_refuted


def judged(run, canaries, noise=1.0, seed=0, **question):
    is_in, scores = scores_of(run, canaries, np.random.default_rng(seed), noise)
    asked = Question(**question)
    estimates = Estimates(run, LinearScores(), scores[is_in], scores[~is_in], asked)
    return verdict_on(asked.claim(run), Kind.ONE_MODEL, estimates)


@pytest.mark.parametrize("run", [SPARSE, SHUFFLED], ids=["sparse", "shuffled"])
def test_one_training_with_too_little_noise_refutes_a_claim_about_the_noise(run):
    verdict, reason, _ = judged(run, 700, noise=0.1)
    assert verdict == "violation", reason
    assert "share the error" in reason
    assert ("one run, composition family finds" if run is SPARSE else "are fewer than the claim allows") in reason


def test_one_training_as_described_is_not_refuted_and_what_is_too_small_could_not_tell():
    assert "violation" not in [judged(SPARSE, 1500, seed=seed)[0] for seed in range(5)]
    verdict, reason, _ = judged(SPARSE, 60)
    assert verdict == "inconclusive"
    assert "lacks power" in reason or "no signal" in reason
