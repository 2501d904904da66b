"""Every random number has an address, is what Threefry says, and has the law it should have.

Statistical tests have fixed seeds. With another seed each comparison would fail by chance with probability 1e-4.
"""

import itertools
import math
from functools import cache

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from lastiterate.training import draws
from lastiterate.training.draws import Keys, model_keys

FALSE_ALARM = 1e-4
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)

# Compiled, as in a training; one by one JAX's operations take much longer.
exponentials, loss_keys, threefry, words = map(
    jax.jit, (draws.exponentials, draws.loss_keys, draws.threefry, draws.words)
)
normals = jax.jit(draws.normals, static_argnums=(2,), static_argnames=("dtype",))


@cache
def many_keys(seed: int) -> Keys:
    keys = model_keys(seed, np.arange(100_000), np.zeros(100_000, bool))
    return Keys(*map(np.asarray, keys))


def keys_of(models: int, seed: int = 7) -> Keys:
    return Keys(*(key[:models] for key in many_keys(seed)))


def draw(models: int, shape: tuple[int, ...], step: int = 3, seed: int = 7) -> np.ndarray:
    """Normals [models, *shape] of the noise of a step."""
    return np.asarray(normals(keys_of(models, seed).noise, step, shape))


def address_of(key: np.ndarray, first: int, second: int) -> tuple[np.uint32, np.uint32]:
    """The counter at which Threefry with this key gives these two words: the cipher run backwards, in integers."""
    mask = 2**32 - 1
    schedule = (int(key[0]), int(key[1]), int(key[0]) ^ int(key[1]) ^ 0x1BD11BDA)
    x, y = first, second
    for group in reversed(range(5)):
        x, y = x - schedule[(group + 1) % 3], y - schedule[(group + 2) % 3] - (group + 1)
        for rotation in reversed(ROTATIONS[4 * (group % 2) : 4 * (group % 2) + 4]):
            y = (y ^ x) & mask
            y = ((y >> rotation) | (y << (32 - rotation))) & mask
            x = (x - y) & mask
    return np.uint32((x - schedule[0]) & mask), np.uint32((y - schedule[1]) & mask)


def assert_plausible_count(found: int, trials: int, probability: float) -> None:
    assert stats.binomtest(int(found), trials, probability).pvalue > FALSE_ALARM


def assert_uncorrelated(*samples: np.ndarray) -> None:
    """No two of these samples are correlated, nor are their sizes; the alarm is shared among all pairs."""
    pairs = list(itertools.combinations([np.ravel(sample).astype(np.float64) for sample in samples], 2))
    for first, second in pairs:
        for transformed in ((first, second), (first**2, second**2), (first, second**2), (first**2, second)):
            score = np.corrcoef(*transformed)[0, 1] * math.sqrt(first.size)
            assert 2 * stats.norm.sf(abs(score)) > FALSE_ALARM / (4 * len(pairs))


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_known_answers_of_random123(key, counter, expected):
    key_words = (jnp.uint32(key[0]), jnp.uint32(key[1]))
    found = threefry(key_words, jnp.uint32(counter[0]), jnp.uint32(counter[1]))
    assert tuple(int(word) for word in found) == expected


def test_words_have_the_address_of_model_step_and_index():
    keys = keys_of(3).sampling
    index = jnp.arange(8).reshape(2, 4)
    high, low = words(keys, 11, index)
    assert high.shape == low.shape == (3, 2, 4)
    for model in range(3):
        for at in np.ndindex(2, 4):
            key = keys[model, 0], keys[model, 1]
            expected = threefry(key, jnp.uint32(11), jnp.uint32(index[at]))
            assert (high[(model, *at)], low[(model, *at)]) == expected


