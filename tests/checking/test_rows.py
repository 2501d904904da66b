"""Rows by simulation: correct trainings are accused no more often than stated, and stated faults are found."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate.checking import noise_rows, participation_rows
from lastiterate.checking.allowances import Allowances
from lastiterate.checking.declared import Declared
from lastiterate.checking.parameters import flatten
from lastiterate.checking.participation_rows import Counts
from lastiterate.checking.trainings import Setting, Trainings
from tests.tools.trainers import Numpy, short

ERROR, TIMES = 0.05, 200  # an error that shows in so many draws
MOST = 22  # accusations of 200 at an error of 0.05, but for one time in a thousand


def setting(run=None, size=200, error=ERROR):
    declared = Declared(run or li.DPSGD(10, 0.1, 1.0))
    trainings = Trainings(declared, lambda seed, canary, steps: None, True, 0, lambda: None)
    trainings.first = flatten({"w": np.zeros((size // 10, 10))})
    return Setting(declared, trainings, error, Allowances(), None, (0,))


def rng(number):
    return np.random.default_rng([31, number])


ONE_STEP = [
    noise_rows.noise_row,
    noise_rows.without_row,
    noise_rows.law_row,
    noise_rows.again_row,
    noise_rows.distinct_row,
    lambda given, models, variance: noise_rows.excess_row(given, models, 1),
    lambda given, models, variance: noise_rows.several_row(given, models, 3**0.5 * models[::-1], 3, 1.0),
]


@pytest.mark.parametrize("row", range(len(ONE_STEP)))
def test_correct_noise_is_accused_at_most_as_often_as_stated(row):
    given = setting()
    found = [ONE_STEP[row](given, rng(k).standard_normal((16, 200)), 1.0).status for k in range(TIMES)]
    assert found.count("fault") <= MOST
    assert "cannot tell" not in found


@pytest.mark.parametrize("size", [20, 200])
def test_noise_at_the_smallest_fault_is_found_with_the_stated_power(size):
    given = setting(size=size, error=1e-4)
    tests = noise_rows.lower_tests(rng(0).standard_normal((16, size)), given.like, (0,), 1.0, 1e-4)
    share = tests[0].smallest(0.8, 0.99)
    found = [noise_rows.noise_row(given, share * rng(k).standard_normal((16, size)), 1.0).status for k in range(TIMES)]
    assert found.count("fault") >= 0.7 * TIMES


@pytest.mark.parametrize("law", ["uniform", "laplace", "student"])
def test_noise_of_another_law_is_found(law):
    given, shape = setting(error=1e-4), (16, 200)
    drawn = {
        "uniform": rng(0).uniform(-(3**0.5), 3**0.5, shape),
        "laplace": rng(0).laplace(0.0, 0.5**0.5, shape),
        "student": rng(0).standard_t(5, shape) * 0.6**0.5,
    }[law]
    assert noise_rows.law_row(given, drawn, 1.0).status == "fault"


@pytest.mark.parametrize("weights", [li.SGD(1.0), li.SGD(1.0, momentum=0.9)])
def test_participation_is_accused_as_often_as_stated_and_stated_faults_are_found(weights):
    run = li.DPSGD(20, 0.1, 1.0, optimizer=weights)
    given, declared = setting(run), Declared(run)
    strict = setting(run, error=1e-4)
    faults = {"right": 0, "twice": 0, "shuffled": 0}
    for k in range(60):
        for name, factor, sampling in (("right", 1.0, None), ("twice", 2.0, None), ("shuffled", 1.0, "shuffled")):
            drawn = declared.total_weights(rng(k), (15,), factor, sampling) / declared.weights.mean()
            hits = (rng(k).random(150) < 0.1 * factor).astype(float)
            rows = participation_rows.participation_rows(
                Counts(given if name == "right" else strict, drawn, 20, hits), int
            )
            faults[name] += any(row.status == "fault" for row in rows)
    assert faults["right"] <= 15  # two rows of an error of 0.05, but for one time in a thousand
    assert faults["twice"] >= 48
    assert faults["shuffled"] >= 48 or weights.momentum  # of unequal weights an epoch is trained by itself


@pytest.mark.parametrize("kind", ["softmax", "linear"])
def test_a_whole_check_accuses_as_often_as_stated(kind):
    run = short(sample_rate=0.3, steps=6)
    train = Numpy(run, model=kind, features=16, classes=4, examples=40)
    found = [bool(li.check(run, train, seed=seed, error=0.2).faults) for seed in range(25)]
    assert sum(found) <= 13  # of an error of 0.2, but for one time in a thousand
