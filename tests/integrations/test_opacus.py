"""Opacus' accountant: the heuristic of the steps it has recorded, and a warning that it is one."""

import subprocess
import sys
import time

import numpy as np
import pytest

from lastiterate import DPSGD, composition, last_iterate
from lastiterate.integrations.opacus import register_opacus
from tests.integrations.conftest import heuristic_warnings
from tests.integrations.opacus_helpers import engine_of, make_private, model_and_optimizer, train, trains

DELTA = 1e-5

pytestmark = pytest.mark.filterwarnings("ignore::lastiterate.HeuristicWarning")


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
def test_opacus_finds_the_noise_for_an_epsilon_at_once(opacus, digits):
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
    assert warning.startswith("epsilon 2.401 at delta 1e-05 is what the last-iterate heuristic predicts for 30 steps")
    assert warning.endswith("not a guarantee: composition guarantees 2.956 if sampling is Poisson")


def test_the_search_for_noise_of_opacus_warns_once_with_the_guarantee_of_the_noise_it_finds(opacus, digits, recorded):
    engine, target = engine_of(opacus), {"target_epsilon": 3.0, "target_delta": DELTA, "epochs": 3}
    _, optimizer, _ = make_private(engine, digits, *model_and_optimizer(), **target)
    guaranteed = composition(DPSGD(30, 0.1, optimizer.noise_multiplier)).epsilon(DELTA)
    (warning,) = heuristic_warnings(recorded)
    assert f"for 30 steps at noise multiplier {optimizer.noise_multiplier:.4g}, not a guarantee" in warning
    assert f"composition guarantees {guaranteed:.4g} if sampling is Poisson" in warning


def test_an_accountant_that_is_handed_a_history_warns_at_once(opacus, recorded):
    accountant = opacus.accountants.create_accountant("last_iterate")
    assert accountant.get_epsilon(DELTA) == 0.0
    accountant.history = [(1.0, 0.01, 1000)]
    accountant.get_epsilon(DELTA)
    (warning,) = heuristic_warnings(recorded)
    assert "composition guarantees 1.828" in warning
