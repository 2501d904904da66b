"""What a run says about one training, against training itself."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate.checking.declared import Declared
from tests.tools.trainers import Numpy, short

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


@pytest.mark.parametrize("sampling", ["poisson", "shuffled", "fixed"])
@pytest.mark.parametrize("optimizer", [li.SGD(0.5), li.SGD(0.5, momentum=0.9)])
def test_total_weights_have_the_mean_of_the_declared_rate(sampling, optimizer):
    declared = Declared(li.DPSGD(10, 0.2, 1.0, sampling=sampling, optimizer=optimizer))
    drawn = declared.total_weights(np.random.default_rng(0), 20_000)
    assert drawn.mean() == pytest.approx(float(declared.weights @ declared.rates), rel=0.03)
    if sampling == "shuffled" and not optimizer.momentum:
        assert np.all(drawn == 1.0)  # twice a weight of a half
    else:
        spread = np.sum(declared.weights**2) * 0.2 * 0.8
        assert drawn.var() <= 1.05 * spread


def test_a_prefix_has_the_weights_of_a_shorter_run():
    declared = Declared(short(optimizer=li.SGD(np.linspace(1.0, 0.1, 10), momentum=0.5)))
    assert declared.prefix(1).weights.tolist() == [1.0]
    assert declared.prefix(2).weights == pytest.approx([1.0 + 0.5 * 0.9, 0.9])
