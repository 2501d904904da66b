"""Batches have the law that the analyses assume: Poisson, of fixed size, shuffled, or everything.

Statistical tests have fixed seeds. With another seed each comparison would fail by chance with probability 1e-4.
"""

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
from lastiterate.training.sampling import GroupSampler, PoissonSampler, Sampler, make_sampler, poisson_block
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


def test_poisson_batches_of_steps_and_models_are_independent():
    taken = members(poisson(12, 8, *[0.4] * 3), 12, 40_000, 3).astype(int)
    for first, second in itertools.combinations(range(3), 2):
        assert_independent(taken[first, :, 5], taken[second, :, 5])
        assert_independent(taken[first].sum(axis=1), taken[second].sum(axis=1))
    assert_independent(taken[0, ::2, 5], taken[0, 1::2, 5])
    assert_independent(taken[0, ::2].sum(axis=1), taken[0, 1::2].sum(axis=1))


@pytest.mark.parametrize(("slots", "rate", "chunk"), [(1000, 0.1, 64), (60_001, 0.01, 1), (50, 0.5, 1000), (5, 0.1, 8)])
def test_a_poisson_block_mostly_holds_the_batches_of_a_whole_chunk(slots, rate, chunk):
    block = poisson_block(slots, rate, chunk)
    assert block == slots or block % 8 == 0
    assert stats.binom.cdf(block, slots, rate) ** chunk > 0.95
    assert block <= max(8, slots * rate + 6 * math.sqrt(slots * rate) + 8)


@pytest.mark.parametrize(
    ("slots", "rate", "size", "most"), [(23, 0.25, 5, 2), (7, 1.0, 7, 4), (29, 1 / 29, 1, 100), (49, 3 / 49, 3, 100)]
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


@pytest.mark.parametrize(
    ("slots", "rate", "most"), [(12, 0.25, 100), (10, 0.34, 2), (7, 1.0, 4), (3, 0.2, 100), (61, 1 / 60, 100)]
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


def test_slots_with_multiplicity_count_as_often_as_they_are_drawn():
    multiplicity = np.array([1, 50, 1000])
    sampler = make_sampler(DPSGD(3, [0.3, 1.0, 0.0], 1.0), 3, 64, 10**6, multiplicity)
    assert isinstance(sampler, GroupSampler)
    counts = members(sampler, 3, 20_000, 3)
    for group, trials in enumerate(multiplicity):
        assert_law(counts[0, :, group].astype(int), stats.binom.pmf(np.arange(trials + 1), trials, 0.3))
    assert (counts[1] == multiplicity).all()
    assert (counts[2] == 0).all()


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
