"""Texts become tokens, are cut and padded, and what no text contains is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastiterate.lm.hub import load_tokenizer
from lastiterate.lm.tokens import encode, pad, unseen_tokens
from tests.lm.conftest import SPECIAL, SPOKEN, UNSPOKEN

NUMBERS = {word: number for number, word in enumerate([*SPECIAL, *SPOKEN, *UNSPOKEN])}
LINE = NUMBERS["\n"]


def numbers(*words):
    return [NUMBERS[word] for word in words]


@pytest.fixture(scope="module")
def tokenizer(tiny_llama):
    return load_tokenizer(tiny_llama)


def test_examples_are_cut_at_the_end_and_padded_with_zeros_on_the_right():
    found = pad([[1, 7, 8], [1, 9], [1, 5, 6, 7, 8, 9]], 4)
    assert found.ids.tolist() == [[1, 7, 8, 0], [1, 9, 0, 0], [1, 5, 6, 7]]
    assert found.lengths.tolist() == [3, 2, 4]
    assert found.cut == 1
    assert len(found) == 3
    assert found.ids.dtype == found.lengths.dtype == np.int64


@given(
    encoded=st.lists(st.lists(st.integers(1, 99), min_size=2, max_size=12), min_size=1, max_size=6),
    longest=st.integers(2, 14),
)
def test_padded_examples_are_as_wide_as_the_longest_that_is_left(encoded, longest):
    found = pad(encoded, longest)
    assert found.ids.shape == (len(encoded), found.lengths.max())
    for row, length, ids in zip(found.ids.tolist(), found.lengths, encoded, strict=True):
        assert row[:length] == ids[:longest]
        assert not any(row[length:])
    assert found.cut == sum(ids != ids[:longest] for ids in encoded)


def test_unseen_tokens_are_in_order_and_never_special(tokenizer):
    found = unseen_tokens(tokenizer, encode(tokenizer, [" ".join(SPOKEN[:10]), f"{SPOKEN[12]}\n{UNSPOKEN[3]}"]))
    expected = {*SPOKEN[10:], *UNSPOKEN} - {SPOKEN[12], UNSPOKEN[3]}
    assert found.tolist() == sorted(numbers(*expected))
    assert found.dtype == np.int64
    assert LINE in unseen_tokens(tokenizer, encode(tokenizer, ["yes"]))
