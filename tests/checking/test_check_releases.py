"""What a check does with runs that release several iterates, or protect people: it says so. About 5 seconds."""

import numpy as np

import lastiterate as li
from lastiterate.integrations.own_trainer import own_trainer
from lastiterate.training import problems

PROBLEM = problems.linear(np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32))


def test_a_check_looks_at_the_last_iterate_and_at_single_examples_and_says_so():
    run = li.DPSGD(8, 0.5, 1.0, optimizer=li.SGD(0.1), releases=4, group_size=3, neighbours="replace")
    result = li.check(run, own_trainer(run, PROBLEM), models=16)
    assert not result.faults
    assert any("Of the 4 released iterates only the last one is checked" in note for note in result.notes)
    assert any("group_size and neighbours are not checked" in note for note in result.notes)