def test_normals_are_box_and_mullers_to_the_precision_of_float32():
    keys = keys_of(50).noise
    found = np.asarray(normals(keys, 5, (200,)))
    first, second = (np.asarray(word, np.float64) for word in words(keys, 5, jnp.arange(100)))
    radius, angle = np.sqrt(-2 * np.log((first + 0.5) / 2**32)), 2 * np.pi * second / 2**32 - np.pi / 4
    expected = np.concatenate([radius * np.sin(angle), radius * np.cos(angle)], axis=1)
    # Where the uniform rounds to near 1, the squared radius is off by 2^-24 times 2; elsewhere by relative 1e-7.
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=5e-4)
    assert np.quantile(np.abs(found - expected), 0.99) < 1e-6


def test_normals_have_the_tails_of_the_normal_distribution():
    sample = draw(2000, (5000,), seed=8)
    assert np.isfinite(sample).all()
    for deviations in (1, 2, 3, 4, 5):
        for side in (1, -1):
            assert_plausible_count(np.sum(side * sample > deviations), sample.size, stats.norm.sf(deviations))


@pytest.mark.parametrize("size", [1, 7, 8])
def test_normals_of_a_model_are_jointly_normal(size):
    """Their squared norm has the chi-square law, and so has that of every rotation of them."""
    sample = draw(100_000, (size,)).astype(np.float64)
    assert stats.kstest(np.sum(sample**2, axis=1), stats.chi2(size).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(sample @ np.full(size, 1 / math.sqrt(size)), stats.norm.cdf).pvalue > FALSE_ALARM


def test_normals_are_uncorrelated_between_models_and_between_worlds():
    numbers = [0, 1, 2, 3, 2**31, 2**32 - 1]
    keys = model_keys(7, np.repeat(np.array(numbers, np.uint32), 2), np.tile([False, True], 6))
    assert_uncorrelated(*np.asarray(normals(keys.noise, 0, (100_000,))))


def test_the_offset_is_the_address_of_the_first_counter():
    keys = keys_of(3).noise
    sines, cosines = np.split(np.asarray(normals(keys, 1, (200,))), 2, axis=1)
    for offset, pairs in [(0, 1), (1, 5), (37, 63)]:
        part = np.asarray(normals(keys, 1, (2 * pairs,), offset))
        np.testing.assert_array_equal(part[:, :pairs], sines[:, offset : offset + pairs])
        np.testing.assert_array_equal(part[:, pairs:], cosines[:, offset : offset + pairs])


def test_exponentials_are_precise_from_the_smallest_to_the_largest():
    """Rare events at a small sample rate are small exponentials: floats of 24 bits would give none below 6e-8."""
    keys = keys_of(1).sampling
    powers = [2**k for k in range(32)]
    wanted = sorted({0, 1, 2, 3, *powers, *(p - 1 for p in powers), *(2**32 - p for p in powers), 2**31 + 1})
    found = []
    for word in wanted:
        step, index = address_of(np.asarray(keys[0]), word, 0)
        found.append(float(exponentials(keys, step, jnp.asarray(index))[0]))
    uniform = (np.array(wanted, np.float64) + 0.5) / 2**32
    expected = -np.log1p(-uniform)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert (np.diff(found) >= 0).all()
    assert np.sum(np.array(found) < 1e-6) == np.sum(expected < 1e-6) > 20


def test_keys_depend_on_seed_model_world_and_stream_and_never_meet():
    seeds = [0, 1, 2, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1]
    numbers = np.concatenate([np.arange(10_000), [2**31, 2**32 - 1]])
    found = [
        np.asarray(key) for seed in seeds for world in (0, 1) for key in model_keys(seed, numbers, numbers * 0 + world)
    ]
    assert all(key.shape == (numbers.size, 2) and key.dtype == np.uint32 for key in found)
    pairs = np.concatenate(found).astype(np.uint64)
    together = pairs[:, 0] << np.uint64(32) | pairs[:, 1]
    assert np.unique(together).size == together.size == len(seeds) * 2 * len(Keys._fields) * numbers.size
