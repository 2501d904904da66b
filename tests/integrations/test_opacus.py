"""Opacus' accountant: the heuristic of the steps it has recorded, and a warning that it is one."""

import numpy as np
import pytest

from lastiterate import DPSGD, last_iterate, no_amplification
from lastiterate.formatting import spell_up
from lastiterate.integrations.opacus import register_opacus
from tests.integrations.conftest import heuristic_warnings
from tests.integrations.opacus_helpers import engine_of, make_private, model_and_optimizer, train, trains

DELTA = 1e-5
OWN = {"poisson_sampling": False}  # the loader stays as it is

pytestmark = pytest.mark.filterwarnings("ignore::lastiterate.HeuristicWarning")


@pytest.fixture
def calibrating(opacus):
    register_opacus(calibrate_by_heuristic=True)
    yield
    register_opacus()


def shuffled(data):
    import torch

    return torch.utils.data.DataLoader(data, batch_size=160, shuffle=True)


@trains
def test_opacus_trains_with_the_accountant(opacus, digits):
    engine = engine_of(opacus)
    private = make_private(engine, digits, *model_and_optimizer(), noise_multiplier=1.2)
    assert engine.get_epsilon(DELTA) == 0.0
    losses = train(*private, steps=30)
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    run = DPSGD(steps=30, sample_rate=0.1, noise_multiplier=1.2)
    assert len(engine.accountant) == 30
    assert engine.get_epsilon(DELTA) == pytest.approx(last_iterate(run).epsilon(DELTA), rel=1e-12)
    assert DPSGD.from_opacus(engine, loader=private[2]) == run


@trains
def test_an_engine_warns_once_with_the_guarantee_of_its_training(opacus, digits, recorded):
    engine = engine_of(opacus)
    private = make_private(engine, digits, *model_and_optimizer(), noise_multiplier=1.2)
    train(*private, steps=30)
    for _ in range(3):
        engine.get_epsilon(DELTA)
    (warning,) = heuristic_warnings(recorded)
    assert warning.startswith("epsilon 2.402 at delta 1e-5 is what the last-iterate heuristic predicts for 30 steps")
    assert warning.endswith("not a guarantee: composition guarantees 2.957")


@trains
def test_a_restored_engine_answers_and_trains_on(opacus, digits, tmp_path, recorded):
    first = engine_of(opacus)
    options = {"noise_multiplier": 1.2, "loader": shuffled(digits), **OWN}
    private = make_private(first, digits, *model_and_optimizer(), **options)
    train(*private, steps=30)
    first.save_checkpoint(path=tmp_path / "checkpoint.pt", module=private[0])
    second, restored = engine_of(opacus), opacus.accountants.create_accountant("last_iterate")
    again = make_private(second, digits, *model_and_optimizer(), **options)
    second.load_checkpoint(path=tmp_path / "checkpoint.pt", module=again[0])
    restored.load_state_dict(first.accountant.state_dict())
    assert second.get_epsilon(DELTA) == restored.get_epsilon(DELTA) == first.get_epsilon(DELTA)
    warnings = heuristic_warnings(recorded)
    assert len(warnings) == 3
    assert all(
        each.endswith("no_amplification guarantees 6.735 for zero-out neighbours, not for add/remove")
        for each in warnings
    )
    train(*again, steps=3)
    assert len(second.accountant) == 33


@trains
@pytest.mark.parametrize("calibrated", [False, True])
def test_the_warning_knows_that_batches_were_shuffled(opacus, digits, recorded, calibrating, calibrated):
    engine = engine_of(opacus)
    noise = {"target_epsilon": 3.0, "target_delta": DELTA, "epochs": 3} if calibrated else {"noise_multiplier": 1.2}
    private = make_private(engine, digits, *model_and_optimizer(), loader=shuffled(digits), **noise, **OWN)
    train(*private, steps=30)
    engine.get_epsilon(DELTA)
    run = DPSGD.from_opacus(engine, loader=private[2])
    guaranteed = spell_up(no_amplification(run).epsilon(DELTA), 4)
    found = heuristic_warnings(recorded)
    assert len(found) == 1 + calibrated
    for warning in found:
        assert "batches are shuffled, which composition does not cover" in warning
        assert warning.endswith(f"no_amplification guarantees {guaranteed} for zero-out neighbours, not for add/remove")
