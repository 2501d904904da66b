"""What an audit will show, before it begins: exact sums against simulated audits, with fixed seeds."""

import math

import numpy as np
import pytest

import lastiterate as li
from lastiterate.attacks.adversarial import sample_scores
from lastiterate.attacks.attack import LinearScores
from lastiterate.auditing.evidence.claims import claim_of
from lastiterate.auditing.evidence.error_rates import ErrorCounts, both
from lastiterate.auditing.evidence.forecast import Forecast
from lastiterate.auditing.evidence.score_signal import guarantee_of
from lastiterate.auditing.evidence.verdict_strength import chance_to_refute

RUN = li.DPSGD(100, 0.1, 0.94)
AUDITS = 200


def simulated(models, generator, spread):
    """Scores that spread more than the noise."""
    worlds = (sample_scores(RUN, np.full(models, here), generator) for here in (True, False))
    more = math.sqrt(spread**2 - 1.0)
    return tuple(scores + more * generator.standard_normal(models) for scores in worlds)


@pytest.mark.parametrize("validity", ["fixed", "anytime"])
@pytest.mark.parametrize("method", ["clopper-pearson", "gdp", "last-iterate"])
def test_so_many_audits_reach_the_detectable_epsilon_and_the_median(method, validity):
    forecast = Forecast(RUN, 128, expected=LinearScores(1.0, 1.2), validity=validity)
    rates = {chance: forecast.reached(method, chance) for chance in (0.8, 0.5)}
    generator, threshold = np.random.default_rng(1), forecast.threshold_for(method, 0.95)
    found = [
        li.estimate(*simulated(128, generator, 1.2), 1e-5, 0.95, method, threshold, RUN, validity).epsilon
        for _ in range(AUDITS)
    ]
    for chance, epsilon in rates.items():
        if epsilon > 0.0:  # whole numbers of errors: at least as many reach it, and fewer what is just above
            assert np.mean(np.array(found) >= epsilon - 1e-6) >= chance - 4 * math.sqrt(0.25 / AUDITS)
            assert np.mean(np.array(found) > epsilon + 1e-6) <= chance + 4 * math.sqrt(0.25 / AUDITS)


def test_joint_law_of_two_thresholds_has_both_binomials_as_margins():
    fewer, more = ErrorCounts.of(50, 0.1), ErrorCounts.of(50, 0.3)
    joint = both(fewer, more)
    np.testing.assert_allclose(joint.sum(1), fewer.masses, atol=1e-11)
    np.testing.assert_allclose(joint.sum(0), more.masses, atol=1e-11)
    assert fewer.masses.sum() == pytest.approx(1.0, abs=1e-11)
    np.testing.assert_allclose(np.cumsum(fewer.masses), fewer.at_most[1:], atol=1e-11)


@pytest.mark.parametrize("run", [RUN, li.DPSGD(4, 0.5, 0.2), RUN.replace(sampling="shuffled")])
def test_between_its_nodes_a_curve_is_as_exact_as_at_them(run, monkeypatch):
    """Detectable epsilons to 1e-7, and chances to 1e-6: whole numbers of errors leave little room."""
    forecast = Forecast(run, 4000)
    interpolated = [forecast.reached(method) for method in ("gdp", "last-iterate")]
    claim, sizes = claim_of(run, 1e-5), ((40, 4.0), (300, 2.0), (300, 1.5))
    chances = [chance_to_refute(Forecast(run, models), claim, factor) for models, factor in sizes]
    monkeypatch.setattr("lastiterate.auditing.evidence.forecast._NODES", 10**9)
    monkeypatch.setattr(
        "lastiterate.auditing.evidence.verdict_strength.guaranteed_fnr",
        lambda run, fpr: guarantee_of(run)(run).fnr(fpr) - 1e-9,
    )
    assert interpolated == pytest.approx([forecast.reached(method) for method in ("gdp", "last-iterate")], abs=1e-7)
    exact = [chance_to_refute(Forecast(run, models), claim, factor) for models, factor in sizes]
    assert chances == pytest.approx(exact, abs=1e-3)
