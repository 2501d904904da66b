"""The law of S is what enumerating every way to draw the batches gives."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastiterate import DPSGD
from lastiterate.privacy.mixtures.law import Law, law_of

Distribution = dict[float, float]


def merged(outcomes) -> Distribution:
    """The probability of each value, where values that differ by rounding only are one."""
    result: Distribution = {}
    last = -math.inf
    for value, probability in sorted(outcomes):
        if value > last + 1e-9:
            last = value
        result[last] = result.get(last, 0.0) + probability
    return {value: probability for value, probability in result.items() if probability > 1e-15}


def assert_same_distribution(first: Distribution, second: Distribution):
    assert list(first) == pytest.approx(list(second), abs=2e-9)
    assert list(first.values()) == pytest.approx(list(second.values()), rel=1e-9, abs=1e-14)


def of_law(law: Law) -> Distribution:
    """All that a law says, written out: each term takes its values independently of the others."""
    terms = [[(law.constant, 1.0)]]
    for count, rate, weight in zip(law.counts, law.rates, law.weights, strict=True):
        terms += [[(0.0, 1.0 - rate), (weight, rate)]] * int(count)
    terms += [list(zip(values, probabilities, strict=True)) for values, probabilities in law.blocks]
    return _all_sums(terms)


def _all_sums(terms) -> Distribution:
    return merged(
        (sum(value for value, _ in outcome), math.prod(probability for _, probability in outcome))
        for outcome in itertools.product(*terms)
    )


def by_coins(run: DPSGD) -> Distribution:
    """Poisson sampling, literally: one coin a step."""
    rates = np.broadcast_to(run.sample_rate, (run.steps,))
    return _all_sums(
        [[(0.0, 1.0 - rate), (weight, rate)] for rate, weight in zip(rates, scaled_weights(run), strict=True)]
    )


def by_permutations(run: DPSGD, dataset_size: int, batch_size: int) -> Distribution:
    """Shuffling, literally: each epoch the canary has a uniform place among the examples, cut into batches in turn."""
    weights = scaled_weights(run)
    batches_an_epoch = -(-dataset_size // batch_size)
    epochs = -(-run.steps // batches_an_epoch)
    outcomes = []
    for places in itertools.product(range(dataset_size), repeat=epochs):
        used = [epoch * batches_an_epoch + place // batch_size for epoch, place in enumerate(places)]
        outcomes.append((sum(weights[step] for step in used if step < run.steps), 1.0 / dataset_size**epochs))
    return merged(outcomes)


def scaled_weights(run: DPSGD) -> np.ndarray:
    weights = np.broadcast_to(run.effective_weights(), (run.steps,))
    return weights / np.max(np.abs(weights))


def moments(distribution: Distribution) -> tuple[float, float, float, float]:
    mean = math.fsum(value * probability for value, probability in distribution.items())
    variance = math.fsum((value - mean) ** 2 * probability for value, probability in distribution.items())
    return mean, variance, min(distribution), max(distribution)


def assert_is_law(law: Law, expected: Distribution):
    assert_same_distribution(of_law(law), expected)
    assert (law.mean, law.variance, law.low, law.high) == pytest.approx(moments(expected), rel=1e-7, abs=1e-8)


some_rates = st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0.01, 0.99)
some_weights = st.sampled_from([0.0, 1.0, -1.0, 0.5]) | st.floats(-2.0, 2.0).filter(lambda w: abs(w) > 0.01)


@st.composite
def scheduled(draw, longest=7):
    count = draw(st.integers(1, longest))
    rates = draw(some_rates | st.lists(some_rates, min_size=count, max_size=count))
    noise = draw(st.floats(0.1, 5.0) | st.lists(st.floats(0.1, 5.0), min_size=count, max_size=count))
    weights = draw(st.none() | st.lists(some_weights, min_size=count, max_size=count).filter(any))
    return DPSGD(count, rates, noise, weights=weights)


@st.composite
def shuffled(draw):
    """A shuffled run with the numbers of examples and of examples a batch that it comes from."""
    dataset_size = draw(st.integers(1, 7))
    batch_size = draw(st.integers(1, dataset_size))
    steps = draw(st.integers(1, 3 * math.ceil(dataset_size / batch_size)))
    weights = draw(st.none() | st.lists(some_weights, min_size=steps, max_size=steps).filter(any))
    rate = batch_size / dataset_size
    run = DPSGD(steps, rate, 1.0, "shuffled", weights=weights, batches_per_epoch=math.ceil(dataset_size / batch_size))
    return run, dataset_size, batch_size


@given(scheduled())
def test_poisson_sampling_is_a_coin_a_step(run):
    assert_is_law(law_of(run), by_coins(run))


@given(shuffled())
def test_shuffled_batches_have_the_canary_once_an_epoch(drawn):
    run, dataset_size, batch_size = drawn
    assert_is_law(law_of(run), by_permutations(run, dataset_size, batch_size))


@pytest.mark.parametrize("weights", [None, -3.0, np.full(1000, 0.2)])
def test_equal_steps_are_binomial(weights):
    law = law_of(DPSGD(1000, 0.1, 2.0, weights=weights))
    assert law.is_binomial
    assert (law.counts.item(), law.rates.item(), abs(law.weights.item())) == (1000.0, 0.1, 1.0)
    assert law.noise == pytest.approx(2.0 * math.sqrt(1000))


@pytest.mark.parametrize("weights", [None, 0.5, np.full(30, 0.5)])
def test_shuffled_batches_of_equal_weight_are_constant_after_whole_epochs(weights):
    law = law_of(DPSGD(30, 0.1, 1.0, sampling="shuffled", weights=weights))
    assert (law.constant, law.variance) == (3.0, 0.0)
    assert law.counts.size == len(law.blocks) == 0


def test_the_last_batch_of_an_epoch_is_the_smaller_one_where_batches_do_not_divide_the_data():
    """Ten examples in batches of four: 4, 4 and 2."""
    law = law_of(DPSGD(3, 0.4, 1.0, sampling="shuffled", weights=[0.25, 0.5, 1.0], batches_per_epoch=3))
    ((values, probabilities),) = law.blocks
    assert values.tolist() == [0.25, 0.5, 1.0]
    assert probabilities == pytest.approx([0.4, 0.4, 0.2])


@given(scheduled() | shuffled().map(lambda drawn: drawn[0]))
def test_the_flipped_law_is_that_of_minus_the_sum(run):
    law = law_of(run)
    expected = merged((-value, probability) for value, probability in of_law(law).items())
    assert_is_law(law.flipped(), expected)
    assert law.flipped().noise == law.noise
