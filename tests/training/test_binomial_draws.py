"""Counts of identical examples have the binomial law, from one example to two thousand million.

Statistical tests have fixed seeds. With another seed each comparison would fail by chance with probability 1e-4.
"""

from functools import cache

import jax
import numpy as np
import pytest
from scipy import stats

from lastiterate.training.draws import binomial_counts, binomial_tables, model_keys, words

FALSE_ALARM = 1e-4
CASES = [(1, 0.3), (50, 0.1), (10**6, 0.01), (2 * 10**9, 0.1)]
MODELS = 100_000
KEYS = np.asarray(model_keys(11, np.arange(MODELS), np.zeros(MODELS, bool)).sampling)

counts_of = jax.jit(binomial_counts)


@cache
def tables_of(multiplicity: tuple[int, ...], sample_rate: tuple[float, ...]) -> tuple[np.ndarray, ...]:
    return binomial_tables(np.array(multiplicity), np.array(sample_rate))


def draw(multiplicity: list[int], sample_rate: list[float], step: int = 0, keys: np.ndarray = KEYS) -> np.ndarray:
    """Counts [models, groups] of a step."""
    return np.asarray(counts_of(keys, np.int32(step), tables_of(tuple(multiplicity), tuple(sample_rate))))


def assert_binomial(counts: np.ndarray, trials: int, rate: float) -> None:
    """Chi-square over bins that each expect ten draws or more."""
    law = stats.binom(trials, rate)
    low, high = int(law.ppf(10 / counts.size)), int(law.isf(10 / counts.size))
    edges = np.unique(np.linspace(low, high, min(high - low, 100) + 1).astype(np.int64))
    below = np.concatenate([[0.0], law.cdf(edges), [1.0]])
    expected = counts.size * np.diff(below)
    observed = np.bincount(np.searchsorted(edges, counts), minlength=edges.size + 1)
    kept = expected > 0  # where the largest count is an edge, nothing lies beyond
    assert observed[~kept].sum() == 0
    assert stats.chisquare(observed[kept], expected[kept]).pvalue > FALSE_ALARM


def assert_independent(first: np.ndarray, second: np.ndarray) -> None:
    """No association in the table of small counts."""
    assert stats.chi2_contingency(stats.contingency.crosstab(first, second).count).pvalue > FALSE_ALARM


@pytest.mark.parametrize(("trials", "rate"), CASES)
def test_counts_have_the_binomial_law(trials, rate):
    counts = draw([trials], [rate])
    assert counts.shape == (MODELS, 1)
    assert counts.dtype == np.int32
    assert counts.min() >= 0
    assert counts.max() <= trials
    assert_binomial(counts[:, 0], trials, rate)


@pytest.mark.parametrize(("trials", "rate"), [*CASES, (2**31 - 1, 1e-9), (2**31 - 1, 1 - 1e-9)])
def test_a_count_is_the_quantile_of_its_64_bit_uniform(trials, rate):
    """Between two steps of the distribution function; the largest case has some that only the lower 32 bits tell."""
    high, low = (np.asarray(word[:, 0], np.uint64) for word in words(KEYS, 0, np.arange(1)))
    uniform = np.ldexp((high << np.uint64(32) | low).astype(np.float64), -64)
    counts = draw([trials], [rate])[:, 0].astype(np.int64)
    assert (stats.binom.cdf(counts - 1, trials, rate) <= uniform).all()
    assert (uniform <= stats.binom.cdf(counts, trials, rate)).all()


def test_rates_zero_and_one_are_exact_beside_others():
    rates = [0.0, 0.3, 1.0, 1e-12, 0.5]
    for step, expected in [(0, [0, 0]), (2, [5, 1000])]:
        np.testing.assert_array_equal(draw([5, 1000], rates, step), np.tile(expected, (MODELS, 1)))


def test_each_step_has_its_own_rate():
    rates = [0.5, 0.1, 0.5, 0.9, 0.2]
    for step, rate in enumerate(rates):
        counts = draw([20, 300], rates, step)
        assert_binomial(counts[:, 0], 20, rate)
        assert_binomial(counts[:, 1], 300, rate)


def test_models_are_independent_of_each_other():
    """Their numbers come one after the other, and from two worlds."""
    counts = draw([3], [0.4])[:, 0]
    assert_independent(counts[:-1:2], counts[1::2])
    other = np.asarray(model_keys(11, np.arange(MODELS), np.ones(MODELS, bool)).sampling)
    assert_independent(counts, draw([3], [0.4], keys=other)[:, 0])


def test_counts_do_not_depend_on_which_other_models_are_drawn():
    np.testing.assert_array_equal(draw([7, 13, 30], [0.1], keys=KEYS[40:50]), draw([7, 13, 30], [0.1])[40:50])
