"""Batches have the law that the analyses assume: Poisson, of fixed size, shuffled, or everything.

Statistical tests have fixed seeds. With another seed each comparison would fail by chance with probability 1e-4.
"""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from lastiterate import DPSGD
from lastiterate.privacy.mixtures.law import participation_rate
from lastiterate.training.draws import model_keys
from lastiterate.training.sampling import (
    MOST_SLOTS,
    GroupSampler,
    PoissonSampler,
    Sampler,
    make_sampler,
    poisson_block,
    tight_block,
)
from tests.shuffling import epoch_length, epochs_of

FALSE_ALARM = 1e-4
KEYS = np.asarray(model_keys(3, np.arange(100_000), np.zeros(100_000, bool)).sampling)


def run_sampler(sampler: Sampler, slots: int, models: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """All slots and how often each counts, [steps, models, width], by the loops of a training, compiled."""
    most = math.ceil(slots / sampler.block) + 1  # one block more than could be needed

    def blocks_of_step(arguments, keys, memory, step):
        def more(carry):
            return sampler.more(arguments, carry[0], step)

        def block(carry):
            cursor, number, slots, weights = carry
            new_slots, new_weights, cursor = sampler.take(arguments, memory, keys, step, cursor)
            return cursor, number + 1, slots.at[number].set(new_slots), weights.at[number].set(new_weights)

        shape = (most, models, sampler.block)
        empty = (sampler.cursor(models), 0, jnp.full(shape, -1, jnp.int32), jnp.zeros(shape))
        return jax.lax.while_loop(more, block, empty)[1:]

    @jax.jit
    def all_steps(arguments, keys):
        def one(memory, step):
            memory = sampler.begin(arguments, memory, keys, step)
            return memory, blocks_of_step(arguments, keys, memory, step)

        return jax.lax.scan(one, sampler.memory(models), jnp.arange(steps))[1]

    numbers, found, weights = jax.tree.map(
        np.asarray, all_steps(jax.tree.map(jnp.asarray, sampler.arguments), KEYS[:models])
    )
    assert numbers.max() < most
    return tuple(part.swapaxes(1, 2).reshape(steps, models, -1) for part in (found, weights))


def lists(found: np.ndarray, weights: np.ndarray) -> list[list[list[int]]]:
    """The slots that each model takes at each step, in their order: ``[step][model]``."""
    assert set(np.unique(weights)) <= {0.0, 1.0}
    return [
        [slots[taken].tolist() for slots, taken in zip(*both, strict=True)]
        for both in zip(found, weights == 1, strict=True)
    ]


def batches(sampler: Sampler, slots: int, models: int, steps: int) -> list[list[list[int]]]:
    return lists(*run_sampler(sampler, slots, models, steps))


def members(sampler: Sampler, slots: int, models: int, steps: int) -> np.ndarray:
    """How often each slot is in each batch, [steps, models, slots]."""
    found, weights = run_sampler(sampler, slots, models, steps)
    result = np.zeros((steps, models, slots))
    step, model, place = np.nonzero(weights)
    np.add.at(result, (step, model, found[step, model, place]), weights[step, model, place])
    return result


def poisson(slots: int, block: int, *rates: float) -> PoissonSampler:
    return PoissonSampler(slots, block, np.array(rates))


def sampler_of(sampling: str, rate: float, slots: int, steps: int, most: int = 10**6) -> Sampler:
    return make_sampler(DPSGD(steps, rate, 1.0, sampling, **epochs_of(sampling, rate)), slots, 64, most)


def assert_frequencies(counts: np.ndarray, trials: int, probability: float) -> None:
    """Independent counts, each binomial with so many trials."""
    scores = (counts - trials * probability) / math.sqrt(trials * probability * (1 - probability))
    squares = np.sum(scores**2)
    assert min(stats.chi2.sf(squares, scores.size), stats.chi2.cdf(squares, scores.size)) > FALSE_ALARM / 2


def assert_law(values: np.ndarray, probabilities: np.ndarray) -> None:
    """Values 0, 1, ... have these probabilities; rare ones are taken together."""
    observed, expected = np.bincount(values, minlength=probabilities.size), values.size * probabilities
    common = expected > 10
    if not common.all():
        observed = np.append(observed[common], observed[~common].sum())
        expected = np.append(expected[common], expected[~common].sum())
    assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM


def assert_independent(first: np.ndarray, second: np.ndarray) -> None:
    table = stats.contingency.crosstab(first, second).count
    assert stats.chi2_contingency(table, correction=False).pvalue > FALSE_ALARM


@pytest.mark.parametrize(("slots", "block", "rate"), [(40, 40, 0.3), (200, 8, 0.9), (500, 16, 0.01)])
def test_poisson_takes_every_slot_at_its_rate_and_a_binomial_number_of_them(slots, block, rate):
    models, steps = 4000, 3
    taken = members(poisson(slots, block, *[rate] * steps), slots, models, steps)
    assert_frequencies(taken.sum(axis=(0, 1)), models * steps, rate)
    sizes = taken.sum(axis=2).astype(int).ravel()
    assert_law(sizes, stats.binom.pmf(np.arange(slots + 1), slots, rate))


def test_poisson_takes_slots_independently_of_each_other():
    """All 64 subsets of six slots have the product of their probabilities, in blocks that cut through them."""
    rate = 0.3
    taken = members(poisson(6, 4, rate), 6, 100_000, 1)[0].astype(int)
    subsets = np.array(list(itertools.product([0, 1], repeat=6)))
    assert_law(taken @ 2 ** np.arange(5, -1, -1), np.prod(np.where(subsets, rate, 1 - rate), axis=1))


def test_poisson_takes_pairs_of_slots_independently():
    models = 50_000
    taken = members(poisson(30, 8, 0.2), 30, models, 1)[0]
    correlations = np.corrcoef(taken.T)[np.triu_indices(30, 1)]
    squares = models * np.sum(correlations**2)
    degrees = 30 * 29 // 2
    assert min(stats.chi2.sf(squares, degrees), stats.chi2.cdf(squares, degrees)) > FALSE_ALARM / 2


def test_poisson_batches_of_steps_and_models_are_independent():
    taken = members(poisson(12, 8, *[0.4] * 3), 12, 40_000, 3).astype(int)
    for first, second in itertools.combinations(range(3), 2):
        assert_independent(taken[first, :, 5], taken[second, :, 5])
        assert_independent(taken[first].sum(axis=1), taken[second].sum(axis=1))
    assert_independent(taken[0, ::2, 5], taken[0, 1::2, 5])
    assert_independent(taken[0, ::2].sum(axis=1), taken[0, 1::2].sum(axis=1))


def test_poisson_takes_none_at_rate_zero_and_all_at_rate_one():
    found = batches(poisson(21, 8, 0.0, 1.0, 0.0, 1.0), 21, 100, 4)
    for step, expected in enumerate([[], list(range(21))] * 2):
        assert found[step] == [expected] * 100


def test_poisson_follows_a_schedule_of_rates():
    rates = [0.05, 0.0, 0.5, 1.0, 0.95]
    taken = members(poisson(30, 8, *rates), 30, 5000, 5)
    for step, rate in enumerate(rates):
        if rate in (0.0, 1.0):
            assert (taken[step] == rate).all()
        else:
            assert_frequencies(taken[step].sum(axis=0), 5000, rate)


def test_poisson_batches_are_the_same_in_blocks_of_any_size():
    rates = (0.01, 0.2, 0.9, 1.0)
    one, *others = (batches(poisson(300, block, *rates), 300, 200, 4) for block in (8, 64, 300))
    assert all(other == one for other in others)
    assert max(map(len, one[2])) > 64


@pytest.mark.parametrize(("slots", "block"), [(200, 8), (1, 1), (64, 8)])
def test_poisson_batches_are_strictly_increasing_slots(slots, block):
    rates = (0.9, 0.5, 0.02)
    found, weights = run_sampler(poisson(slots, block, *rates), slots, 300, 3)
    assert found[weights > 0].min() >= 0
    assert found.max() < slots  # even padding points at an example
    for batch in itertools.chain(*lists(found, weights)):
        assert all(np.diff(batch) > 0)


def test_poisson_reaches_the_last_slot_as_often_as_the_first():
    """The canary is last."""
    taken = members(poisson(300, 16, 0.02), 300, 30_000, 1)[0].sum(axis=0)
    for slot in (0, 1, 298, 299):
        assert stats.binomtest(int(taken[slot]), 30_000, 0.02).pvalue > FALSE_ALARM


def test_poisson_is_uniform_over_as_many_slots_as_are_allowed():
    found, weights = run_sampler(poisson(MOST_SLOTS, 16, 1e-6), 64, 5000, 1)
    taken = found[weights > 0]
    expected = 5000 * MOST_SLOTS * 1e-6
    assert abs(taken.size - expected) < math.sqrt(expected) * stats.norm.isf(FALSE_ALARM / 2)
    assert stats.kstest(taken / MOST_SLOTS, stats.uniform.cdf).pvalue > FALSE_ALARM
    assert stats.chisquare(np.bincount(taken % 8, minlength=8)).pvalue > FALSE_ALARM


@pytest.mark.parametrize(("slots", "rate", "chunk"), [(1000, 0.1, 64), (60_001, 0.01, 1), (50, 0.5, 1000), (5, 0.1, 8)])
def test_a_poisson_block_mostly_holds_the_batches_of_a_whole_chunk(slots, rate, chunk):
    block = poisson_block(slots, rate, chunk)
    assert block == slots or block % 8 == 0
    assert stats.binom.cdf(block, slots, rate) ** chunk > 0.95
    assert block <= max(8, slots * rate + 6 * math.sqrt(slots * rate) + 8)


def test_the_poisson_sampler_of_a_run_is_made_for_its_largest_batches():
    sampler = make_sampler(DPSGD(3, [0.01, 0.2, 0.0], 1.0), 1000, 64, 10**6)
    assert isinstance(sampler, PoissonSampler)
    assert sampler.block == poisson_block(1000, 0.2, 64)
    assert make_sampler(DPSGD(3, 0.2, 1.0), 1000, 64, 16).block == 16
    np.testing.assert_array_equal(sampler.sample_rate, [0.01, 0.2, 0.0])


@pytest.mark.parametrize(
    ("slots", "rate", "size", "most"),
    [
        (23, 0.25, 5, 2),
        (7, 1.0, 7, 4),
        (29, 1 / 29, 1, 100),
        (49, 3 / 49, 3, 100),
    ],
)
def test_batches_of_fixed_size_round_down_and_repeat_nothing(slots, rate, size, most):
    for batch in itertools.chain(*batches(sampler_of("fixed", rate, slots, 4, most), slots, 50, 4)):
        assert len(batch) == size
        assert len(set(batch)) == size
        assert set(batch) <= set(range(slots))


def test_batches_of_fixed_size_are_uniform_over_all_subsets():
    taken = members(sampler_of("fixed", 0.5, 6, 1), 6, 40_000, 1)[0].astype(int)
    subsets = np.array([subset for subset in itertools.product([0, 1], repeat=6) if sum(subset) == 3])
    place = 2 ** np.arange(6)
    assert_law(np.searchsorted(np.sort(subsets @ place), taken @ place), np.full(20, 1 / 20))


def test_batches_of_fixed_size_have_every_slot_equally_often_and_afresh_at_each_step():
    taken = members(sampler_of("fixed", 0.2, 30, 3), 30, 20_000, 3).astype(int)
    counts = taken.sum(axis=(0, 1))
    # Counts that add up to a constant: one degree of freedom less, and variances larger by n/(n - 1).
    squares = np.sum((counts - 12_000) ** 2) / (60_000 * 0.2 * 0.8 * 30 / 29)
    assert min(stats.chi2.sf(squares, 29), stats.chi2.cdf(squares, 29)) > FALSE_ALARM / 2
    for first, second in itertools.combinations(range(3), 2):
        assert_independent(taken[first, :, 29], taken[second, :, 29])
    assert_independent(taken[0, ::2, 29], taken[0, 1::2, 29])


def test_batches_of_fixed_size_follow_a_schedule_and_may_be_empty_at_some_steps():
    sampler = make_sampler(DPSGD(4, [0.5, 0.01, 1.0, 0.25], 1.0, "fixed"), 20, 64, 8)
    for size, found in zip([10, 0, 20, 5], batches(sampler, 20, 30, 4), strict=True):
        assert [len(set(batch)) for batch in found] == [len(batch) for batch in found] == [size] * 30


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.0999, [0.01, 0.02]])
def test_batches_of_fixed_size_that_would_all_be_empty_are_refused(rate):
    with pytest.raises(ValueError, match="sample_rate must be at least 1/10 for batches of fixed size") as raised:
        sampler_of("fixed", rate, 10, 2)
    assert f"out of 10 examples, got {np.max(rate):g}" in str(raised.value)


