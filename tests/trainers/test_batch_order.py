"""Batches that are stretches of an order: how many slots each has, and that none is used too often."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastiterate import DPSGD
from lastiterate.trainers.batch_order import batch_order
from tests.shuffling import epoch_length

ROUNDING = 1e-9  # of a slot: a rate that was meant to give whole batches may be below it by rounding
SLOTS = st.integers(1, 500)
RATES = st.one_of(st.floats(0.01, 1.0), st.integers(1, 100).map(lambda length: 1.0 / length))


def ends_of(order):
    return order.begins + order.sizes


@given(rates=st.lists(RATES, min_size=1, max_size=20), slots=SLOTS)
def test_batches_of_fixed_size_are_the_largest_that_are_not_above_the_sample_rate(rates, slots):
    run = DPSGD(len(rates), rates, 1.0, "fixed")
    wanted = np.array(rates) * slots
    if wanted.max() < 1 - ROUNDING:
        with pytest.raises(ValueError, match=f"sample_rate must be at least 1/{slots} for batches of fixed size"):
            batch_order(run, slots)
        return
    order = batch_order(run, slots)
    assert order.steps_per_order == 1  # each batch is the beginning of an order of its own
    assert order.begins.tolist() == [0] * len(rates)
    assert (order.sizes <= wanted + 2 * ROUNDING).all()
    assert (order.sizes > wanted - 1).all()
    assert (order.sizes <= slots).all()


@given(rate=RATES, slots=SLOTS, epochs=st.integers(1, 3), rest=st.integers(0, 5))
def test_shuffled_batches_follow_each_other_and_have_every_slot_once_an_epoch(rate, slots, epochs, rest):
    length = epoch_length(rate)
    steps = epochs * length + rest
    order = batch_order(DPSGD(steps, rate, 1.0, "shuffled", batches_per_epoch=length), slots)
    assert order.steps_per_order == length
    assert len(order.begins) == len(order.sizes) == steps
    assert (order.sizes >= 0).all()
    for first in range(0, steps, length):
        begins, ends = (values[first : first + length] for values in (order.begins, ends_of(order)))
        assert begins[0] == 0
        np.testing.assert_array_equal(begins[1:], ends[:-1])
    for epoch in range(epochs):
        assert order.sizes[epoch * length : (epoch + 1) * length].sum() == slots


@given(rate=RATES, slots=SLOTS)
def test_shuffled_slots_are_used_by_no_step_of_an_epoch_with_more_than_the_probability_analysed(rate, slots):
    length = epoch_length(rate)
    used = ends_of(batch_order(DPSGD(length, rate, 1.0, "shuffled", batches_per_epoch=length), slots))
    analysed = np.minimum(np.arange(1, length + 1) * rate, 1.0) * slots
    analysed[-1] = slots  # 1/q is whole up to rounding
    assert (used <= analysed + 2 * ROUNDING).all()
    assert (used > analysed - 1).all()
