"""What one run can show, planned and simulated."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate.auditing.evidence.one_run.guesses import bound_by_counts, usual_guesses
from lastiterate.auditing.evidence.one_run.one_run_power import OneRunPlan, best_guesses
from tests.auditing.evidence.test_one_run_family import SHUFFLED, SPARSE, counts

GAUSSIAN = li.DPSGD(1, 1.0, 1.0)
CASES = [(SPARSE, 200, 60), (SPARSE, 1000, 90), (GAUSSIAN, 500, 500), (GAUSSIAN, 500, 21), (SHUFFLED, 300, 40)]


@pytest.mark.parametrize(("run", "canaries", "guesses"), CASES)
def test_the_expected_share_of_right_guesses_is_that_of_simulated_audits(run, canaries, guesses):
    right = counts(run, canaries, guesses, audits=400)
    plan = OneRunPlan(run, canaries, guesses)
    assert plan.accuracy == pytest.approx(right.mean() / guesses, abs=4.0 * right.std() / guesses / 20.0 + 0.003)


@pytest.mark.parametrize(("run", "canaries", "guesses"), CASES)
def test_the_chance_to_refute_is_the_share_of_simulated_audits_that_do(run, canaries, guesses):
    right = counts(run, canaries, guesses, audits=400)
    plan = OneRunPlan(run, canaries, guesses)
    for claim in (0.5, run.replace(noise_multiplier=1.7 * run.noise_multiplier)):
        needed = plan.right_to_refute(claim)
        share = 0.0 if needed is None else float(np.mean(right >= needed))
        assert plan.chance_to_refute(claim) == pytest.approx(share, abs=0.08)


def test_the_median_is_what_half_of_the_audits_find():
    plan = OneRunPlan(SPARSE, 1000, 90)
    right = int(np.median(counts(SPARSE, 1000, 90, audits=400)))
    one_more_or_less = [
        bound_by_counts("one-run-fdp", 1000, 90, right + by, 1e-5, 1.0 - 0.95).epsilon for by in (-1, 0, 1)
    ]
    assert plan.median("one-run-fdp") in one_more_or_less
    assert plan.median("one-run") < plan.median("one-run-fdp") < plan.median("one-run-last-iterate")


def test_the_best_number_of_guesses_beats_the_usual_one_and_its_neighbours():
    for run in (SPARSE, GAUSSIAN):
        for method in ("one-run", "one-run-fdp"):
            best = OneRunPlan(run, 1000, best_guesses(run, 1000, method)).median(method)
            assert best > OneRunPlan(run, 1000, usual_guesses(1000)).median(method)
            for guesses in (16, 30, 60, 120, 500, 1000):
                assert best >= 0.97 * OneRunPlan(run, 1000, guesses).median(method)