@pytest.mark.parametrize(
    ("slots", "rate", "most"),
    [(12, 0.25, 100), (10, 0.34, 2), (7, 1.0, 4), (3, 0.2, 100), (61, 1 / 60, 100)],
)
def test_shuffled_batches_have_every_slot_once_an_epoch(slots, rate, most):
    length = epoch_length(rate)
    steps = 2 * length + length // 2
    found = batches(sampler_of("shuffled", rate, slots, steps, most), slots, 20, steps)
    for model in range(20):
        for epoch in range(2):
            whole = itertools.chain(*(found[step][model] for step in range(epoch * length, (epoch + 1) * length)))
            assert sorted(whole) == list(range(slots))
        rest = list(itertools.chain(*(found[step][model] for step in range(2 * length, steps))))
        assert len(set(rest)) == len(rest)


@pytest.mark.parametrize(
    ("slots", "rate", "sizes"),
    [(12, 0.25, [3, 3, 3, 3]), (10, 0.3, [3, 3, 3, 1]), (7, 0.6, [4, 3])],
)
def test_shuffled_batches_have_the_size_that_the_rate_says_and_the_last_is_smaller(slots, rate, sizes):
    assert len(sizes) == epoch_length(rate)
    steps = 2 * len(sizes)
    found = batches(sampler_of("shuffled", rate, slots, steps), slots, 10, steps)
    for expected, at_step in zip(2 * sizes, found, strict=True):
        assert [len(batch) for batch in at_step] == [expected] * 10


