"""The distribution of S + N, against sums over all values of S."""

import numpy as np
import pytest
from scipy.stats import norm

from lastiterate import DPSGD, SGD
from lastiterate.privacy.mixtures.distributions import density, probability_below
from lastiterate.privacy.mixtures.kernels import small_support
from lastiterate.privacy.mixtures.law import law_of

RUNS = [
    DPSGD(20, 0.1, 0.5),
    DPSGD(8, 0.5, 0.2),
    DPSGD(5, [0.1, 0.2, 0.3, 1.0, 0.5], 1.0, weights=[1, -2, 3, 4, -5]),
    DPSGD(6, 0.25, 1.0, sampling="shuffled", optimizer=SGD([1, 2, 3, 4, 5, 6])),
    DPSGD(3, 1.0, 1.0, sampling="full"),
]


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_density_and_probability_are_the_sums_over_all_values(run):
    law = law_of(run)
    support = small_support(law)
    y = np.linspace(law.low - 6 * law.noise, law.high + 6 * law.noise, 101)
    away, mass = (y[:, None] - support.points) / law.noise, np.exp(support.log_mass)
    assert density(law, y) == pytest.approx(norm.pdf(away) @ mass / law.noise, abs=1e-12)
    assert probability_below(law, y) == pytest.approx(norm.cdf(away) @ mass, abs=1e-12)


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_a_scaled_law_is_that_of_the_scaled_sum(run):
    law = law_of(run)
    y = np.linspace(-4.0, 4.0, 11)
    assert probability_below(law.scaled(2.0, 2.0 * law.noise), 2.0 * y) == pytest.approx(
        probability_below(law, y), abs=1e-12
    )
    assert density(law.scaled(-1.0, law.noise), -y) == pytest.approx(density(law, y), abs=1e-12)
