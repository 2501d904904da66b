"""Parameters that no gradient moves show steps and noise exactly. A second in all."""

from __future__ import annotations

import numpy as np
import pytest

import lastiterate as li
from lastiterate.checking.canary_effects import dead_parameters, effect_of
from tests.checking.correct import random_training

EXAMPLES, STEPS, RATE, LEARNING = 200, 10, 0.2, 0.005
RUN = li.DPSGD(STEPS, RATE, 1.0, clip_norm=1.0, optimizer=li.SGD(LEARNING))
DEAD = "noise in parameters without gradients"


def softmax(rates=None, noise=1.0, decay=0.0, averaging=0.0, dtype=np.float64):
    """Softmax regression by hand, on features of which an eighth is always zero."""
    data = np.random.default_rng(3)
    x, y = data.random((EXAMPLES, 48)), data.integers(0, 10, EXAMPLES)
    x[:, :6] = 0.0
    rates = np.full(STEPS, LEARNING) if rates is None else rates

    def train(seed, canary):
        rng = np.random.default_rng(seed)
        w, mean = np.zeros((48, 10), dtype), np.zeros((48, 10), dtype)
        for rate in rates:
            drawn = rng.random(EXAMPLES + 1) < RATE
            which = np.flatnonzero(drawn[:-1])
            logits = x[which] @ w
            error = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            error[np.arange(len(which)), y[which]] -= 1.0
            gradients = list(x[which][:, :, None] * error[:, None, :])
            if drawn[-1] and canary is not False:
                gradients.append(np.asarray(canary["w"]))
            clipped = sum(g / max(1.0, float(np.linalg.norm(g))) for g in gradients)
            step = rate * (clipped + noise * rng.standard_normal(w.shape)) + decay * w
            w = (w - step).astype(dtype)
            mean = averaging * mean + (1.0 - averaging) * w
        return {"w": mean}

    return train


def rows(train, **options):
    return {row.name: row for row in li.check(RUN, train, **options).rows}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_correct_training_has_its_noise_where_no_gradient_is(dtype):
    result = li.check(RUN, softmax(dtype=dtype))
    assert result.passed
    assert DEAD in {row.name for row in result.rows}


@pytest.mark.parametrize("noise", [0.7, 0.5])
def test_less_noise_is_told_from_curvature(noise):
    row = rows(softmax(noise=noise))[DEAD]
    assert row.status == "fault"
    assert row.low < noise**2 < row.high


@pytest.mark.parametrize(
    "fault",
    [
        dict(rates=LEARNING * 0.5 * (1.0 + np.cos(np.pi * np.arange(STEPS) / STEPS))),
        dict(rates=np.where(np.arange(STEPS) < 5, LEARNING, LEARNING / 10.0)),
        dict(rates=np.full(STEPS, 1.1 * LEARNING)),
        dict(decay=0.1),
        dict(averaging=0.9),
    ],
    ids=["cosine", "two rates", "another rate", "strong decay", "averaging"],
)
def test_steps_that_count_otherwise_than_declared_are_a_fault(fault):
    assert rows(softmax(**fault))["size of steps"].status == "fault"


def test_only_coordinates_that_agree_where_others_differ_are_dead():
    rng = np.random.default_rng(0)
    direction = rng.choice([-1.0, 1.0], 100) / 10.0
    kept = np.concatenate([np.ones(20), rng.uniform(0.9, 0.99, 80)])
    effect = effect_of(0, -2.0 * kept * direction, direction, 1.0, 1.0, 1e-4)
    found = dead_parameters([effect], 1e-12)
    assert found is not None
    assert found.tolist() == list(range(20))
    two_groups = np.repeat([0.9, 0.8], 50)  # curvature that is the same for many
    assert dead_parameters([effect_of(0, -two_groups * direction, direction, 1.0, 1.0, 1e-4)], 1e-12) is None


def test_a_loss_that_pulls_all_parameters_alike_is_no_fault():
    training = random_training(70354)  # of a mean, some of whose features are always zero
    assert training.train.model == "mean"
    assert not training.check().faults