@pytest.mark.parametrize(
    ("slots", "rate"),
    [(100, 0.1), (100, 0.3), (1000, 0.07), (60_001, 1 / 60), (60_001, 1 / 6000), (61, 1 / 60), (10, 0.34)],
)
def test_shuffled_batches_hold_the_canary_as_often_as_is_analysed(slots, rate):
    """After k steps of an epoch the law of the analyses has it used with probability k q; one slot is for rounding."""
    length = epoch_length(rate)
    _, sizes = sampler_of("shuffled", rate, slots, length).arguments
    used, analysed = np.cumsum(sizes) / slots, np.minimum(np.arange(1, length + 1) * rate, 1.0)
    assert used[-1] == 1.0
    assert np.abs(used - analysed).max() <= 1 / slots


def test_shuffled_orders_are_uniform_and_new_at_each_epoch():
    """Batches of one slot show the whole order; there are 24 orders of four slots."""
    found = np.array(batches(sampler_of("shuffled", 0.25, 4, 8), 4, 24_000, 8))[..., 0]
    place = {order: number for number, order in enumerate(itertools.permutations(range(4)))}
    first, second = (np.array([place[tuple(order)] for order in epoch.T]) for epoch in (found[:4], found[4:]))
    for orders in (first, second):
        assert_law(orders, np.full(24, 1 / 24))
    assert_independent(first, second)
    assert_independent(first[::2], first[1::2])


