"""What users pass in is checked by name, value and allowed range."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastiterate.common.validation import MAX_STEPS, ByFields, integer, number, numbers, per_step, written_number

finite = st.floats(allow_nan=False, allow_infinity=False)


def message_of(call, *arguments, **options) -> str:
    with pytest.raises(ValueError, match="must") as raised:
        call(*arguments, **options)
    return str(raised.value)


@pytest.mark.parametrize("value", [1, 7, MAX_STEPS, np.int64(7), np.uint8(7)])
def test_integers_of_python_and_numpy_become_python_integers(value):
    result = integer("steps", value)
    assert result == value
    assert type(result) is int


@pytest.mark.parametrize(
    "value", [0, -1, 1.5, 1.0, True, False, np.True_, "3", None, math.nan, math.inf, [3], np.float64(3)]
)
def test_anything_else_is_no_integer_and_the_message_shows_it(value):
    assert message_of(integer, "steps", value) == f"steps must be an integer at least 1, got {value!r}"


@pytest.mark.parametrize(
    ("low", "high", "open_low", "open_high", "bad", "allowed"),
    [
        (0.0, 1.0, False, False, 1.5, "in [0, 1]"),
        (0.0, 1.0, True, False, 0.0, "in (0, 1]"),
        (0.0, 1.0, False, True, 1.0, "in [0, 1)"),
        (0.0, math.inf, False, False, -2.0, "at least 0 and finite"),
        (0.0, math.inf, True, False, 0.0, "greater than 0 and finite"),
        (-math.inf, math.inf, False, False, math.inf, "a finite number"),
    ],
)
def test_a_number_outside_is_refused_with_the_interval_it_missed(low, high, open_low, open_high, bad, allowed):
    message = message_of(number, "rate", bad, low, high, open_low=open_low, open_high=open_high)
    assert message == f"rate must be {allowed}, got {bad!r}"


@pytest.mark.parametrize("value", [True, np.True_, "0.1", b"1", 1 + 0j, np.complex128(1), np.array(True)])
@pytest.mark.parametrize("check", [number, numbers])
def test_what_python_would_turn_into_a_number_though_nobody_means_one_is_refused(check, value):
    assert message_of(check, "rate", value).endswith(f"got {value!r}")


@given(finite)
def test_a_finite_number_is_kept_as_it_is(value):
    assert number("x", value) == value
    assert numbers("x", value) == value
    assert per_step("x", value, 3) == value


@pytest.mark.parametrize("value", [[1, 2, 3], (1.0, 2.0, 3.0), np.arange(1, 4), range(1, 4), np.float32([1, 2, 3])])
def test_one_number_for_each_step_becomes_an_array(value):
    result = per_step("weights", value, 3)
    assert result.dtype == np.float64
    assert result.tolist() == [1.0, 2.0, 3.0]


def test_a_schedule_must_be_finite_throughout():
    assert message_of(per_step, "noise", [1.0, math.inf], 2, 0.0) == "noise must be finite, got inf"
    assert message_of(per_step, "noise", [1.0, math.nan], 2, 0.0) == "noise must be at least 0 and finite, got nan"
    assert (
        message_of(per_step, "noise", [1.0, 0.0], 2, 0.0, open_low=True)
        == "noise must be greater than 0 and finite, got 0.0"
    )


@dataclass(frozen=True, eq=False, repr=False)
class Thing(ByFields):
    name: Any
    value: Any


def test_values_with_equal_arrays_are_the_same():
    first, second = Thing("a", np.array([1.0, 2.0])), Thing("a", np.array([1.0, 2.0]))
    assert first == second
    assert hash(first) == hash(second)


@pytest.mark.parametrize(
    "other",
    [Thing("b", np.array([1.0, 2.0])), Thing("a", np.array([1.0, 3.0])), Thing("a", 1.0), Thing("a", None), "a"],
)
def test_values_that_differ_somewhere_are_not_the_same(other):
    assert Thing("a", np.array([1.0, 2.0])) != other


FULL_WIDTH = "\uff11\uff12"  # 12


@pytest.mark.parametrize(
    "text", ["nan", "inf", "-Infinity", "1e5_0", "1e", "e5", ".", "1e999", f"1e{FULL_WIDTH}", "1d5"]
)
def test_these_are_no_written_numbers(text):
    assert written_number(text) is None


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_what_python_writes_is_read_back(value):
    assert written_number(repr(value)) == value
