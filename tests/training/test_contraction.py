"""By how much steps of shipped regressions contract."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy.stats import binom

import lastiterate as li
from lastiterate.training.problems import _largest_batch, binary_logistic, linear, ridge

GENERATOR = np.random.default_rng(0)
FEATURES = GENERATOR.normal(size=(60, 3))
LABELS = np.where(FEATURES[:, 0] > 0.0, 1.0, -1.0)
RUN = li.DPSGD(100, 0.1, 1.0, clip_norm=0.3, optimizer=li.SGD(0.02, weight_decay=0.5))


@pytest.mark.parametrize("problem", [binary_logistic(FEATURES, LABELS), ridge(FEATURES, LABELS)])
def test_clipped_steps_contract_as_stated(problem: object) -> None:
    stated = li.contraction_of(problem, RUN.replace(optimizer=li.SGD(0.002, weight_decay=0.5)), feature_norm=4.0).value
    rate = 0.002
    x, y = problem.examples

    def step(w: jax.Array, batch: np.ndarray) -> np.ndarray:
        gradients = np.array([jax.grad(problem.loss)(w, (x[i], y[i]), None) for i in batch])
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        clipped = gradients * np.minimum(1.0, 0.3 / np.maximum(norms, 1e-12))
        return (1.0 - rate * 0.5) * w - rate * clipped.sum(axis=0)

    generator = np.random.default_rng(1)
    for _ in range(12):
        first, second = (generator.normal(size=3).astype(np.float32) * 3.0 for _ in range(2))
        batch = generator.permutation(60)[: generator.integers(1, 12)]
        moved = np.linalg.norm(step(first, batch) - step(second, batch))
        assert moved <= stated * np.linalg.norm(first - second) * (1.0 + 1e-5)


def test_what_may_expand_is_refused() -> None:
    from lastiterate.data import digits
    from lastiterate.training.problems import logistic

    with pytest.raises(ValueError, match="learning_rate"):
        li.contraction_of(ridge(FEATURES, LABELS), RUN.replace(optimizer=li.SGD(1.0)), feature_norm=4.0)
    with pytest.raises(ValueError, match="clip_norm"):
        li.contraction_of(logistic(digits()), RUN, feature_norm=9.0)
    with pytest.raises(ValueError, match="problem"):
        li.contraction_of(linear(FEATURES), RUN, feature_norm=4.0)
    with pytest.raises(ValueError, match="optimizer"):
        li.contraction_of(ridge(FEATURES, LABELS), RUN.replace(optimizer=None), feature_norm=4.0)
    with pytest.raises(ValueError, match="labels"):
        binary_logistic(FEATURES, np.zeros(60))


def test_batches_of_copies_are_binomial_in_all_copies():
    examples = np.zeros((4, 1), np.float32)
    problem = replace(ridge(examples, np.zeros(4)), multiplicity=np.array([5, 1, 3, 1]))
    run = li.DPSGD(20, 0.3, 1.0)
    size, missed = _largest_batch(problem, run, 0.01)
    assert missed == pytest.approx(20 * binom.sf(size, 10, 0.3))
    assert missed <= 0.01 < 20 * binom.sf(size - 1, 10, 0.3)


def test_features_above_the_bound_are_refused_without_telling_their_norm() -> None:
    with pytest.raises(ValueError, match=r"^feature_norm must bound .* some exceed 1\.0: .*clip_features"):
        li.contraction_of(ridge(FEATURES, LABELS), RUN, feature_norm=1.0)
    for bound in (0.0, -1.0, np.inf, None):
        with pytest.raises(ValueError, match="feature_norm"):
            li.contraction_of(ridge(FEATURES, LABELS), RUN, feature_norm=bound)