def test_shuffled_slots_are_in_each_batch_of_the_epoch_equally_often():
    slots, models, length = 30, 20_000, 5
    taken = members(sampler_of("shuffled", 0.2, slots, length), slots, models, length)
    step_of_slot = np.argmax(taken, axis=0)
    for slot in (0, 13, 29):
        assert_law(step_of_slot[:, slot], np.full(length, 1 / length))
    totals = taken.sum(axis=1)
    # A table of counts with both margins fixed: (30 - 1)(5 - 1) degrees of freedom, variances larger by 30/29.
    squares = np.sum((totals - models / length) ** 2) / (models / length) * 29 / 30
    assert min(stats.chi2.sf(squares, 116), stats.chi2.cdf(squares, 116)) > FALSE_ALARM / 2


def test_another_order_comes_each_epoch_and_for_each_model():
    length = 10
    found = np.array(batches(sampler_of("shuffled", 0.1, 100, 3 * length), 100, 20, 3 * length))
    orders = found.reshape(3, length, 20, 10).transpose(0, 2, 1, 3).reshape(60, 100)
    assert np.unique(orders, axis=0).shape == (60, 100)


@pytest.mark.parametrize(("slots", "most"), [(1, 8), (50, 16), (64, 64)])
def test_full_batches_have_all_slots_at_each_step(slots, most):
    sampler = sampler_of("full", 1.0, slots, 3, most)
    assert sampler.block == min(slots, most)
    assert batches(sampler, slots, 5, 3) == [[list(range(slots))] * 5] * 3


