"""Every fault of the zoo is found with 32 models, by a row that names it, if the trainer takes the number of steps."""

import numpy as np
import pytest

import lastiterate as li
from tests.tools.zoo.faults import (
    FAULTS,
    FEW_STEPS,
    POISSON,
    NotANumber,
    NotANumberWithACanary,
    ShapesThatChange,
    TensorsThatChange,
)
from tests.tools.zoo.own import OTHERS, own
from tests.tools.zoo.trainer import Trainer

# Rows that name a fault of a category. Every row depends on the size of a step, so that other rows may, too.
ROWS = {
    "noise": {"noise", "noise of three steps", "noise of the last step", "noise that is used again", "excess noise"},
    "clipping": {"clipping norm", "clipping of small gradients", "clipping just above the norm", "clipping of others"},
    "participation": {"participation", "participation over seeds", "copies in a batch"},
    "normalisation": {"normalisation", "size of steps", "no steps", "noise"},
    "optimizer": {"size of steps", "noise of three steps", "noise of the last step", "noise"},
    "seeds": {"equal seeds", "different seeds", "participation over seeds"},
}
ROWS["noise"] |= {"law of the noise", "parameters without noise"}
OUT_OF_REACH = {"weight_decay_that_is_not_declared"}  # a loss may pull all parameters alike
UNDECIDED = {"the_canary_makes_others_weigh_less"}  # looks like worlds that do not share batches
# Without the number of steps, curvature might explain these, or the law of one step does not show.
LONG = {"half_the_noise", "no_noise", "no_clipping", "clipping_by_layer", "twice_the_sample_rate"}
LONG |= {"clipping_norm_of_three_halves", "normalising_instead_of_clipping", "the_canary_in_every_batch"}
LONG |= {"shuffled_where_poisson_is_declared", "repeated_noise", "same_noise_in_all_models", "seeds_that_are_ignored"}


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_fault_is_found(fault):
    result = li.check(fault.run, fault.train, batch_size=fault.batch_size)
    if fault.name in OUT_OF_REACH:
        return
    assert not result.passed
    if fault.name in UNDECIDED:
        return
    assert {row.name for row in result.faults} & ROWS[fault.category], result.sentence
    assert all(row.advice for row in result.faults)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.name in LONG], ids=str)
def test_the_fault_is_found_without_the_number_of_steps(fault):
    result = li.check(fault.run, lambda seed, canary: fault.train(seed, canary))
    assert result.faults, str(result)
    assert any("train(seed, canary, steps)" in note for note in result.notes)


@pytest.mark.parametrize("name", OTHERS)
def test_our_own_trainer_is_correct_and_faults_of_another_run_are_found(name):
    fault = own(name)
    result = li.check(fault.run, fault.train)
    assert result.passed if name == "right" else {row.name for row in result.faults} & ROWS[fault.category], result


@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_a_correct_training_in_single_precision_passes(momentum):
    class Single(Trainer):
        def __call__(self, seed, canary, steps=None):
            return {k: value.astype(np.float32) for k, value in super().__call__(seed, canary, steps).items()}

    run = FEW_STEPS.replace(optimizer=li.SGD(2e-4, momentum=momentum))
    result = li.check(run, Single(run))
    assert result.passed, result


@pytest.mark.parametrize("broken", [NotANumber, ShapesThatChange, TensorsThatChange], ids=lambda cls: cls.__name__)
def test_what_cannot_be_compared_is_a_sentence(broken):
    with pytest.raises(li.TrainerFailed, match="parameters must"):
        li.check(POISSON, broken(POISSON), models=8)


def test_a_canary_that_breaks_the_training_is_a_fault_of_clipping():
    result = li.check(POISSON, NotANumberWithACanary(POISSON))
    assert any(row.name == "clipping norm" for row in result.faults)
