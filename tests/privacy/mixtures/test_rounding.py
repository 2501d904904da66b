"""Little noise against irregular gaps between values of S: the bracket holds the truth; epsilon is its upper end."""

import math
from functools import reduce

import mpmath
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import log_ndtr, logsumexp

from lastiterate import DPSGD, last_iterate
from lastiterate.privacy.mixtures import mixture
from lastiterate.privacy.mixtures.fourier import Unreliable
from lastiterate.privacy.mixtures.kernels import FourierKernel, rounded, small_support
from lastiterate.privacy.mixtures.law import law_of

WIDTH = (
    1e-2  # of the bracket relative to epsilon, at most: weights of some hundred spacings and more are rounded by one
)


class Enumerated:
    """S + N against N over all values of S, S >= 0, in logarithms; the best test is {>= y}."""

    def __init__(self, terms, noise):
        """``terms`` are the (values, probabilities) of independent summands."""
        points = reduce(lambda sums, term: np.add.outer(sums, term[0]).ravel(), terms, np.zeros(1))
        log_mass = reduce(lambda logs, term: np.add.outer(logs, np.log(term[1])).ravel(), terms, np.zeros(1))
        self.points, self.log_mass, self.noise = points, log_mass, noise

    def loss(self, y):
        return logsumexp(self.log_mass + self.points * (2 * y - self.points) / (2 * self.noise**2))

    def log_delta_at(self, y):
        log_p = logsumexp(self.log_mass + log_ndtr((self.points - y) / self.noise))
        return log_p + math.log1p(-math.exp(min(self.loss(y) + log_ndtr(-y / self.noise) - log_p, -1e-16)))

    def threshold(self, function, goal):
        return brentq(lambda y: function(y) - goal, 0.0, self.points.max() + 45 * self.noise, xtol=1e-15, rtol=1e-14)

    def epsilon(self, delta):
        return self.loss(self.threshold(self.log_delta_at, math.log(delta)))

    def delta(self, epsilon):
        return math.exp(self.log_delta_at(self.threshold(self.loss, epsilon)))

    def fnr(self, y):
        return math.exp(logsumexp(self.log_mass + log_ndtr((y - self.points) / self.noise)))


NEARLY_ONE = 1.0 + 1e-3 * np.arange(14)
TWO_KINDS = np.concatenate((1.0 + 1e-3 * np.arange(7), 0.3 + 1e-3 * np.arange(7)))
SPARSE = 0.4 ** np.arange(14)

POISSON = [
    DPSGD(14, 0.01, 0.001, weights=NEARLY_ONE),
    DPSGD(14, 0.1, 0.01, weights=NEARLY_ONE),
    DPSGD(14, 0.1, 0.003, weights=TWO_KINDS),
    DPSGD(14, 0.01, 0.001, weights=SPARSE),
    DPSGD(14, 0.5, 0.001, weights=SPARSE),
    DPSGD(14, np.linspace(0.05, 0.2, 14), np.linspace(0.01, 0.02, 14), weights=NEARLY_ONE),
]
SHUFFLED = DPSGD(40, 0.1, 0.003, sampling="shuffled", weights=np.tile(np.append(TWO_KINDS[:5], TWO_KINDS[-5:]), 4))
CERTAIN = DPSGD(15, [1.0] + [0.1] * 14, 0.003, weights=np.append(0.35, NEARLY_ONE))
RUNS = [*POISSON, SHUFFLED, CERTAIN]
IDS = ["nearly-one-rare", "nearly-one", "two-kinds", "sparse-rare", "sparse", "schedules", "shuffled", "certain"]
every_run = pytest.mark.parametrize("run", RUNS, ids=IDS)


def enumerated(run) -> Enumerated:
    weights, rates = run.weights, np.broadcast_to(run.sample_rate, (run.steps,))
    noise = float(np.linalg.norm(weights * run.noise_multiplier))
    if run.sampling == "shuffled":
        return Enumerated([(epoch, np.full(10, 0.1)) for epoch in weights.reshape(-1, 10)], noise)
    return Enumerated(
        [([w], [1.0]) if q == 1.0 else ([0.0, w], [1.0 - q, q]) for w, q in zip(weights, rates, strict=True)], noise
    )


DELTA = 0.05


def is_unreliable(function, run, argument) -> bool:
    """Whether neither kernel can answer."""
    law = law_of(run)
    try:
        with np.errstate(all="ignore"):
            function(FourierKernel(law), np.float64(argument))
    except Unreliable:
        return small_support(law) is None
    return False


