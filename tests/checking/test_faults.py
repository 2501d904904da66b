"""Every fault of the zoo is found with at most 32 models, by a row that names it. About half a second each."""

from __future__ import annotations

import numpy as np
import pytest

import lastiterate as li
from tests.checking.zoo.faults import (
    FAULTS,
    POISSON,
    NotANumber,
    NotANumberWithACanary,
    ShapesThatChange,
    TensorsThatChange,
)
from tests.checking.zoo.own import OTHERS, own
from tests.checking.zoo.subtle import FEW_STEPS  # whose faults are registered with the others
from tests.checking.zoo.trainer import Trainer

# What a row that names a fault of a category may be called. How far a step carries is in all of them, so that a wrong
# optimizer shows as noise or as participation where sums of weights are too many to tell apart.
ROWS = {
    "noise": {
        "noise",
        "noise in quiet parameters",
        "noise in two tensors",
        "noise between the closest models",
        "parameters without noise",
        "noise that is used again",
        "law of the noise",
        "noise in parameters without gradients",
    },
    "clipping": {
        "clipping norm",
        "clipping of one coordinate",
        "clipping of one tensor",
        "clipping of small gradients",
        "clipping of others",
    },
    "participation": {"participation", "participation over seeds", "size of steps"},
    "normalisation": {"normalisation"},
    "optimizer": {"size of steps", "participation", "noise", "noise in quiet parameters"},
    "seeds": {"equal seeds", "different seeds", "participation over seeds"},
}


def assert_found(fault):
    result = li.check(fault.run, fault.train, models=fault.models, batch_size=fault.batch_size)
    assert not result.passed
    if not fault.found:
        return
    assert {row.name for row in result.faults} & ROWS[fault.category], [row.name for row in result.faults]
    assert all(row.advice for row in result.faults)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_fault_is_found(fault):
    assert fault.models <= 32
    assert_found(fault)


@pytest.mark.parametrize("name", [name for name in OTHERS if name != "right"])
def test_the_fault_is_found_in_our_own_trainer(name):
    pytest.importorskip("jax")
    assert_found(own(name))


@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_a_correct_training_in_single_precision_passes(momentum):
    class Single(Trainer):
        def __call__(self, seed, canary):
            return {name: value.astype(np.float32) for name, value in super().__call__(seed, canary).items()}

    run = FEW_STEPS.replace(optimizer=li.SGD(2e-4, momentum=momentum))
    assert li.check(run, Single(run), models=32).passed


def test_our_own_trainer_is_correct():
    pytest.importorskip("jax")
    right = own("right")
    assert li.check(right.run, right.train).passed


@pytest.mark.parametrize("name", ["noise", "bias", "seed", "clipping", "layers", "momentum", "shuffled"])
def test_the_fault_is_found_in_opacus(name):
    pytest.importorskip("opacus")
    from tests.checking.zoo.opacus import opacus_fault

    assert_found(opacus_fault(name))


@pytest.mark.parametrize("broken", [NotANumber, ShapesThatChange, TensorsThatChange], ids=lambda cls: cls.__name__)
def test_what_cannot_be_compared_is_a_sentence(broken):
    with pytest.raises(li.TrainerFailed, match="parameters must"):
        li.check(POISSON, broken(POISSON), models=8)


def test_a_canary_that_breaks_the_training_is_a_fault_of_clipping():
    result = li.check(POISSON, NotANumberWithACanary(POISSON))
    assert any(row.name == "clipping norm" for row in result.faults)
