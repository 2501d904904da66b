"""A check of a training with Adam: correct ones are never called faulty, and noise is never said to be right."""

import numpy as np
import pytest

import lastiterate as li
from tests.tools.trainers import Numpy, short

ADAMS = {
    "adam": li.Adam(0.002),
    "adamw": li.Adam(0.002, weight_decay=0.5, decoupled=True),
    "l2": li.Adam(0.002, weight_decay=0.5),
    "no momentum": li.Adam(0.01, beta1=0.0, beta2=0.9),
    "schedule": li.Adam(np.linspace(0.01, 0.001, 10), eps=0.1),
}
NOT_CHECKED = {"clipping norm", "clipping of small gradients", "normalisation"}


def checked(trainer, models=32, run=None, **more):
    result = li.check(run or trainer.run, trainer, models=models, **more)
    told = any(row.name == "noise" and row.status == "ok" for row in result.rows)
    assert told or not result.passed  # the noise was not measured, and nobody may think so
    return result


@pytest.mark.parametrize("name", ADAMS)
@pytest.mark.parametrize("model", ["softmax", "mlp", "mean"])
@pytest.mark.parametrize("sampling", ["poisson", "full", "shuffled"])
def test_correct_trainings_have_no_fault_and_are_told_what_was_not_checked(name, model, sampling):
    rate = 1.0 if sampling == "full" else 0.2
    trainer = Numpy(short(optimizer=ADAMS[name], sampling=sampling, sample_rate=rate), model=model)
    result = checked(trainer)
    assert not result.faults, result
    assert {row.name for row in result.rows if row.status == "not checked"} >= NOT_CHECKED
    assert any(row.name == "clipping of large gradients" and row.status == "ok" for row in result.rows)
    assert "Check the same training with SGD instead of Adam" in " ".join(str(result).split())


def test_many_correct_trainings_have_no_fault():
    """Twenty-five of them, of little and of much noise, short and longer, batches small and large."""
    rng = np.random.default_rng(0)
    for seed in range(25):
        steps = int(rng.choice([1, 2, 5, 20]))
        run = short(
            steps=steps,
            sample_rate=float(rng.choice([0.05, 0.3, 0.8])),
            noise_multiplier=float(rng.choice([0.1, 1.0, 10.0])),
            clip_norm=float(rng.choice([0.1, 1.0, 5.0])),
            optimizer=li.Adam(float(rng.choice([1e-4, 1e-2])), float(rng.choice([0.0, 0.9])), 0.99),
        )
        model = str(rng.choice(["softmax", "mlp", "mean", "linear"]))
        result = checked(Numpy(run, model=model, examples=60, data_seed=seed), models=10, seed=seed)
        assert not result.faults, (seed, run, model, str(result))


@pytest.mark.parametrize(
    ("fault", "size", "row"),
    [
        ("no clipping", 1.0, "clipping of large gradients"),
        ("clip norm", 2.0, "clipping of large gradients"),
        ("by layer", 1.0, "clipping of large gradients"),
        ("by column", 1.0, "clipping of large gradients"),
        ("by coordinate", 1.0, "clipping of large gradients"),
        ("after averaging", 1.0, "clipping of large gradients"),
        ("micro-batches", 1.0, "clipping of large gradients"),
        ("bias not clipped", 1.0, "clipping of large gradients"),
        ("unseeded", 1.0, "equal seeds"),
        ("one seed", 1.0, "different seeds"),
    ],
)
def test_faults_that_show_whatever_the_optimizer_is_are_found(fault, size, row):
    trainer = Numpy(short(optimizer=li.Adam(0.002), noise_multiplier=2.0), fault=fault, size=size)
    result = checked(trainer)
    assert row in {each.name for each in result.faults}, result


@pytest.mark.parametrize(("fault", "size"), [("noise", 0.02), ("noise", 0.2)])
def test_noise_that_is_missing_shows_where_sampling_does_not_hide_it(fault, size):
    run = short(optimizer=li.Adam(0.002), noise_multiplier=4.0)
    result = checked(Numpy(run, fault=fault, size=size, examples=10, **dict(features=64, classes=10)))
    assert "noise" in {each.name for each in result.faults}, result


@pytest.mark.parametrize("declared", [0.5, 1.0])
def test_a_first_step_larger_than_the_learning_rate_is_found(declared):
    """The first step of Adam is at most its learning rate: a training of 0.002 that declares half of it is a fault."""
    run = short(optimizer=li.Adam(0.002 * declared))
    result = checked(Numpy(run.replace(optimizer=li.Adam(0.002))), run=run)
    (row,) = (row for row in result.rows if row.name == "size of steps")
    assert row.status == ("ok" if declared == 1.0 else "fault")
    assert row.measured == pytest.approx(1.0 / declared, rel=1e-3)


def test_a_canary_that_is_always_in_is_found():
    run = short(steps=2, sample_rate=0.05, optimizer=li.Adam(0.002))
    result = checked(Numpy(run, fault="always in"))
    assert "participation" in {row.name for row in result.faults}, result


def test_our_own_trainer_is_checked_with_adam():
    from lastiterate.data import digits
    from lastiterate.integrations.own_trainer import own_trainer
    from lastiterate.training.problems import logistic

    run = li.DPSGD(20, 0.1, 2.0, optimizer=li.Adam(0.001))
    result = li.check(run, own_trainer(run, logistic(digits())), models=16)
    assert not result.faults, result
    assert any(row.name == "clipping of large gradients" and row.status == "ok" for row in result.rows)