def test_slots_with_multiplicity_count_as_often_as_they_are_drawn():
    multiplicity = np.array([1, 50, 1000])
    sampler = make_sampler(DPSGD(3, [0.3, 1.0, 0.0], 1.0), 3, 64, 10**6, multiplicity)
    assert isinstance(sampler, GroupSampler)
    counts = members(sampler, 3, 20_000, 3)
    for group, trials in enumerate(multiplicity):
        assert_law(counts[0, :, group].astype(int), stats.binom.pmf(np.arange(trials + 1), trials, 0.3))
    assert (counts[1] == multiplicity).all()
    assert (counts[2] == 0).all()


def test_full_batches_have_all_copies():
    sampler = make_sampler(DPSGD(2, 1.0, 1.0, "full"), 3, 64, 10**6, np.array([1, 50, 10**6]))
    assert (members(sampler, 3, 10, 2) == [1, 50, 10**6]).all()


@pytest.mark.parametrize("sampling", ["fixed", "shuffled"])
def test_multiplicity_is_refused_where_batches_have_a_size(sampling):
    with pytest.raises(ValueError, match=f"^sampling must be 'poisson' or 'full' .* multiplicity, got '{sampling}'$"):
        make_sampler(DPSGD(2, 0.5, 1.0, sampling), 3, 64, 100, np.array([1, 2, 3]))


@pytest.mark.parametrize(("sampling", "rate"), [("poisson", 0.1), ("fixed", 0.1), ("shuffled", 0.1), ("full", 1.0)])
def test_more_slots_than_float32_can_count_are_refused(sampling, rate):
    with pytest.raises(
        ValueError, match=f"examples must be at most {MOST_SLOTS}, got {MOST_SLOTS + 1}: give identical"
    ):
        sampler_of(sampling, rate, MOST_SLOTS + 1, 2)


@pytest.mark.parametrize(
    ("slots", "rate", "chunk", "most"), [(1437, 0.035, 1, 32), (1437, 0.035, 4, 63), (200, 0.5, 1, 16)]
)
def test_a_tight_block_wastes_less_than_the_largest(slots, rate, chunk, most):
    batches = np.random.default_rng(0).binomial(slots, rate, (20_000, chunk)).max(axis=1)

    def work(block):
        return np.mean((batches // block + 1) * (block + 4))

    block = tight_block(slots, rate, chunk, most)
    assert most // 2 <= block <= most
    assert work(block) <= 1.01 * min(work(other) for other in range(most // 2, most + 1))


def test_a_tight_block_of_one_slot_is_possible():
    assert tight_block(1, 1.0, 1, 1) == tight_block(3, 0.0, 1, 1) == 1


@pytest.mark.parametrize(("slots", "length", "most"), [(40, 5, 100), (203, 7, 16), (6, 30, 100)])
def test_balls_in_bins_have_every_slot_in_exactly_one_batch_of_an_epoch(slots, length, most):
    models, steps = 1500, 2 * length
    taken = members(sampler_of("balls-in-bins", 1.0 / length, slots, steps, most), slots, models, steps)
    assert (taken.reshape(2, length, models, slots).sum(axis=1) == 1).all()
    assert_frequencies(taken[3].sum(axis=0), models, 1.0 / length)
    assert_law(taken[1].sum(axis=1).astype(int), stats.binom.pmf(np.arange(slots + 1), slots, 1.0 / length))
    bins = taken.reshape(2, length, models, slots).argmax(axis=1)
    assert_independent(bins[0, :, 0], bins[0, :, slots - 1])  # two slots
    assert_independent(bins[0, :, 2], bins[1, :, 2])  # two epochs
    assert_independent(bins[0, ::2, 2], bins[0, 1::2, 2])  # two models


@pytest.mark.parametrize(("slots", "rate", "limit", "most"), [(12, 0.4, 5, 100), (200, 0.1, 18, 8)])
def test_truncated_batches_are_random_parts_of_poisson_batches(slots, rate, limit, most):
    models, steps = 2000, 2
    run = DPSGD(steps, rate, 1.0, "truncated-poisson", max_batch_size=limit, dataset_size=slots)
    taken = members(make_sampler(run, slots, 64, most), slots, models, steps)
    sizes = stats.binom.pmf(np.arange(slots + 1), slots, rate)
    sizes = np.append(sizes[:limit], sizes[limit:].sum())
    assert_law(taken.sum(axis=2).astype(int).ravel(), sizes)
    assert_frequencies(taken.sum(axis=1).ravel()[:: slots - 1], models, participation_rate(run))
    assert_independent(taken[0, :, 1], taken[1, :, 1])
    with pytest.raises(ValueError, match=f"dataset_size must be {slots + 1}, the number of examples with the canary"):
        make_sampler(run, slots + 1, 64, most)
