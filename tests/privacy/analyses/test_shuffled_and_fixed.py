"""Sampling other than Poisson: what the heuristic says, and the bound that holds for every way to draw batches."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from lastiterate import DPSGD, composition, last_iterate, no_amplification
from tests.privacy.helpers import brute_force_delta, gaussian_delta
from tests.shuffling import epochs_of, shuffled_run

DELTAS = np.array([1e-2, 1e-5, 1e-9])
EPSILONS = np.array([0.0, 0.1, 1.0, 4.0])


def assert_gaussian(curve, mu):
    for delta in DELTAS:
        assert curve.epsilon(delta) == pytest.approx(max(get_epsilon_gaussian(1 / mu, delta), 0.0), rel=1e-8, abs=1e-8)
    assert curve.delta(EPSILONS) == pytest.approx(
        [gaussian_delta(epsilon, mu) for epsilon in EPSILONS], rel=1e-7, abs=1e-14
    )
    fpr = np.array([1e-6, 0.01, 0.3, 0.9])
    assert curve.fnr(fpr) == pytest.approx(norm.cdf(norm.isf(fpr) - mu), rel=1e-9)
    assert curve.advantage() == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-9)


@settings(max_examples=25)
@given(
    st.integers(1, 40), st.integers(1, 200), st.floats(0.3, 10.0), st.floats(-5.0, 5.0).filter(lambda w: abs(w) > 0.1)
)
def test_shuffled_with_equal_weights_and_whole_epochs_is_the_gaussian_mechanism(epochs, batches, sigma, weight):
    """S is epochs times w, always, against noise sqrt(T) sigma w with T = epochs times batches."""
    mu = epochs / (math.sqrt(epochs * batches) * sigma)
    run = DPSGD(epochs * batches, 1 / batches, sigma, sampling="shuffled")
    for weights in (None, weight, np.full(run.steps, weight)):
        assert_gaussian(last_iterate(run.replace(weights=weights)), mu)


def shuffled_support(weights, dataset_size, batch_size):
    """S for every place of the canary among the examples, in every epoch."""
    batches = -(-dataset_size // batch_size)
    epochs = -(-len(weights) // batches)
    padded = np.append(weights, np.zeros(epochs * batches - len(weights)))
    sums = [
        sum(padded[batches * epoch + place // batch_size] for epoch, place in enumerate(places))
        for places in itertools.product(range(dataset_size), repeat=epochs)
    ]
    points, counts = np.unique(np.round(sums, 12), return_counts=True)
    return points, counts / counts.sum()


@pytest.mark.parametrize(
    ("steps", "dataset_size", "batch_size"),
    [(3, 3, 1), (6, 6, 2), (4, 4, 1), (8, 4, 1), (2, 5, 1), (7, 4, 1), (6, 5, 2), (7, 5, 2), (8, 5, 2), (3, 3, 3)],
)
@pytest.mark.parametrize("decreasing", [True, False])
def test_shuffled_schedules_agree_with_enumeration(steps, dataset_size, batch_size, decreasing):
    """Whole and partial epochs; batches that divide the data and batches that do not."""
    weights = np.linspace(1.0, 0.2, steps) if decreasing else np.ones(steps)
    run = shuffled_run(steps, batch_size / dataset_size, 0.5, weights=weights)
    points, masses = shuffled_support(weights, dataset_size, batch_size)
    noise = 0.5 * float(np.linalg.norm(weights))
    curve = last_iterate(run)
    for epsilon in (0.0, 0.5, 2.0):
        expected = brute_force_delta(points, masses, noise, epsilon, nodes=40_001)
        assert curve.delta(epsilon) == pytest.approx(expected, rel=1e-5, abs=1e-12)
    for delta in (1e-2, 1e-6):
        expected = brute_force_delta(points, masses, noise, curve.epsilon(delta), nodes=40_001)
        assert expected == pytest.approx(delta, rel=1e-4)
    fpr = np.array([1e-4, 0.1, 0.7])
    expected = masses @ norm.cdf(norm.isf(fpr) - points[:, None] / noise)
    assert curve.fnr(fpr) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("dataset_size", "batch_size", "steps"), [(60, 6, 40), (50, 8, 45)])
def test_the_tradeoff_of_a_shuffled_schedule_agrees_with_simulation(dataset_size, batch_size, steps):
    """Models of linear losses, trained in both worlds with real shuffles; S >= 0, so the best test is a threshold."""
    models = 40_000
    rng = np.random.default_rng(0)
    weights = np.geomspace(1.0, 0.05, steps)
    batches = math.ceil(dataset_size / batch_size)
    signal = np.zeros(models)
    for start in range(0, steps, batches):
        shuffles = rng.permuted(np.tile(np.arange(dataset_size, dtype=np.int16), (models, 1)), axis=1)
        places = np.argmin(shuffles, axis=1)  # of example 0, the canary
        step = start + places // batch_size
        signal += np.where(step < steps, weights[np.minimum(step, steps - 1)], 0.0)
    sigma = 0.4
    released_out = sigma * np.linalg.norm(weights) * rng.normal(size=models)
    released_in = signal + sigma * np.linalg.norm(weights) * rng.normal(size=models)
    curve = last_iterate(shuffled_run(steps, batch_size / dataset_size, sigma, weights=weights))
    for threshold in np.linspace(-0.5, 4.0, 10):
        fpr, fnr = norm.sf(threshold / (sigma * np.linalg.norm(weights))), float(np.mean(released_in < threshold))
        assert np.mean(released_out >= threshold) == pytest.approx(fpr, abs=4.5 * math.sqrt(fpr * (1 - fpr) / models))
        assert curve.fnr(fpr) == pytest.approx(fnr, abs=4.5 * math.sqrt(fnr * (1 - fnr) / models) + 1e-6)


@settings(max_examples=25)
@given(st.integers(1, 100), st.integers(1, 200), st.floats(0.3, 20.0))
def test_without_amplification_shuffled_epochs_compose_as_gaussians(epochs, batches, sigma):
    run = DPSGD(epochs * batches, 1 / batches, sigma, sampling="shuffled")
    assert_gaussian(no_amplification(run), math.sqrt(epochs) / sigma)


def naive_delta(steps, rate, sigma, epsilon):
    """The number of batches with the canary is drawn and told; then it is a Gaussian mechanism."""
    counts = np.arange(1, steps + 1)
    return sum(binom.pmf(k, steps, rate) * gaussian_delta(epsilon, math.sqrt(k) / sigma) for k in counts)


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
@pytest.mark.parametrize(
    ("steps", "rate", "sigma"), [(1, 0.01, 1.0), (10, 0.3, 0.7), (100, 0.05, 2.0), (300, 0.01, 1.0), (5, 0.9, 5.0)]
)
def test_without_amplification_the_number_of_participations_is_binomial(steps, rate, sigma, sampling):
    curve = no_amplification(DPSGD(steps, rate, sigma, sampling=sampling))
    for epsilon in EPSILONS:
        assert curve.delta(epsilon) == pytest.approx(naive_delta(steps, rate, sigma, epsilon), rel=1e-8, abs=1e-15)
    for delta in DELTAS:
        epsilon = curve.epsilon(delta)
        if epsilon > 0.0:
            assert naive_delta(steps, rate, sigma, epsilon) == pytest.approx(delta, rel=1e-7)
        else:
            assert naive_delta(steps, rate, sigma, 0.0) <= delta
    assert curve.advantage() == curve.delta(0.0)


def naive_fnr(steps, rate, sigma, fpr):
    """Cells of (number of participations, output), called "in" by decreasing likelihood ratio."""
    x = np.linspace(-12.0, 12.0 + math.sqrt(steps) / sigma, 20_001)
    p, q = [], []
    for k in range(steps + 1):
        mass = binom.pmf(k, steps, rate) * (x[1] - x[0])
        p.append(mass * norm.pdf(x, math.sqrt(k) / sigma))
        q.append(mass * norm.pdf(x))
    p, q = np.concatenate(p), np.concatenate(q)
    with np.errstate(divide="ignore"):
        order = np.argsort(-np.where(q > 0.0, p / q, np.inf), kind="stable")
    return np.interp(fpr, np.cumsum(q[order]), 1.0 - np.cumsum(p[order]))


@pytest.mark.parametrize(("steps", "rate", "sigma"), [(10, 0.95, 0.7), (1, 0.01, 1.0), (10, 0.1, 1.0)])
def test_without_amplification_the_tradeoff_is_that_of_told_participations(steps, rate, sigma):
    """Told that the canary was never used, a test can only toss a coin: its errors are on a line there."""
    fpr = np.array([1e-3, 0.1, 0.3, 0.5, 0.7, 0.9])
    curve = no_amplification(DPSGD(steps, rate, sigma, sampling="fixed"))
    assert curve.fnr(fpr) == pytest.approx(naive_fnr(steps, rate, sigma, fpr), abs=1e-5)


@st.composite
def any_runs(draw):
    sampling = draw(st.sampled_from(["poisson", "fixed", "shuffled", "full"]))
    count = draw(st.integers(1, 30))

    def column(values):
        return draw(values | st.lists(values, min_size=count, max_size=count))

    match sampling:
        case "full":
            rate = 1.0
        case "shuffled":
            rate = draw(st.floats(0.02, 1.0))
        case _:
            rate = column(st.floats(1e-4, 1.0) | st.sampled_from([0.0, 1.0]))
    weights = draw(st.none() | st.lists(st.floats(0.05, 1.0), min_size=count, max_size=count))
    noise = column(st.floats(0.5, 5.0))
    return DPSGD(count, rate, noise, sampling=sampling, weights=weights, **epochs_of(sampling, rate))


@given(any_runs())
@example(shuffled_run(7, 0.3, 0.5))
@example(DPSGD(30, 0.999, 1.0))
def test_the_bound_without_amplification_is_never_below_the_heuristic(run):
    bound, heuristic = no_amplification(run), last_iterate(run)
    assert np.all(bound.epsilon(DELTAS) >= heuristic.epsilon(DELTAS) * (1 - 1e-9) - 1e-9)
    assert np.all(bound.delta(EPSILONS) >= heuristic.delta(EPSILONS) * (1 - 1e-9) - 1e-14)
    assert bound.is_guarantee
    assert not heuristic.is_guarantee


@settings(max_examples=20)
@given(any_runs().filter(lambda run: run.sampling in ("poisson", "full")))
def test_the_bound_without_amplification_is_never_below_composition(run):
    assert no_amplification(run).epsilon(1e-5) >= composition(run).epsilon(1e-5) * (1 - 1e-6) - 1e-6


@pytest.mark.parametrize(
    ("steps", "rate", "sigma", "exact"), [(10**7, 0.5, 5e3, 1.7600575029), (10**6, 0.3, 2e3, None)]
)
def test_the_bracket_holds_the_sum_over_all_counts_where_they_are_taken_in_stretches(steps, rate, sigma, exact):
    curve = no_amplification(DPSGD(steps, rate, sigma))
    lower, upper = curve.bracket(1e-5)
    assert lower <= curve.epsilon(1e-5) <= upper
    assert upper - lower < 1e-5
    middle, spread = steps * rate, 40 * math.sqrt(steps * rate * (1 - rate))
    count = np.arange(math.floor(middle - spread), math.ceil(middle + spread))
    mu, mass = np.sqrt(count) / sigma, binom.pmf(count, steps, rate)

    def delta(epsilon):
        return mass @ (norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))

    assert delta(upper) < 1e-5 < delta(lower)
    if exact is not None:
        assert lower <= exact <= upper
