"""Texts as tokens, unseen tokens, limits on tokenizers, types of Hugging Face models, and gradients in logits."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lastiterate.common.types import Int32Array, IntArray
from lastiterate.data.files import PARSED, most_bytes, too_large

# Growth of texts in a tokenizer: a bound from its description, before it runs. Each of its steps may replace a
# character by several. Thirty steps that double make gigabytes of one letter.

# The most characters that one character can become. For Unicode forms: tables of Unicode's annex 15.
_STEPS = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3, "BertNormalizer": 12, "ByteLevel": 4}
_STEPS |= {"Metaspace": 2}
_KEEPS_LENGTH = {"Strip", "StripAccents", "Nmt", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit"}
_KEEPS_LENGTH |= {"BertPreTokenizer", "CharDelimiterSplit", "UnicodeScripts", "FixedLength"}
_UNKNOWN = 4  # for steps of later versions


def described_growth(description: Mapping[str, Any]) -> float:
    """Return the largest number of characters that one character can become, from a tokenizer.json."""
    return _of(description.get("normalizer")) * _of(description.get("pre_tokenizer"))


def tokenizer_growth(tokenizer: object) -> float:
    """Return the growth of a loaded tokenizer, from any file; 1 for tokenizers written in Python."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts = {name: getattr(backend, name, None) for name in ("normalizer", "pre_tokenizer")}
    return described_growth({name: json.loads(part.__getstate__()) for name, part in parts.items() if part is not None})


def _of(step: Any) -> float:
    if step is None:
        return 1.0
    kind = step["type"]
    if kind == "Sequence":
        return _product(map(_of, step.get("normalizers") or step.get("pretokenizers") or ()))
    if kind == "Replace":
        pattern = step["pattern"].get("String", "")  # a regular expression may match the empty string, everywhere
        return max(1.0, len(step["content"]) / len(pattern)) if pattern else 1.0 + len(step["content"])
    if kind == "Prepend":
        return 1.0 + len(step["prepend"])
    if kind == "Precompiled":
        return _longest_entry(step["precompiled_charsmap"])
    return 1.0 if kind in _KEEPS_LENGTH else float(_STEPS.get(kind, _UNKNOWN))


def _product(factors: Iterable[float]) -> float:
    return math.prod(factors, start=1.0)  # an overflow gives infinity and raises nothing


def _longest_entry(charsmap: str) -> float:
    """Return the longest entry of SentencePiece's table.

    The table is the length of a trie in four bytes, the trie, and texts that end with a zero byte.
    """
    content = base64.b64decode(charsmap)
    texts = content[4 + int.from_bytes(content[:4], "little") :]
    return float(max(1, *map(len, texts.split(b"\0")))) if texts else 1.0


_CHARACTERS_AT_ONCE = 2**20


class Tokenizer(Protocol):
    """The methods of a Hugging Face tokenizer that are used here."""

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
        ids: token numbers, [examples, width].
        lengths: number of the example's own tokens in each row, at least two.
        cut: number of examples that were longer and lost their end.
    """

    ids: IntArray
    lengths: IntArray
    cut: int = 0

    def __len__(self) -> int:
        return len(self.ids)


def encode(tokenizer: Tokenizer, texts: Iterable[str]) -> list[Int32Array]:
    """Return the token numbers of each text, uncut, with the special tokens that the tokenizer adds."""
    given = list(texts)
    _check_growth(tokenizer, given)
    encoded: list[Int32Array] = []
    for some in _batches(given):
        # verbose=False: no warning of texts that are too long for the model, because they are cut later.
        for text, ids in zip(some, tokenizer(some, truncation=False, verbose=False)["input_ids"], strict=True):
            if len(ids) < 2:
                raise ValueError(
                    f"texts must have at least two tokens, of which the first predicts the next, got {text[:100]!r}"
                )
            encoded.append(np.array(ids, np.int32))
    return encoded


def _check_growth(tokenizer: Tokenizer, texts: list[str]) -> None:
    """Raise if the tokenizer could make a text too long, before it runs."""
    longest = max(map(len, texts), default=0)
    growth, added = tokenizer_growth(tokenizer), tokenizer.num_special_tokens_to_add()
    if longest * growth + added > most_bytes(PARSED):
        got = f"{longest:,} that may become {growth:.4g} times as many, and {added:,} tokens around them"
        raise too_large("a text must become in its tokenizer", PARSED, got, "characters")


def _batches(texts: list[str]) -> Iterator[list[str]]:
    """Yield batches of texts that are small enough for the tokenizer's data about each token to fit in memory."""
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
    """Return the first ``longest`` tokens of each example, padded."""
    lengths = np.array([min(len(ids), longest) for ids in encoded], np.int64)
    rows = np.zeros((len(encoded), int(lengths.max())), np.int64)
    for row, ids, length in zip(rows, encoded, lengths, strict=True):
        row[:length] = ids[:length]
    return Tokens(rows, lengths, sum(len(ids) > longest for ids in encoded))


