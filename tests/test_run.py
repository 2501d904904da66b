"""A DP-SGD run is validated, frozen and compared by value."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastiterate import DPSGD, SGD, composition, last_iterate, max_over_steps, no_amplification

GOOD = {"steps": 3, "sample_rate": 0.1, "noise_multiplier": 1.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be an integer at least 1, got 0"),
        ({"steps": True}, "steps must be an integer at least 1, got True"),
        ({"sample_rate": -0.1}, "sample_rate must be in [0, 1], got -0.1"),
        ({"sample_rate": 1.5}, "sample_rate must be in [0, 1], got 1.5"),
        ({"sample_rate": [0.1, 0.2, 1.1]}, "sample_rate must be in [0, 1], got 1.1"),
        ({"sample_rate": [0.1, 0.1]}, "sample_rate must be one number or 3 numbers, one for each step, got shape (2,)"),
        ({"noise_multiplier": 0}, "noise_multiplier must be greater than 0 and finite, got 0"),
        ({"noise_multiplier": math.inf}, "noise_multiplier must be greater than 0 and finite, got inf"),
        ({"noise_multiplier": [1, 1, 1, 1]}, "noise_multiplier must be one number or 3 numbers, one for each step"),
        ({"clip_norm": 0.0}, "clip_norm must be greater than 0 and finite, got 0.0"),
        ({"weights": [1.0, 2.0]}, "weights must be one number or 3 numbers, one for each step, got shape (2,)"),
        ({"weights": [0, 0, 0]}, "weights must not all be zero: such a run releases nothing"),
        ({"weights": [1, math.nan, 1]}, "weights must be a finite number, got nan"),
        ({"optimizer": SGD(), "weights": [1, 1, 1]}, "optimizer and weights were both given"),
        (
            {"optimizer": SGD([0.1, 0.2])},
            "learning_rate must be one number or 3 numbers, one for each step, got shape (2,)",
        ),
        (
            {"sampling": "bernoulli"},
            "sampling must be one of poisson, truncated-poisson, balls-in-bins, fixed, shuffled, full, got 'bernoulli'",
        ),
        ({"sampling": "full"}, "sample_rate must be 1 with sampling 'full', got 0.1"),
        (
            {"sampling": "shuffled", "sample_rate": [0.5, 0.5, 0.5]},
            "sample_rate must be one number in (0, 1] with sampling 'shuffled', got [0.5 0.5 0.5]",
        ),
        (
            {"sampling": "shuffled", "sample_rate": 0},
            "sample_rate must be one number in (0, 1] with sampling 'shuffled', got 0.0",
        ),
        ({"releases": 0}, "releases must be an integer in [1, 3], got 0"),
        ({"releases": [1, 4]}, "releases must be an integer in [1, 3], got 4"),
        ({"releases": 1.0}, "releases must be None, a number of iterates or a sequence of steps, got 1.0"),
        ({"group_size": 0}, "group_size must be an integer in [1, 1000000], got 0"),
        ({"neighbours": "swap"}, "neighbours must be one of add-remove, zero-out, replace, got 'swap'"),
    ],
)
def test_bad_input_is_refused_in_a_sentence_that_names_it(changes, message):
    with pytest.raises(ValueError, match=r"must|both") as raised:
        DPSGD(**(GOOD | changes))
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("sampling", ["x" * 5000, b"x" * 5000, ["x"]])
def test_batches_of_an_unknown_sampling_are_refused_in_a_short_message(sampling):
    with pytest.raises(ValueError, match=r"^sampling must be one of poisson, .{1,300}$"):
        DPSGD.from_batches(100, 10, 2, 1.0, sampling=sampling)


@pytest.mark.parametrize("name", ["sample_rate", "noise_multiplier", "weights"])
def test_arrays_are_copies_that_nobody_can_change(name):
    values = np.array([0.5, 0.25, 0.75])
    run = DPSGD(**(GOOD | {name: values}))
    values[:] = 1.0
    kept = getattr(run, name)
    assert kept.tolist() == [0.5, 0.25, 0.75]
    with pytest.raises(ValueError, match="read-only"):
        kept[0] = 1.0


@given(st.integers(1, 10**6), st.floats(1e-3, 1.0), st.floats(0.01, 100.0))
def test_from_batches_rounds_the_number_of_steps(dataset_size, fraction, epochs):
    batch_size = max(1, round(fraction * dataset_size))
    run = DPSGD.from_batches(dataset_size, batch_size, epochs, 1.0)
    assert run.steps == max(1, round(epochs * dataset_size / batch_size))
    assert run.sample_rate == batch_size / dataset_size


@pytest.mark.parametrize(
    ("batch_size", "epochs", "last_batch", "steps", "sample_rate"),
    [
        (512, 60, "keep", 5880, 0.01024),
        (512, 60, "drop", 5820, 1 / 97),
        (512, 2.5, "keep", 245, 0.01024),
        (512, 0.001, "drop", 1, 1 / 97),
        (500, 60, "keep", 6000, 0.01),
        (500, 60, "drop", 6000, 0.01),
        (50_000, 3, "keep", 3, 1.0),
        (30_000, 3, "drop", 3, 1.0),
    ],
)
def test_the_last_batch_of_an_epoch_is_kept_or_dropped(batch_size, epochs, last_batch, steps, sample_rate):
    run = DPSGD.from_batches(50_000, batch_size, epochs, 1.0, last_batch=last_batch)
    assert run == DPSGD(steps, sample_rate, 1.0)


@pytest.mark.parametrize("last_batch", ["keep", "drop"])
def test_epochs_of_shuffled_batches_are_whole_whatever_happens_to_the_last_one(last_batch):
    """Each of 60 epochs uses an example once, so that it is a Gaussian mechanism of sensitivity sqrt(60)."""
    run = DPSGD.from_batches(50_000, 512, 60, 1.0, sampling="shuffled", last_batch=last_batch)
    told = DPSGD(60, 1.0, 1.0, sampling="full")
    assert no_amplification(run).epsilon(1e-5) == pytest.approx(composition(told).epsilon(1e-5), rel=1e-9)


def test_weights_follow_from_the_optimizer():
    assert DPSGD(**GOOD).effective_weights() == 1.0
    assert DPSGD(**GOOD, weights=[3, 2, 1]).effective_weights().tolist() == [3.0, 2.0, 1.0]
    assert DPSGD(**GOOD, optimizer=SGD([3, 2, 1])).effective_weights().tolist() == [3.0, 2.0, 1.0]
    assert DPSGD(**GOOD, optimizer=SGD(1.0, momentum=0.5)).effective_weights().tolist() == [1.75, 1.5, 1.0]


def test_replace_changes_some_fields_and_checks_them():
    run = DPSGD(3, [0.1, 0.2, 0.3], 1.0, clip_norm=2.0, weights=[1, 2, 3])
    assert run.replace() == run
    assert run.replace(noise_multiplier=5.0) == DPSGD(3, [0.1, 0.2, 0.3], 5.0, clip_norm=2.0, weights=[1, 2, 3])
    assert run.noise_multiplier == 1.0
    with pytest.raises(ValueError, match="sample_rate must be one number or 4 numbers"):
        run.replace(steps=4)
    with pytest.raises(ValueError, match="optimizer and weights were both given"):
        run.replace(optimizer=SGD())


def test_a_prefix_cuts_every_schedule():
    run = DPSGD(4, [0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4], weights=[4, 3, 2, 1], clip_norm=2.0)
    assert run.prefix(2) == DPSGD(2, [0.1, 0.2], [1, 2], weights=[4, 3], clip_norm=2.0)
    assert run.prefix(4) == run
    assert DPSGD(10**9, 0.1, 1.0).prefix(10) == DPSGD(10, 0.1, 1.0)


def test_released_steps_are_equally_spaced_or_as_given_with_the_last_one_among_them():
    assert DPSGD(1000, 0.1, 1.0).released_steps().tolist() == [1000]
    for steps, count in (10, 4), (1000, 7), (9, 9), (11, 10):
        expected = [round(k * steps / count) for k in range(1, count + 1)]
        assert DPSGD(steps, 0.1, 1.0, releases=count).released_steps().tolist() == expected
    assert DPSGD(10, 0.1, 1.0, releases=[7, 3]).releases == (3, 7, 10)
    assert DPSGD(10, 0.1, 1.0, releases=np.array([3, 10])).releases == (3, 10)
    assert DPSGD(10, 0.1, 1.0, releases=[10]) == DPSGD(10, 0.1, 1.0, releases=[]) == DPSGD(10, 0.1, 1.0)


def test_a_prefix_releases_what_was_released_until_then_and_its_last_iterate():
    assert DPSGD(10, 0.1, 1.0, releases=[3, 7]).prefix(8).releases == (3, 7, 8)
    assert DPSGD(10, 0.1, 1.0, releases=5).prefix(5).releases == (2, 4, 5)
    assert DPSGD(10, 0.1, 1.0, releases=10).prefix(4).releases == 4
    assert DPSGD(10, 0.1, 1.0, releases=5, group_size=2).prefix(10).releases == 5


@pytest.mark.parametrize("schedule", [{"weights": [0.0, 0.5, 1.0]}, {"optimizer": SGD([0.0, 0.5, 1.0])}])
def test_the_prefix_of_a_warm_up_that_has_learnt_nothing_is_refused(schedule):
    with pytest.raises(ValueError, match=r"must not (all )?be zero"):
        DPSGD(**GOOD, **schedule).prefix(1)


@pytest.mark.parametrize(
    "schedule",
    [
        {"weights": [0, 0, 1, 1]},
        {"weights": [0, 0, 1, -1]},
        {"optimizer": SGD([0, 0, 1, 1])},
        {"optimizer": SGD([0, 0, 1, 1], momentum=0.9)},
        {"optimizer": SGD([0, 0, 1, 1], momentum=0.9, weight_decay=0.1)},
        {"optimizer": SGD([0, 0, 1, 1], weight_decay=0.1)},
    ],
)
def test_the_maximum_over_steps_passes_over_what_has_learnt_nothing(schedule):
    run = DPSGD(4, 0.1, 1.0, **schedule)
    expected = max(last_iterate(run.prefix(t)).epsilon(1e-5) for t in (3, 4))
    assert max_over_steps(run).epsilon(1e-5) == pytest.approx(expected, rel=1e-9)


def test_only_poisson_sampling_and_full_batches_let_the_standard_analysis_count_on_sampling():
    guarantees = [DPSGD(3, 1.0, 1.0, sampling=each).guarantee for each in ("poisson", "full", "fixed", "shuffled")]
    assert guarantees == ["composition", "composition", "no_amplification", "no_amplification"]
