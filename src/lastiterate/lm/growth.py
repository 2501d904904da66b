"""How much longer a tokenizer can make a text before it splits it: told from its description, as it is too late after.

Each of its steps may replace a character by several. A sequence of thirty that double makes gigabytes of one letter.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

# The most characters that one can become. Of the Unicode forms, by the tables of Unicode's annex 15.
_STEPS = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3, "BertNormalizer": 12, "ByteLevel": 4}
_STEPS |= {"Metaspace": 2}
_KEEPS_LENGTH = {"Strip", "StripAccents", "Nmt", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit"}
_KEEPS_LENGTH |= {"BertPreTokenizer", "CharDelimiterSplit", "UnicodeScripts", "FixedLength"}
_UNKNOWN = 4  # a step of a later version


def described_growth(description: Mapping[str, Any]) -> float:
    """Of a tokenizer.json: how many characters one can become, at most."""
    return _of(description.get("normalizer")) * _of(description.get("pre_tokenizer"))


def tokenizer_growth(tokenizer: object) -> float:
    """Of a tokenizer that was loaded, from whatever file; 1 for those that are written in Python."""
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
        pattern = step["pattern"].get("String", "")  # a regular expression may match nothing, which is everywhere
        return max(1.0, len(step["content"]) / len(pattern)) if pattern else 1.0 + len(step["content"])
    if kind == "Prepend":
        return 1.0 + len(step["prepend"])
    if kind == "Precompiled":
        return _longest_entry(step["precompiled_charsmap"])
    return 1.0 if kind in _KEEPS_LENGTH else float(_STEPS.get(kind, _UNKNOWN))


def _product(factors: Iterable[float]) -> float:
    return math.prod(factors, start=1.0)  # which becomes infinite, and raises nothing


def _longest_entry(charsmap: str) -> float:
    """Of SentencePiece's table: the length of a trie in four bytes, the trie, and texts that end with a zero byte."""
    content = base64.b64decode(charsmap)
    texts = content[4 + int.from_bytes(content[:4], "little") :]
    return float(max(1, *map(len, texts.split(b"\0")))) if texts else 1.0
