"""Texts as tokens, and the tokens that never occur in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lastiterate.arrays import IntArray


class Tokenizer(Protocol):
    """What we use of a Hugging Face tokenizer."""

    @property
    def all_special_ids(self) -> list[int]: ...
    def __call__(self, text: list[str], *, truncation: bool, verbose: bool) -> Mapping[str, list[list[int]]]: ...
    def __len__(self) -> int: ...
    def get_vocab(self) -> dict[str, int]: ...
    def convert_ids_to_tokens(self, ids: int) -> str: ...


@dataclass(frozen=True, eq=False)
class Tokens:
    """Examples as rows of token numbers, padded on the right with zeros.

    Attributes:
        ids: [examples, width].
        lengths: how many tokens of each row are the example's own, two or more.
        cut: how many examples were longer and lost their end.
    """

    ids: IntArray
    lengths: IntArray
    cut: int = 0

    def __len__(self) -> int:
        return len(self.ids)


def encode(tokenizer: Tokenizer, texts: Iterable[str]) -> list[list[int]]:
    """The token numbers of each text, of whatever length, with the special tokens that the tokenizer adds."""
    given = list(texts)
    # Told so, the tokenizer does not warn of texts that are longer than what its model can read: they are cut later.
    encoded = tokenizer(given, truncation=False, verbose=False)["input_ids"]
    for text, ids in zip(given, encoded, strict=True):
        if len(ids) < 2:
            raise ValueError(f"texts must have at least two tokens, of which the first predicts the next, got {text!r}")
    return encoded


def pad(encoded: Sequence[Sequence[int]], longest: int) -> Tokens:
    """The first ``longest`` tokens of each example."""
    lengths = np.array([min(len(ids), longest) for ids in encoded], np.int64)
    rows = np.zeros((len(encoded), int(lengths.max())), np.int64)
    for row, ids, length in zip(rows, encoded, lengths, strict=True):
        row[:length] = ids[:length]
    return Tokens(rows, lengths, sum(len(ids) > longest for ids in encoded))


def unseen_tokens(tokenizer: Tokenizer, encoded: Iterable[Sequence[int]]) -> IntArray:
    """The tokenizer's tokens that occur in none of the examples, without the special ones."""
    known = {int(number) for number in tokenizer.get_vocab().values()}
    known -= set(tokenizer.all_special_ids)
    known.difference_update(*encoded)
    return np.array(sorted(known), np.int64)
