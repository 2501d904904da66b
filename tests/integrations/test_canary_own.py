"""Our own trainer, as `lastiterate.check` takes it."""

from __future__ import annotations

import numpy as np
import pytest

from lastiterate.data import digits
from lastiterate.integrations.own_trainer import own_trainer
from lastiterate.optimizer import SGD
from lastiterate.run import DPSGD
from lastiterate.training.problems import logistic

RATE = 1e-4
RUN = DPSGD(20, 0.25, 1.0, clip_norm=0.5, optimizer=SGD(RATE))


def test_seeds_give_models_again_and_both_worlds_share_their_noise():
    train = own_trainer(RUN, logistic(digits()))
    without, again, other = train(3, False), train(3, False), train(4, False)
    assert {name: leaf.shape for name, leaf in without.items()} == {"weight": (64, 10), "bias": (10,)}
    assert np.array_equal(without["weight"], again["weight"])
    dark = (without["weight"] - other["weight"])[::8]  # pixels that move by noise alone
    assert np.std(dark) == pytest.approx(RATE * 0.5 * np.sqrt(2 * 20), rel=0.25)
    canary = {"weight": np.zeros((64, 10)), "bias": np.zeros(10)}
    canary["weight"][0, 0] = 100.0  # of a pixel that is always dark
    moved = train(3, canary)["weight"][0, 0] - without["weight"][0, 0]
    assert -moved / (RATE * 0.5) == pytest.approx(round(-moved / (RATE * 0.5)), abs=0.02)
    assert moved < 0.0
