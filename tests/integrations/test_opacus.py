"""Opacus' accountant: the heuristic of the steps it has recorded, and a warning that it is one."""

import subprocess
import sys
import time

import numpy as np
import pytest

from lastiterate import DPSGD, composition, last_iterate, no_amplification
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


def test_without_opacus_one_sentence_names_the_install_command():
    code = """
import sys
sys.modules["opacus"] = None
from lastiterate.integrations.opacus import register_opacus
assert "torch" not in sys.modules
try:
    register_opacus()
except ImportError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == 'opacus.accountants could not be imported: pip install "lastiterate[opacus]"\n'


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
def test_opacus_finds_the_noise_for_an_epsilon_at_once(opacus, digits, calibrating):
    engine, target = engine_of(opacus), {"target_epsilon": 3.0, "target_delta": DELTA, "epochs": 3}
    start = time.perf_counter()
    private = make_private(engine, digits, *model_and_optimizer(), **target)
    assert time.perf_counter() - start < 2.0
    train(*private, steps=30)
    assert 3.0 - 0.01 <= engine.get_epsilon(DELTA) <= 3.0
    assert DPSGD.from_opacus(engine, loader=private[2]).noise_multiplier == private[1].noise_multiplier


def test_registering_twice_changes_nothing(opacus):
    from opacus.accountants import create_accountant

    first = create_accountant("last_iterate")
    register_opacus()
    assert type(create_accountant("last_iterate")) is type(first)
    assert isinstance(first, opacus.accountants.IAccountant)


def test_an_accountant_is_restored_from_its_state(opacus):
    from opacus.accountants import create_accountant

    accountant, restored = create_accountant("last_iterate"), create_accountant("last_iterate")
    for noise in (1.0, 1.0, 2.0, 1.0):
        accountant.step(noise_multiplier=noise, sample_rate=0.1)
    assert accountant.history == [(1.0, 0.1, 2), (2.0, 0.1, 1), (1.0, 0.1, 1)]
    restored.load_state_dict(accountant.state_dict())
    assert len(restored) == 4
    assert restored.get_epsilon(delta=DELTA, alphas=[2.0]) == accountant.get_epsilon(DELTA)


def test_an_accountant_says_which_recorded_value_is_wrong(opacus):
    accountant = opacus.accountants.create_accountant("last_iterate")
    accountant.step(noise_multiplier=1.0, sample_rate=1.5)
    with pytest.raises(ValueError, match=r"sample_rate must be in \[0, 1\], got 1.5"):
        accountant.get_epsilon(DELTA)


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


def test_the_search_for_noise_of_opacus_warns_once_with_the_guarantee_of_the_noise_it_finds(
    opacus, digits, recorded, calibrating
):
    engine, target = engine_of(opacus), {"target_epsilon": 3.0, "target_delta": DELTA, "epochs": 3}
    _, optimizer, _ = make_private(engine, digits, *model_and_optimizer(), **target)
    guaranteed = composition(DPSGD(30, 0.1, optimizer.noise_multiplier)).epsilon(DELTA)
    (warning,) = heuristic_warnings(recorded)
    assert f"for 30 steps at noise multiplier {optimizer.noise_multiplier:.4g}, not a guarantee" in warning
    assert warning.endswith(f"composition guarantees {spell_up(guaranteed, 4)}")


def test_an_accountant_that_is_handed_a_history_warns_at_once(opacus, recorded, calibrating):
    accountant = opacus.accountants.create_accountant("last_iterate")
    assert accountant.get_epsilon(DELTA) == 0.0
    accountant.history = [(1.0, 0.01, 1000)]
    accountant.get_epsilon(DELTA)
    (warning,) = heuristic_warnings(recorded)
    assert "composition guarantees 1.829 if sampling is Poisson" in warning


@pytest.mark.parametrize("poisson", [True, False])
def test_the_heuristic_sets_no_noise_unless_it_was_asked_for(opacus, digits, poisson):
    engine, target = engine_of(opacus), {"target_epsilon": 8.0, "target_delta": DELTA, "epochs": 3}
    with pytest.raises(ValueError, match=r"does not set the noise.*'prv'.*calibrate_by_heuristic=True\)$"):
        make_private(engine, digits, *model_and_optimizer(), **target, poisson_sampling=poisson)
    accountant = opacus.accountants.create_accountant("last_iterate")
    accountant.history = [(1.0, 0.01, 1000)]
    with pytest.raises(ValueError, match="does not set the noise"):
        accountant.get_epsilon(DELTA)


def test_the_last_registration_decides_whether_the_heuristic_sets_noise(opacus, calibrating):
    search = opacus.accountants.utils.get_noise_multiplier
    asked = {
        "target_epsilon": 8.0,
        "target_delta": DELTA,
        "sample_rate": 0.1,
        "steps": 30,
        "accountant": "last_iterate",
    }
    assert search(**asked) == pytest.approx(0.5, abs=0.2)
    register_opacus()
    with pytest.raises(ValueError, match="does not set the noise"):
        search(**asked)
    with pytest.raises(ValueError, match="calibrate_by_heuristic must be True or False, got 1"):
        register_opacus(calibrate_by_heuristic=1)


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
def test_a_state_of_shuffled_batches_and_a_loader_of_poisson_samples_have_no_guarantee(opacus, digits, recorded):
    first, second = engine_of(opacus), engine_of(opacus)
    options = {"noise_multiplier": 1.2}
    private = make_private(first, digits, *model_and_optimizer(), **options, loader=shuffled(digits), **OWN)
    train(*private, steps=3)
    make_private(second, digits, *model_and_optimizer(), **options)
    second.accountant.load_state_dict(first.accountant.state_dict())
    second.get_epsilon(DELTA)
    (warning,) = heuristic_warnings(recorded)
    assert "composition does not cover this data loader" in warning


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


@trains
def test_the_warning_promises_nothing_for_a_loader_of_another_kind(opacus, digits, recorded):
    engine = engine_of(opacus)
    private = make_private(engine, digits, *model_and_optimizer(), noise_multiplier=1.2, **OWN)
    train(*private, steps=30)
    engine.get_epsilon(DELTA)
    (warning,) = heuristic_warnings(recorded)
    assert warning.endswith("composition does not cover this data loader, whose batches are not Poisson samples")
