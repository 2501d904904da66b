"""``power`` predicts how often audits refute: 12 settings, each against simulated audits with a fixed seed."""

import math

import numpy as np
import pytest

import lastiterate as li
from lastiterate.attacks.attack import LikelihoodRatio, LinearScores, Unknown
from lastiterate.attacks.released_iterates import sample_likelihood_ratios, sample_released_scores
from lastiterate.auditing.design import OneModel, Paired
from lastiterate.auditing.evidence.estimates import Estimates, Question
from lastiterate.auditing.evidence.score_signal import kind_of
from lastiterate.auditing.evidence.verdict import deciding_tests
from lastiterate.privacy.mixtures.law import law_of

DENSE, SPARSE = li.DPSGD(50, 0.2, 1.0), li.DPSGD(100, 0.1, 1.2)
FULL, GAUSSIAN = li.DPSGD(40, 1.0, 6.0, sampling="full"), li.DPSGD(1, 1.0, 2.0, sampling="full")
FEW = li.DPSGD(8, 0.3, 1.2)
RELEASED = li.DPSGD(20, 0.3, 1.0, releases=2)

# run, models, noise of the training in units of the declared, signal, options of power
SETTINGS = [
    (DENSE, 100, 0.5, 1.0, {}),
    (SPARSE, 60, 0.5, 1.0, {"confidence": 0.8}),
    (FULL, 300, 0.5, 1.0, {"threshold": 1.5}),
    (DENSE, 300, 0.5, 1.0, {"scores": "own"}),
    (DENSE, 120, 0.4, 0.9, {"threshold": "split"}),
    (FULL, 40, 0.3, 1.0, {"threshold": "split", "claim_epsilon": 4.0}),
    (DENSE, 120, 0.5, 1.0, {"threshold": "corrected"}),
    (DENSE, 40, 0.4, 1.0, {"validity": "anytime"}),
    (FEW, 700, 0.6, 1.0, {"scores": "all-iterates"}),
    (RELEASED, 200, 0.6, 1.0, {}),
    (GAUSSIAN, 250, 0.4, 1.0, {"one_run": True}),
    (GAUSSIAN, 1000, 0.3, 1.0, {"one_run": True, "threshold": 0.25}),
]


def scores_of(run, models, noise, signal, options, generator):
    if options.get("scores") == "all-iterates":
        drawn = sample_likelihood_ratios(run, np.arange(2 * models) % 2 == 0, generator, signal, noise)
        return drawn[::2], drawn[1::2]
    if run.release_count > 1:
        drawn = sample_released_scores(run, np.arange(2 * models) % 2 == 0, generator, signal, noise)
        return drawn[::2], drawn[1::2]
    law = law_of(run)
    present = generator.random(models) < 0.5 if options.get("one_run") else np.arange(2 * models) % 2 == 0
    scores = signal / law.noise * law.sample(present.size, generator) * present
    scores += noise * generator.standard_normal(present.size)
    return scores[present], scores[~present]


def share_refuted(run, models, noise, signal, options, audits, seed=1):
    asked = {name: value for name, value in options.items() if name not in ("scores", "one_run")}
    question, generator = Question(**asked), np.random.default_rng(seed)
    expected = LikelihoodRatio(run.release_count > 1) if run.release_count > 1 else LinearScores(signal)
    expected = {"own": Unknown(), "all-iterates": LikelihoodRatio()}.get(options.get("scores"), expected)
    design = OneModel(models, 0) if options.get("one_run") else Paired(models)
    claim, kind, refuted = question.claim(run), kind_of(design, expected), 0
    for _ in range(audits):
        scores = scores_of(run, models, noise, signal, options, generator)
        bound = Estimates(run, expected, *scores, question, models).deciding(claim)
        martingale = bound.martingale(claim, kind) if question.validity == "anytime" else None
        by_martingale = martingale is not None and martingale.refuted_after() is not None
        tests = deciding_tests(claim, kind, question.confidence, martingale)
        refuted += by_martingale or any(test.refutes(bound(test.method, test.confidence)) for test in tests)
    return refuted / audits


@pytest.mark.slow
@pytest.mark.parametrize(("run", "models", "noise", "signal", "options"), SETTINGS)
def test_power_agrees_with_simulated_audits(run, models, noise, signal, options):
    audits = 40
    leaks = float(run.noise_multiplier) * noise
    free = ["one-run" if options.get("one_run") else "clopper-pearson"]
    chance = li.power(run, models, signal=signal, leaks_noise=leaks, methods=free, **options).chance
    seen = share_refuted(run, models, noise, signal, options, audits)
    assert abs(seen - chance) <= 3.0 * math.sqrt(max(chance * (1.0 - chance), 1.0 / audits) / audits)
