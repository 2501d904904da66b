"""Correlated noise: variances by rational numbers, guarantees by trying all batches, jax-privacy's sensitivities."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

import lastiterate as li
from lastiterate.privacy.analyses import correlated as participations
from lastiterate.privacy.analyses.correlated import largest_norm
from lastiterate.privacy.mixtures.correlated_noise import filtered_noise, inverse
from lastiterate.privacy.mixtures.law import law_of

FILTER = (1.0, -0.5, -0.125)
DELTA = 1e-5
# Of the filter and of twelve steps; the inverses of the first three fall and are never negative.
FILTERS = {
    "falling": (1.0, -0.5, -0.125),
    "running sum": (1.0, -1.0),
    "scaled": (-2.0, 1.0),
    "alternating": (1.0, 0.9),
    "both signs": (1.0, -0.3, 0.2, -0.5),
    "rising": (1.0, 0.5, 0.3, 0.25),
    "all": tuple(0.7**k - 0.2 * k for k in range(12)),
}
coefficients = st.floats(-1.5, 1.5, allow_subnormal=False).filter(lambda value: value == 0.0 or abs(value) > 1e-9)
filters = st.tuples(st.floats(0.5, 2.0), st.lists(coefficients, max_size=6)).map(lambda pair: (pair[0], *pair[1]))


def gaussian_epsilon(mu: float, delta: float = DELTA) -> float:
    """Of the Gaussian mechanism (Balle and Wang 2018)."""

    def excess(epsilon: float) -> float:
        first, second = norm.cdf(mu / 2 - epsilon / mu), np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))
        return float(first - second) - delta

    return float(brentq(excess, 0.0, mu * mu / 2 + 10 * mu, xtol=1e-13))


def exact_variance(filter_, weights, sigmas):
    """sum_s sigma_s^2 (sum_(t >= s) w_t c_(t-s))^2, in rational numbers."""
    steps, c = len(weights), [Fraction(value) for value in filter_]
    w, sigma = ([Fraction(value) for value in each] for each in (weights, sigmas))
    total = Fraction(0)
    for s in range(steps):
        influence = sum((w[t] * c[t - s] for t in range(s, min(steps, s + len(c)))), Fraction(0))
        total += sigma[s] ** 2 * influence**2
    return total


def tried(filter_, steps, apart, epoch=None):
    """The largest sum of |C^T C| over pairs of steps in a pattern, by trying all patterns; and its root."""
    matrix = sum(np.diag(np.full(steps - j, float(c)), -j) for j, c in enumerate(filter_[:steps]))
    encoder = np.linalg.inv(matrix)
    gram = np.abs(encoder.T @ encoder)
    best = 0.0
    for bits in range(1, 2**steps):
        steps_in = [step for step in range(steps) if bits >> step & 1]
        if any(b - a < apart for a, b in itertools.pairwise(steps_in)):
            continue
        if epoch is not None and len({step // epoch for step in steps_in}) < len(steps_in):
            continue
        best = max(best, float(gram[np.ix_(steps_in, steps_in)].sum()))
    return math.sqrt(best)


@given(
    filters,
    st.lists(st.tuples(st.floats(-2.0, 2.0), st.floats(0.25, 2.0)), min_size=1, max_size=25).filter(
        lambda steps: abs(steps[-1][0]) > 1e-3
    ),
)
def test_the_noise_of_the_last_iterate_is_that_of_rational_numbers(filter_, steps):
    weights, sigmas = zip(*steps, strict=True)
    run = li.DPSGD(len(steps), 0.1, sigmas, weights=weights, noise_filter=filter_)
    exact = exact_variance(filter_, weights, sigmas)
    found = Fraction(filtered_noise(run, run.weights)) ** 2
    assert 0 <= float(1 - found / exact) < 1e-13 or abs(float(1 - found / exact)) < 1e-14


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("apart", [1, 2, 3, 5])
def test_the_guarantee_is_the_worst_of_all_batches_tried_one_by_one(name, apart):
    steps = 11
    run = li.DPSGD(steps, 0.2, 3.0, noise_filter=FILTERS[name], min_separation=apart)
    mu = tried(run.noise_filter, steps, apart) / 3.0
    assert li.composition(run).epsilon(DELTA) == pytest.approx(gaussian_epsilon(mu), rel=1e-9)
    assert li.no_amplification(run).epsilon(DELTA) == li.composition(run).epsilon(DELTA)
    assert li.composition(run).is_guarantee
    twice = run.replace(neighbours="replace", group_size=2)
    assert li.composition(twice).epsilon(DELTA) == pytest.approx(gaussian_epsilon(4.0 * mu), rel=1e-9)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("apart", [1, 2, 4])
def test_shuffled_batches_are_once_an_epoch(name, apart):
    run = li.DPSGD(10, 0.25, 2.0, "shuffled", noise_filter=FILTERS[name], min_separation=apart)
    mu = tried(run.noise_filter, 10, apart, 4) / 2.0
    assert li.composition(run).epsilon(DELTA) == pytest.approx(gaussian_epsilon(mu), rel=1e-9)
    assert li.composition(run.replace(sampling="fixed")).epsilon(DELTA) >= li.composition(run).epsilon(DELTA)


@given(filters, st.integers(2, 9), st.integers(1, 4), st.sampled_from([None, 3]))
def test_bounds_that_look_at_less_are_never_below_the_worst(filter_, steps, apart, epoch):
    apart = apart if epoch is None else min(apart, epoch)
    values, _ = inverse(np.array(filter_), steps)
    worst, falling = tried(filter_, steps, apart, epoch), participations._envelope(values)
    most = -(-steps // (apart if epoch is None else epoch))
    bounds = [participations._by_rows(values, apart, epoch), participations._evenly(falling, apart, most)]
    if epoch is not None:
        bounds.append(participations._one_each_epoch(falling, apart, epoch))
    assert min(bounds) >= worst * (1.0 - 1e-9)
    assert largest_norm(filter_, steps, apart, epoch) == pytest.approx(worst, rel=1e-9)


@pytest.mark.parametrize(("steps", "apart"), [(3000, 1), (3000, 50), (3000, 3000)])
def test_sensitivities_of_falling_filters_are_those_of_jax_privacy(steps, apart):
    jax, toeplitz = pytest.importorskip("jax"), pytest.importorskip("jax_privacy.matrix_factorization.toeplitz")

    with jax.enable_x64(True):
        strategy = toeplitz.optimal_max_error_strategy_coefs(steps)
        noising = np.asarray(toeplitz.optimal_max_error_noising_coefs(steps))
        theirs = math.sqrt(float(toeplitz.minsep_sensitivity_squared(strategy, apart)))
    ours = largest_norm(tuple(noising.tolist()), steps, apart, None)
    assert theirs * (1.0 - 1e-12) <= ours == pytest.approx(theirs, rel=1e-8)


def test_long_runs_that_are_not_tried_one_by_one_are_bounded_by_shorter_steps_of_proof():
    """Columns of a banded C that are far enough apart are orthogonal: then the number of participations is all."""
    bands = np.array([1.0, 0.1, 0.5])
    noising = tuple(inverse(bands, 600)[0].tolist())
    exact = math.sqrt(200 * float(bands @ bands))
    assert largest_norm(noising, 600, 3, None) == pytest.approx(exact, rel=1e-9)
    assert largest_norm(noising, 600, 3, 3) >= exact * (1 - 1e-9)


def test_poisson_sampling_with_a_separation_is_that_of_groups_that_take_turns():
    for steps, apart, rate in [(12, 4, 0.2), (10, 4, 0.2), (10, 4, 0.25), (3, 5, 0.1), (8, 4, 0.25)]:
        run = li.DPSGD(steps, rate, 1.0, noise_filter=FILTER, min_separation=apart)
        law = law_of(run)
        expected = np.zeros(steps + 2)
        for group in range(apart):
            turns = len(range(group, steps, apart))
            for count in range(turns + 1):
                p = apart * rate
                expected[count] += math.comb(turns, count) * p**count * (1 - p) ** (turns - count) / apart
        found = np.zeros(steps + 2)
        found[round(law.constant)] = 1.0
        for count, q in zip(law.counts, law.rates, strict=True):
            for _ in range(int(count)):
                found = (1 - q) * found + q * np.append(0.0, found[:-1])
        assert found == pytest.approx(expected, abs=1e-14)
        assert law.noise == law_of(run.replace(min_separation=1)).noise


def test_groups_that_take_turns_are_those_of_jax_privacys_sampler():
    selection = pytest.importorskip("jax_privacy.batch_selection")

    run = li.DPSGD(10, 0.2, 1.0, noise_filter=FILTER, min_separation=3)
    sampler = selection.CyclicPoissonSampling(
        sampling_prob=0.6, iterations=10, cycle_length=3, partition_type=selection.PartitionType.INDEPENDENT
    )
    counts = np.zeros(60_000, int)
    for batch in sampler.batch_iterator(counts.size, rng=1):
        counts[batch] += 1
    law = law_of(run)
    assert counts.mean() == pytest.approx(law.mean, abs=5 * math.sqrt(law.variance / counts.size))
    assert counts.var() == pytest.approx(law.variance, rel=0.03)


def test_what_is_not_known_is_refused():
    run = li.DPSGD(10, 0.2, 1.0, noise_filter=FILTER, min_separation=3)
    for changes, words in [
        ({"sampling": "fixed"}, "min_separation must be 1 for the heuristic, got 3"),
        ({"weights": np.arange(1.0, 11.0)}, "min_separation must be 1 for the heuristic, got 3"),
        ({"sample_rate": 0.4}, "sample_rate must be at most 1 / min_separation"),
        ({"sampling": "shuffled", "weights": np.arange(1.0, 11.0)}, "otherwise epochs depend on each other"),
    ]:
        with pytest.raises(ValueError, match=words):
            li.last_iterate(run.replace(**changes))
        assert li.composition(run.replace(**changes)).epsilon(DELTA) > 0.0
    with pytest.raises(ValueError, match="min_separation must be at most 2, the number of batches per epoch"):
        li.composition(run.replace(sampling="shuffled", sample_rate=0.5))
    with pytest.raises(ValueError, match="min_separation must be 1 with sampling 'full'"):
        run.replace(sampling="full", sample_rate=1.0)
    with pytest.raises(ValueError, match="noise_filter must have an inverse that floats can hold"):
        li.composition(li.DPSGD(3000, 0.2, 1.0, noise_filter=[1.0, -2.0]))
    with pytest.raises(ValueError, match="steps must be at most 1000000 for a guarantee with noise_filter"):
        li.composition(li.DPSGD(10**7, 0.2, 1.0, noise_filter=FILTER))
    assert li.composition(li.DPSGD(10, 0.0, 1.0, noise_filter=FILTER)).epsilon(DELTA) == 0.0


def test_a_schedule_of_noise_whose_later_steps_take_back_is_searched_step_by_step():
    noise = np.full(60, 5.0)
    noise[36] = 0.5  # only the last draw is left in an iterate, so that this one has least
    run = li.DPSGD(60, 0.2, noise, noise_filter=(1.0, -0.999))
    largest = max(li.last_iterate(run.prefix(t)).epsilon(DELTA) for t in range(1, 61))
    assert largest == li.last_iterate(run.prefix(37)).epsilon(DELTA)
    assert li.max_over_steps(run).epsilon(DELTA) == pytest.approx(largest, rel=1e-10)
