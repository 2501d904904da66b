"""Checks of a model's small files before transformers reads them, because one line can describe a giant model.

transformers builds a model and loads a tokenizer as these files say. So the sizes of the files, the counts in a
configuration and the growth of texts in a tokenizer are first checked against the limit of
:mod:`lastiterate.data.files`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lastiterate.data.files import PARSED, BadFile, decoding, find, most_bytes, read_all, too_large
from lastiterate.lm.tokens import described_growth

if TYPE_CHECKING:
    from types import ModuleType

    from transformers import PreTrainedConfig

# Files that are downloaded beside the weights, and (_PARSED) those that transformers may parse.
SMALL_FILES = ["*.json", "*.txt", "*.jinja", "tokenizer.model", "spiece.model"]
_PARSED = [
    "*config.json",
    "*.index.json",
    "*token*.json",
    "vocab*",
    "merges.txt",
    "chat_template*",
    "*.jinja",
    "*.model",
]
_TOKENIZER = "tokenizer.json"
_TOKENS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_COUNT = re.compile(r"(?:n|num)_(?:\w*_)?(?:layers?|heads?|experts?|blocks?|labels|groups)|(?:encoder|decoder)_layers")
_BYTES_A_MODULE = 2**20  # Python objects of a layer, an expert or a head, without parameters
_LONGEST_TOKEN = 2**12  # characters: the least length that is assumed for the longest token


def read_object(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file, which must be an object and small enough to parse."""
    with decoding(path, "a JSON object") as file:
        content = json.loads(bytes(read_all(file, path, PARSED)))
        if not isinstance(content, dict):
            raise TypeError
    return content


def check_small_files(folder: Path) -> None:
    """Raise for files that are too large to parse, and for pipes and devices, whose size is unknown."""
    for path in sorted(folder.iterdir()):
        if any(fnmatch(path.name, pattern) for pattern in _PARSED):
            size = find(path, "file").stat().st_size
            if size > most_bytes(PARSED):
                raise too_large(f"{str(path)!r} must have", PARSED, f"{size:,}")


def check_tokenizer(folder: Path) -> None:
    """Raise for a tokenizer that could make its own tokens too long when it is loaded."""
    path = folder / _TOKENIZER
    if not path.exists():
        return
    described = read_object(path)
    with decoding(path, "the description of a tokenizer"):
        growth = described_growth(described)
    others = [read_object(folder / name) for name in _TOKENS if (folder / name).exists()]
    longest = max(
        (len(part) for part in _parts([described.get("added_tokens"), *others]) if type(part) is str), default=0
    )
    if max(longest, _LONGEST_TOKEN) * growth > most_bytes(PARSED):
        got = f"steps that may make a text {growth:.4g} times as long, for tokens of up to {longest:,}"
        raise too_large(f"{str(path)!r} must make of a token", PARSED, got, "characters")


def check_counts(path: Path, config: dict[str, Any]) -> None:
    """Raise if counts of layers, heads and the like are negative, or if their objects alone would take all memory."""
    for part in _parts(config):
        for key, count in part.items() if isinstance(part, dict) else ():
            if not _COUNT.fullmatch(str(key)) or type(count) is not int:
                continue
            if count < 0:
                raise BadFile(f"{str(path)!r} must have a {key} of at least 0, got {count}")
            if count * _BYTES_A_MODULE > most_bytes():
                raise too_large(
                    f"{str(path)!r} must have a {key} whose modules take, at {_BYTES_A_MODULE:,} each,",
                    got=f"{count:,}",
                )


def check_built(
    name: str | Path, config: PreTrainedConfig, stored: int, torch: ModuleType, build: ModuleType, **options: Any
) -> None:
    """Raise if a model takes more memory than its files can account for. It is built without data, on the meta device.

    ``stored`` is the size of its weight files in bytes, with 16 bits or more per parameter.
    """
    with torch.device("meta"):
        model = build.AutoModelForCausalLM.from_config(config, **options)
    needed = sum(part.numel() * 4 for part in (*model.parameters(), *model.buffers()))
    if needed > max(most_bytes(), 4 * stored):
        got = f"one of {needed:,}, of which its files hold {stored:,}"
        raise too_large(f"{str(name)!r} must be a model that takes", got=got)


def _parts(value: object) -> Iterator[object]:
    """Yield a JSON value and all values in it. It does not recurse, because the nesting may be deep."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()


def sets_key(config: object, key: str) -> bool:
    """Return whether a configuration, or one of its parts, sets a key."""
    return any(isinstance(part, dict) and part.get(key) is not None for part in _parts(config))