@every_run
def test_the_bracket_holds_what_enumeration_gives(run):
    assert is_unreliable(mixture.epsilon, run, math.log(DELTA))
    lower, upper = last_iterate(run).bracket(DELTA)
    assert lower <= enumerated(run).epsilon(DELTA) <= upper
    assert 0.0 < upper - lower < WIDTH * upper


@every_run
@pytest.mark.parametrize("delta", [0.03, 2e-5, 4e-9, 5e-14])
def test_other_deltas_are_held_too_by_whichever_way_they_take(run, delta):
    curve, truth = last_iterate(run), enumerated(run).epsilon(delta)
    lower, upper = curve.bracket(delta)
    assert lower <= truth <= upper
    assert curve.epsilon(delta) >= truth * (1 - 1e-9)
    assert upper - lower < WIDTH * upper


@every_run
def test_delta_errs_upwards_and_the_tradeoff_downwards(run):
    curve, truth = last_iterate(run), enumerated(run)
    for y in truth.noise * np.array([5.0, 20.0]):
        epsilon = max(truth.loss(y), 0.0)
        assert curve.delta(epsilon) >= truth.delta(epsilon) * (1 - 1e-9)
        assert curve.fnr(math.exp(log_ndtr(-y / truth.noise))) <= truth.fnr(y) * (1 + 1e-9)


@pytest.mark.parametrize("run", [POISSON[1], SHUFFLED, CERTAIN], ids=["poisson", "shuffled", "certain"])
def test_rounding_moves_every_value_by_less_than_a_spacing_a_term(run):
    law = law_of(run)
    down, up = rounded(law)
    spacing = max(1e-3 * law.noise, law.high / 50_000)
    terms = int(law.counts.sum()) + len(law.blocks) + (law.constant > 0.0)
    assert 0.0 <= law.high - down.high < terms * spacing + 1e-9
    assert 0.0 <= up.high - law.high < terms * spacing + 1e-9
    assert down.mean <= law.mean <= up.mean
    for kernel in (down, up):
        masses = np.exp(kernel.support.log_mass)
        assert masses.sum() == pytest.approx(1.0, abs=1e-12)
        assert masses @ kernel.support.points == pytest.approx(float(kernel.mean), rel=1e-10)
        assert np.all(np.diff(kernel.support.points) > 0.0)


@pytest.mark.parametrize(
    ("rate", "sigma", "weights"),
    [(0.1, 0.05, [1.0, 1.0]), (0.1, 0.05, [1.0, 0.8]), (0.01, 0.03, [1.0, 0.4]), (0.1, 0.05, [1.0, -0.8])],
)
def test_where_delta_is_the_chance_of_an_isolated_value_the_bracket_still_holds_the_truth(rate, sigma, weights):
    """Between two values of S that noise does not blur, delta hardly depends on epsilon; epsilon errs upwards."""
    run, delta = DPSGD(2, rate, sigma, weights=weights), 0.01
    lower, upper = last_iterate(run).bracket(delta)
    with mpmath.workdps(60):
        noise = mpmath.mpf(sigma) * mpmath.sqrt(sum(mpmath.mpf(w) ** 2 for w in weights))
        q = mpmath.mpf(rate)
        first, second = (mpmath.mpf(w) for w in weights)
        values = [(0, (1 - q) ** 2), (first, q * (1 - q)), (second, q * (1 - q)), (first + second, q * q)]

        def loss(y):
            return mpmath.log(sum(m * mpmath.exp(s * (2 * y - s) / (2 * noise**2)) for s, m in values))

        def threshold(epsilon, sign):
            """Where the loss is epsilon, right or left of 0."""
            low, high = mpmath.mpf(0), mpmath.mpf(30)
            for _ in range(150):
                middle = (low + high) / 2
                low, high = (middle, high) if loss(sign * middle) < epsilon else (low, middle)
            return low

        def delta_at(epsilon):
            total = mpmath.mpf(0)
            for sign in (1, -1) if second < 0 else (1,):
                y = threshold(epsilon, sign)
                total += sum(m * mpmath.ncdf((sign * s - y) / noise) for s, m in values)
                total -= mpmath.exp(epsilon) * mpmath.ncdf(-y / noise)
            return total

        low, high = mpmath.mpf(0), mpmath.mpf(3000)
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if delta_at(middle) > mpmath.mpf(delta) else (low, middle)
        assert lower <= low <= upper
        assert low * (1 - 1e-9) <= last_iterate(run).epsilon(delta) <= upper