def unseen_tokens(tokenizer: Tokenizer, encoded: Iterable[Sequence[int] | Int32Array]) -> IntArray:
    """Return the tokenizer's tokens that occur in none of the examples, without special tokens."""
    known = {int(number) for number in tokenizer.get_vocab().values()}
    known -= set(tokenizer.all_special_ids)
    for ids in encoded:
        known.difference_update(np.unique(ids).tolist())
    return np.array(sorted(known), np.int64)


# Types of Hugging Face language models: transformers' own classes are less precise.


class TextConfig(Protocol):
    """The sizes of a model."""

    hidden_size: int
    num_hidden_layers: int
    vocab_size: int


class Config(Protocol):
    """The configuration of a model, which may hold a configuration for texts among others."""

    def get_text_config(self) -> TextConfig: ...


class CausalModel(torch.nn.Module):
    """A causal language model of transformers, or of peft around it. The class is a type and has no instances."""

    config: Config
    dtype: torch.dtype
    get_input_embeddings: Callable[[], torch.nn.Embedding]
    get_output_embeddings: Callable[[], torch.nn.Linear]
    gradient_checkpointing_enable: Callable[..., None]


# Losses: weights of an example's tokens, and the gradient of the examples' losses in the logits.


def logit_gradient(logits: Tensor, tokens: Tensor, weights: Tensor, *, overwrite: bool = False) -> Tensor:
    """Compute the gradient of the sum of all losses in the logits, as of cross-entropy, without copies of the logits.

    Args:
        logits: [examples, tokens, vocabulary].
        tokens: [examples, tokens].
        weights: weight of each prediction of the next token, [examples, tokens - 1].
        overwrite: whether the gradient may replace the logits in memory.
    """
    targets = torch.nn.functional.pad(tokens[:, 1:], (0, 1))[..., None]
    counted = torch.nn.functional.pad(weights, (0, 1))[..., None]
    found = logits.data if overwrite else torch.empty_like(logits)
    for example, of_one in enumerate(logits.data):  # one example stays in the cache
        part = torch.softmax(of_one.float(), -1).mul_(counted[example])
        found[example] = part.scatter_add_(-1, targets[example], -counted[example])
    return found


def token_weights(lengths: Tensor, width: int) -> Tensor:
    """Return the weight of each prediction, [examples, width - 1]: equal for an example's own tokens, 0 for padding."""
    predictions = (lengths - 1)[:, None]
    counted = torch.arange(width - 1, device=lengths.device) < predictions
    return counted.float() / predictions.clamp_min(1)


def by_length(lengths: Tensor, size: int) -> list[Tensor]:
    """Return the rows of the examples in groups of at most ``size``, sorted by length to save padding."""
    return list(torch.split(torch.argsort(lengths, stable=True), size)) if len(lengths) else []
