"""Texts as tokens, unseen tokens, limits on tokenizers, types of Hugging Face models, and gradients of logits."""

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lastiterate.common.types import Foreign, Int32Array, IntArray
from lastiterate.data.files import PARSED, most_bytes, too_large

# Growth of texts in a tokenizer. It is checked first, because thirty steps that double a text make gigabytes of one
# letter. _STEPS has the largest number of characters that each step makes of one character (Unicode's annex 15).
_STEPS = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3, "BertNormalizer": 12, "ByteLevel": 4}
_STEPS |= {"Metaspace": 2}
_KEEPS_LENGTH = {"Strip", "StripAccents", "Nmt", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit"}
_KEEPS_LENGTH |= {"BertPreTokenizer", "CharDelimiterSplit", "UnicodeScripts", "FixedLength"}
_UNKNOWN = 4  # assumed growth in steps that are not listed here


def described_growth(description: Mapping[str, Foreign]) -> float:
    """Return the largest number of characters that a tokenizer, as in tokenizer.json, makes of one character."""
    return _of(description.get("normalizer")) * _of(description.get("pre_tokenizer"))


def _of(step: Foreign) -> float:
    if step is None:
        return 1.0
    kind = step["type"]
    if kind == "Sequence":
        parts = step.get("normalizers") or step.get("pretokenizers") or ()
        return math.prod(map(_of, parts), start=1.0)  # an overflow gives infinity and raises nothing
    if kind == "Replace":
        pattern = step["pattern"].get("String", "")  # a regular expression may match empty strings
        return max(1.0, len(step["content"]) / len(pattern)) if pattern else 1.0 + len(step["content"])
    if kind == "Prepend":
        return 1.0 + len(step["prepend"])
    if kind == "Precompiled":  # SentencePiece's table: length of a trie in 4 bytes, trie, texts that end with a 0 byte
        content = base64.b64decode(step["precompiled_charsmap"])
        texts = content[4 + int.from_bytes(content[:4], "little") :]
        return float(max(1, *map(len, texts.split(b"\0")))) if texts else 1.0
    return 1.0 if kind in _KEEPS_LENGTH else float(_STEPS.get(kind, _UNKNOWN))


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
    """Examples as rows of token numbers, padded on the right with zeros."""

    ids: IntArray  # [examples, width]
    lengths: IntArray  # number of tokens in each row without padding, at least two
    cut: int = 0  # number of examples that were too long and were cut

    def __len__(self) -> int:
        return len(self.ids)


def encode(tokenizer: Tokenizer, texts: Iterable[str]) -> list[Int32Array]:
    """Return all token numbers of each text, including the special tokens that the tokenizer adds."""
    given = list(texts)
    longest = max(map(len, given), default=0)
    added, backend = tokenizer.num_special_tokens_to_add(), getattr(tokenizer, "backend_tokenizer", None)
    parts = {name: getattr(backend, name, None) for name in ("normalizer", "pre_tokenizer")}  # in Python: none
    growth = described_growth(
        {name: json.loads(part.__getstate__()) for name, part in parts.items() if part is not None}
    )
    if longest * growth + added > most_bytes(PARSED):  # checked before the tokenizer runs
        got = f"{longest:,} that may become {growth:.4g} times as many, and {added:,} tokens around them"
        raise too_large("a text must become in its tokenizer", PARSED, got, "characters")
    encoded: list[Int32Array] = []
    for some in _batches(given):
        # verbose=False turns off warnings about long texts, which are cut later.
        for text, ids in zip(some, tokenizer(some, truncation=False, verbose=False)["input_ids"], strict=True):
            if len(ids) < 2:
                raise ValueError(f"texts must have at least two tokens, got {text[:100]!r}")
            encoded.append(np.array(ids, np.int32))
    return encoded


def _batches(texts: list[str]) -> Iterator[list[str]]:
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
    known = {int(number) for number in tokenizer.get_vocab().values()} - set(tokenizer.all_special_ids)
    for ids in encoded:
        known.difference_update(np.unique(ids).tolist())
    return np.array(sorted(known), np.int64)


class CausalModel(torch.nn.Module):
    """The type of a causal language model of transformers or peft. It has no instances."""

    config: Foreign
    dtype: torch.dtype
    get_input_embeddings: Callable[[], torch.nn.Embedding]
    get_output_embeddings: Callable[[], torch.nn.Linear]
    gradient_checkpointing_enable: Callable[..., None]


def logit_gradient(logits: Tensor, tokens: Tensor, weights: Tensor, *, overwrite: bool = False) -> Tensor:
    """Return the gradient of the weighted sum of cross-entropies by the logits [examples, tokens, vocabulary].

    With ``overwrite``, the gradient replaces the logits in memory.
    """
    targets = torch.nn.functional.pad(tokens[:, 1:], (0, 1))[..., None]
    counted = torch.nn.functional.pad(weights, (0, 1))[..., None]
    found = logits.data if overwrite else torch.empty_like(logits)
    for example, of_one in enumerate(logits.data):  # one example stays in the cache
        part = torch.softmax(of_one.float(), -1).mul_(counted[example])
        found[example] = part.scatter_add_(-1, targets[example], -counted[example])
    return found


def token_weights(lengths: Tensor, width: int) -> Tensor:
    """Return the weight of each prediction, [examples, width - 1]. Padding has weight 0, all other tokens the same."""
    predictions = (lengths - 1)[:, None]
    counted = torch.arange(width - 1, device=lengths.device) < predictions
    return counted.float() / predictions.clamp_min(1)


def by_length(lengths: Tensor, size: int) -> list[Tensor]:
    """Return the indices of the examples in groups of at most ``size``, sorted by length to save padding."""
    return list(torch.split(torch.argsort(lengths, stable=True), size)) if len(lengths) else []
