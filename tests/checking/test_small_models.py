"""Linear regression with few parameters: curvature is the same everywhere, and batches differ as much as noise."""

from __future__ import annotations

import numpy as np
import pytest

import lastiterate as li

EXAMPLES = 300


def regression(steps, rate, learning, noise=1.0, clip_norm=4.0, shared=True, features=20):
    """A run and its training, on standard normal features."""
    sgd = li.SGD(learning / (rate * EXAMPLES))
    run = li.DPSGD(steps, rate, 1.0, clip_norm=clip_norm, optimizer=sgd)
    data = np.random.default_rng(9)
    x = data.standard_normal((EXAMPLES, features))
    y = x @ data.standard_normal(features)

    def train(seed, canary):
        rng = np.random.default_rng(seed)
        w = np.zeros(features)
        for _ in range(steps):
            which = rng.random(EXAMPLES) < rate
            gradients = (x[which] @ w - y[which])[:, None] * x[which]
            if (shared or canary is not False) and rng.random() < rate and canary is not False:
                gradients = np.vstack([gradients, canary])
            norms = np.linalg.norm(gradients, axis=1, keepdims=True)
            total = (gradients / np.maximum(1.0, norms / clip_norm)).sum(axis=0)
            w = w - learning / (rate * EXAMPLES) * (total + noise * clip_norm * rng.standard_normal(features))
        return w

    return run, train


@pytest.mark.parametrize("shared", [True, False])
def test_strong_curvature_of_one_tensor_is_no_fault(shared):
    run, train = regression(20, 0.5, 1.0, shared=shared)
    assert not li.check(run, train, models=32).faults


@pytest.mark.parametrize("noise", [1.0, 0.5, 0.0])
def test_noise_that_batches_hide_is_not_called_ok(noise):
    run, train = regression(10, 0.1, 0.05, noise=noise, clip_norm=1.0)
    result = li.check(run, train, models=32)
    assert not result.passed
    assert [row.status for row in result.rows if row.name == "noise"] == ["cannot tell"]


def test_a_canary_that_is_twice_in_a_batch_is_known_by_its_even_counts():
    run, train = regression(10, 0.1, 0.001, features=100)

    def twice(seed, canary):
        plain = train(seed, False)
        return plain if canary is False else 2.0 * train(seed, canary) - plain

    assert not li.check(run, train, models=40).faults
    faults = li.check(run, twice, models=40).faults
    assert [row.name for row in faults] == ["participation"]
    assert "twice in a batch" in faults[0].advice


def test_few_batches_are_no_fault_where_curvature_takes_what_they_did():
    run, train = regression(40, 0.5, 0.3)
    assert not li.check(run, train, seed=2146).faults
