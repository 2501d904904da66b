"""What a run says about one training, against training itself."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate.checking.declared import Declared
from tests.checking.trainers import Numpy, short

OPTIMIZERS = [
    li.SGD(0.01),
    li.SGD(0.01, momentum=0.9, nesterov=True, weight_decay=3.0),
    li.SGD(np.linspace(0.02, 0.001, 10), momentum=0.5, dampening=0.1, weight_decay=5.0, decoupled=True),
    li.SGD(0.01, averaging="uniform", weight_decay=5.0),
    li.SGD(0.01, momentum=0.5, averaging=0.7, weight_decay=5.0),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_noise_and_initial_values_are_what_training_leaves_of_them(optimizer):
    run = short(optimizer=optimizer, noise_multiplier=np.linspace(1, 2, 10))

    class Ones(Numpy):
        def initial(self, seed=0):
            return {"m": np.ones(20_000)}

        def gradients(self, p, which):
            return {"m": np.zeros((len(which), 20_000))}

    found = Ones(run, model="linear")(5, False)["m"]
    declared = Declared(run)
    assert found.var() == pytest.approx(declared.variance, rel=0.05)
    assert found.mean() == pytest.approx(declared.memory, abs=5 * np.sqrt(declared.variance / 20_000))


def test_sums_are_all_that_batches_can_give():
    plain = Declared(short(steps=3, optimizer=li.SGD(0.5)))
    assert plain.sums.tolist() == [0.0, 0.5, 1.0, 1.5]
    weighted = Declared(li.DPSGD(2, 0.5, 1.0, weights=[1.0, 3.0]))
    assert weighted.sums.tolist() == [0.0, 1.0, 3.0, 4.0]
    full = Declared(li.DPSGD(2, 1.0, 1.0, sampling="full", weights=[1.0, 3.0]))
    assert full.sums.tolist() == [4.0]
    shuffled = Declared(li.DPSGD(5, 0.5, 1.0, sampling="shuffled"))
    assert shuffled.sums.tolist() == [2.0, 3.0]
    assert Declared(li.DPSGD(60, 0.5, 1.0, weights=np.arange(1.0, 61.0))).sums is None


def test_what_nothing_can_take_away_and_what_repetition_adds():
    declared = Declared(li.DPSGD(4, 0.5, 1.0))
    assert declared.last == 0.25
    assert declared.repeated == 4.0
    assert declared.most == 4.0
