"""The sentence in which an epsilon may be quoted says all that makes it true, and rounds to the safe side."""

import re

import pytest

import lastiterate as li

RUN = li.DPSGD(steps=1000, sample_rate=0.01, noise_multiplier=1.0)


def guaranteed(words):
    (epsilon,) = re.findall(r"It is \(([^,]+), 1e-5\)-DP", words)
    return float(epsilon)


def test_the_sentence_has_run_unit_neighbours_sampling_release_guarantee_and_prediction():
    assert li.sentence(RUN, 1e-5) == (
        "Training was DP-SGD: 1,000 steps, sample rate 0.01, noise multiplier 1, Poisson sampling. It is "
        "(1.829, 1e-5)-DP under adding or removing one example, for all iterates (composition). For the final model "
        "alone, the last-iterate heuristic (Steinke et al. 2025) predicts epsilon 1.278 at the same delta for the same "
        "neighbours; this is not a guarantee. These numbers are for one training: choosing hyperparameters on the same "
        "data costs extra privacy."
    )


@pytest.mark.parametrize("sampling", ["shuffled", "fixed"])
def test_without_poisson_sampling_the_guarantee_is_the_one_that_holds(sampling):
    run = RUN.replace(sampling=sampling)
    said = li.sentence(run, 1e-5)
    assert guaranteed(said) >= li.no_amplification(run).epsilon(1e-5)
    assert "even if it is known which batches an example is in (no amplification)" in said
    assert "composition" not in said
    assert "-DP under replacing one example by one without gradient (zero-out)" in said
    assert "adding or removing" not in said
