"""A sample of ``fuzz_calls``. About 20 seconds on an idle machine."""

import pytest

import lastiterate as li
from lastiterate import attacks, training
from lastiterate.training import problems
from tests.tools.fuzz_calls import run_calls, targets

RUN = li.DPSGD(steps=3, sample_rate=0.5, noise_multiplier=1.0, optimizer=li.SGD(0.1))


@pytest.mark.slow
def test_hostile_values_are_refused_by_the_name_of_their_argument():
    found = [(called, called.fault()) for called in run_calls(300, seed=0)]
    assert [(called.target, called.hostile, fault) for called, fault in found if fault] == []


def test_all_public_names_are_called():
    called = {target.name.partition(".")[0] for target in targets() if not target.name[0].islower()}
    called |= {target.name for target in targets()}
    exceptions = {"HeuristicWarning", "TrainerFailed"}
    assert set(li.__all__) - exceptions <= called


def _score(seed, canary):
    return float(canary)


def test_a_check_of_more_steps_than_can_be_told_apart_is_refused():
    with pytest.raises(ValueError, match=r"^steps must be an integer in \[1, 1000000\], got 9007199254740992"):
        li.check(li.DPSGD(2**53, 1e-9, 1.0), _score)


@pytest.mark.parametrize("wrong", [lambda: 0.0, lambda seed: 0.0, len, li.last_iterate])
def test_a_trainer_that_cannot_take_seed_and_canary_is_refused_before_it_is_called(wrong):
    with pytest.raises(ValueError, match=r"^problem must be a trainer that takes \(seed, canary\), got one "):
        li.audit(RUN, wrong, models=2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"store": ""}, "store must be the path of a file, or None to keep nothing, got ''"),
        ({"store": 3}, "store must be the path of a file, or None to keep nothing, got 3"),
        ({"attack": attacks.GradientSpace}, "attack must be None or .*, got the class GradientSpace"),
        ({"methods": "gdp"}, "methods must be a list of at least one method"),
        ({"progress": "no"}, "progress must be True or False, got 'no'"),
        ({"test": 3}, "test must be a pair of arrays"),
        ({"data": 3}, "data must be a description of the problem in words"),
        ({"claim_epsilon": 1e9}, "claim_epsilon must be an epsilon that the run can have"),
        ({"claim_noise": 1e300}, r"claim_noise must be in \[1e-30, 1e\+30\]"),
    ],
)
def test_an_audit_refuses_before_it_trains(options, sentence):
    def train(seed, canary):
        pytest.fail("it was called")

    with pytest.raises(ValueError, match=f"^{sentence}"):
        li.audit(RUN, train, **({"models": 2} | options))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"clip_norm": 1e300}, "clip_norm must be in"),
        ({"noise_multiplier": 1e30, "clip_norm": 1e10}, "clip_norm times noise_multiplier must be in"),
        ({"optimizer": li.SGD(1e300)}, "learning_rate must be in"),
    ],
)
def test_numbers_that_single_precision_cannot_hold_are_refused_before_training(change, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}"):
        training.train(RUN.replace(**change), problems.linear())
