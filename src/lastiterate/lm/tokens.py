"""Texts as tokens, and the tokens that never occur in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lastiterate.arrays import Int32Array, IntArray
from lastiterate.data.limits import PARSED, most_bytes, too_large
from lastiterate.lm.growth import tokenizer_growth

_CHARACTERS_AT_ONCE = 2**20


class Tokenizer(Protocol):
    """What we use of a Hugging Face tokenizer."""

    @property
    def all_special_ids(self) -> list[int]: ...
    def __call__(self, text: list[str], *, truncation: bool, verbose: bool) -> Mapping[str, list[list[int]]]: ...
    def __len__(self) -> int: ...
    def num_special_tokens_to_add(self) -> int: ...
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


def encode(tokenizer: Tokenizer, texts: Iterable[str]) -> list[Int32Array]:
    """The token numbers of each text, of whatever length, with the special tokens that the tokenizer adds."""
    given = list(texts)
    _check_growth(tokenizer, given)
    encoded: list[Int32Array] = []
    for some in _batches(given):
        # Told so, the tokenizer does not warn of texts longer than what its model can read: they are cut later.
        for text, ids in zip(some, tokenizer(some, truncation=False, verbose=False)["input_ids"], strict=True):
            if len(ids) < 2:
                raise ValueError(
                    f"texts must have at least two tokens, of which the first predicts the next, got {text[:100]!r}"
                )
            encoded.append(np.array(ids, np.int32))
    return encoded


def _check_growth(tokenizer: Tokenizer, texts: list[str]) -> None:
    """Refuse texts that the tokenizer could make too long, before it does."""
    longest = max(map(len, texts), default=0)
    growth, added = tokenizer_growth(tokenizer), tokenizer.num_special_tokens_to_add()
    if longest * growth + added > most_bytes(PARSED):
        got = f"{longest:,} that may become {growth:.4g} times as many, and {added:,} tokens around them"
        raise too_large("a text must become in its tokenizer", PARSED, got, "characters")


def _batches(texts: list[str]) -> Iterator[list[str]]:
    """So many at a time that what the tokenizer knows about each token fits into memory."""
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and size + len(text) > _CHARACTERS_AT_ONCE:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


def pad(encoded: Sequence[Sequence[int] | Int32Array], longest: int) -> Tokens:
    """The first ``longest`` tokens of each example."""
    lengths = np.array([min(len(ids), longest) for ids in encoded], np.int64)
    rows = np.zeros((len(encoded), int(lengths.max())), np.int64)
    for row, ids, length in zip(rows, encoded, lengths, strict=True):
        row[:length] = ids[:length]
    return Tokens(rows, lengths, sum(len(ids) > longest for ids in encoded))


def unseen_tokens(tokenizer: Tokenizer, encoded: Iterable[Sequence[int] | Int32Array]) -> IntArray:
    """The tokenizer's tokens that occur in none of the examples, without the special ones."""
    known = {int(number) for number in tokenizer.get_vocab().values()}
    known -= set(tokenizer.all_special_ids)
    for ids in encoded:
        known.difference_update(np.unique(ids).tolist())
    return np.array(sorted(known), np.int64)
