"""Families: everything known but the noise."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import norm

import lastiterate as li
from lastiterate.auditing.evidence.family import family_of

RUN = li.DPSGD(steps=100, sample_rate=0.1, noise_multiplier=2.0)


@given(st.floats(1e-5, 0.9), st.floats(1e-5, 0.9))
def test_gdp_is_the_gaussian_of_that_mu(fpr, fnr):
    mu = norm.isf(fpr) - norm.ppf(fnr)
    noise = family_of("gdp", None).noise_multiplier(fpr, fnr)
    assert noise == (math.inf if mu <= 0.0 else pytest.approx(1.0 / mu, rel=1e-6 if mu > 1e-3 else 1e-2))


@given(st.floats(0.05, 20.0), st.floats(1e-6, 0.99))
def test_last_iterate_family_finds_the_noise_again(noise, fpr):
    fnr = li.last_iterate(RUN.replace(noise_multiplier=noise)).fnr(fpr)
    assume(1e-4 < fnr < 0.99 * (1.0 - fpr))
    assert family_of("last-iterate", RUN).noise_multiplier(fpr, fnr) == pytest.approx(noise, rel=1e-6)


@pytest.mark.parametrize("noise", [0.6, 1.5, 8.0])
def test_composition_family_finds_the_noise_again(noise):
    fnr = li.composition(RUN.replace(noise_multiplier=noise)).fnr(0.05)
    assert family_of("composition", RUN).noise_multiplier(0.05, fnr) == pytest.approx(noise, rel=1e-5)


def test_momentum_and_shuffled_batches_have_their_own_family():
    scores_in, scores_out = np.random.default_rng(0).normal([[1.5], [0.0]], 1.0, (2, 300))
    heavy = RUN.replace(optimizer=li.SGD(learning_rate=0.1, momentum=0.9))
    shuffled = RUN.replace(sampling="shuffled")
    gaussian = li.estimate(scores_in, scores_out, method="gdp").epsilon
    assert li.estimate(scores_in, scores_out, method="last-iterate", run=heavy).epsilon > gaussian
    assert li.estimate(scores_in, scores_out, method="last-iterate", run=shuffled).epsilon == pytest.approx(gaussian)
    with pytest.raises(ValueError, match="'balls-in-bins' for composition, got 'shuffled'"):
        li.estimate([0.0], [0.0], method="composition", run=shuffled)
