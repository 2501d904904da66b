"""Rows hold plain values, and what is asked of them must be there."""

from __future__ import annotations

import pytest

from lastiterate.common.types import among, largest, number_in, text_in

ROWS = [{"name": "a", "x": 1.0}, {"name": "b", "x": 3}, {"name": "a", "x": None}]


def test_a_number_is_a_number_and_a_text_a_text():
    assert number_in(ROWS[1], "x") == 3
    assert text_in(ROWS[1], "name") == "b"
    with pytest.raises(TypeError, match="x must be a number in this row, got None"):
        number_in(ROWS[2], "x")
    with pytest.raises(TypeError, match=r"x must be a text in this row, got 1\.0"):
        text_in(ROWS[0], "x")


def test_rows_are_found_by_their_values():
    assert among(ROWS, "name", "a") == [ROWS[0], ROWS[2]]
    assert largest(ROWS[:2], "x") is ROWS[1]
