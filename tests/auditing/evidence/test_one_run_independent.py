"""Canaries that do not interact, and what becomes of the bound where they do."""

import math

import numpy as np
import pytest

import lastiterate as li

METHOD = "one-run-independent"
AUDITS = 400


def share_above(mechanism, truth, canaries=200, audits=AUDITS, **options):
    generator = np.random.default_rng(8)
    above = 0
    for _ in range(audits):
        while not 0 < (is_in := generator.random(canaries) < 0.5).sum() < canaries:
            pass
        scores = mechanism(generator, is_in)
        found = li.estimate(scores[is_in], scores[~is_in], **{"method": METHOD, "threshold": 0.5} | options)
        above += found.epsilon > truth + 1e-9
    return above / audits


def allowed(error):
    return error + 3.0 * math.sqrt(error * (1.0 - error) / AUDITS)


def responses(keep):
    """Randomised response, in which canary j says the truth with its own probability."""

    def mechanism(generator, is_in):
        return (is_in ^ (generator.random(is_in.size) > keep)).astype(float)

    return mechanism


def stubborn(generator, is_in):
    """Perfect privacy: half of the canaries always look as if they were in, and half as if they were out."""
    return (np.arange(is_in.size) % 2).astype(float)


def sometimes_all(generator, is_in):
    """(0, 0.1)-DP: all coins are revealed with probability 0.1, and nothing is otherwise."""
    return is_in.astype(float) if generator.random() < 0.1 else generator.random(is_in.size)


RATE = math.exp(1.5) / (1.0 + math.exp(1.5))


@pytest.mark.parametrize("confidence", [0.95, 0.6, 0.3])
@pytest.mark.parametrize(
    "mechanism",
    [responses(np.full(200, RATE)), responses(np.where(np.arange(200) % 4, RATE, 1.0 - RATE)), stubborn],
    ids=["alike", "not alike", "stubborn"],
)
def test_canaries_that_do_not_interact_are_bounded_as_stated_though_they_are_not_alike(mechanism, confidence):
    truth = 0.0 if mechanism is stubborn else 1.5
    assert share_above(mechanism, truth, confidence=confidence) <= allowed(1.0 - confidence)


def test_it_is_no_bound_where_canaries_interact_and_the_others_are():
    """In a tenth of audits of a (0, 0.1)-DP mechanism it finds more than 0, at a nominal error of a twentieth."""
    share = share_above(sometimes_all, 0.0, delta=0.1, canaries=60)
    assert share == pytest.approx(0.1, abs=0.04)
    assert share > allowed(0.05)
    assert share_above(sometimes_all, 0.0, delta=0.1, canaries=60, method="one-run") <= allowed(0.05)
    found = li.estimate([1.0], [0.0], method=METHOD, threshold=0.5)
    assert "that no canary changes the score of another (otherwise it is not a bound)" in str(found)
