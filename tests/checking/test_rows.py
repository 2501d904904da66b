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
    trainings = Trainings(declared, lambda seed, canary, steps: None, 0, lambda: None)
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
    tests = noise_rows.lower_tests(rng(0).standard_normal((16, size)), given.trainings.like, (0,), 1.0, 1e-4)
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
def test_the_rate_is_accused_as_often_as_stated_and_twice_the_rate_is_found(weights):
    run = li.DPSGD(20, 0.1, 1.0, optimizer=weights)
    declared, found = Declared(run), {1.0: 0, 2.0: 0}
    for k in range(60):
        for factor in found:
            drawn = declared.total_weights(rng(k), 15, factor=factor) / declared.weights.mean()
            hits = (rng(k).random(150) < 0.1 * factor).astype(float)
            counts = Counts(setting(run, error=ERROR if factor == 1.0 else 1e-4), drawn, hits)
            found[factor] += participation_rows.rate_row(counts, int).status == "fault"
    assert found[1.0] <= 9  # an error of 0.05, but for one time in a thousand
    assert found[2.0] >= 48


@pytest.mark.parametrize("sampling", ["poisson", "shuffled", "balls-in-bins"])
def test_one_epoch_tells_independent_batches_from_those_with_each_example_once(sampling):
    """Twenty-five seeds of one epoch of ten batches."""
    run = li.DPSGD(20, 0.1, 1.0, sampling=sampling)
    given = setting(run, error=1e-4)
    seeds = max(16, participation_rows.trials_to_tell(given, *participation_rows.one_epoch(given)))
    independent = rng(1).random(seeds) < 1.0 - 0.9**10
    rows = [participation_rows.epoch_row(given, taken) for taken in (independent, np.ones(seeds, bool))]
    assert [row.status for row in rows] == (["ok", "fault"] if sampling == "poisson" else ["fault", "ok"])


@pytest.mark.parametrize("kind", ["softmax", "linear"])
def test_a_whole_check_accuses_as_often_as_stated(kind):
    run = short(sample_rate=0.3, steps=6)
    train = Numpy(run, model=kind, features=16, classes=4, examples=40)
    found = [bool(li.check(run, train, seed=seed, error=0.2).faults) for seed in range(25)]
    assert sum(found) <= 13  # of an error of 0.2, but for one time in a thousand
