"""Safe loading of causal language models in Hugging Face's format: no file of a model can run code.

Weights are loaded only from safetensors files. The option ``use_safetensors=True`` of transformers is not enough. A
``config.json`` may name other weights (``transformers_weights``). An index may name shards that are pickles. And
transformers loads an adapter in the model's folder if peft is installed. All of these are checked first.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from fnmatch import fnmatch
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import huggingface_hub
import torch
import transformers
from huggingface_hub import constants, errors

from lastiterate.common.types import Fields, Foreign
from lastiterate.common.validation import boolean, one_of, shown
from lastiterate.data.files import PARSED, BadFile, as_path, decoding, find, kind, most_bytes, read_all, too_large
from lastiterate.lm.tokens import CausalModel, Tokenizer, described_growth

Precision: TypeAlias = Literal["float32", "bfloat16"]

_TRANSFORMERS: Foreign = transformers  # much of transformers is untyped
_UTILS: Foreign = huggingface_hub.utils
_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_ADAPTER = "adapter_config.json"
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
# Files that are downloaded with the weights. _PARSED are the files that transformers may parse.
_SMALL_FILES = ["*.json", "*.txt", "*.jinja", "tokenizer.model", "spiece.model"]
_PARSED = ["*config.json", "*.index.json", "*token*.json", "vocab*", "merges.txt", "chat_template*"]
_PARSED += ["*.jinja", "*.model"]
_TOKENIZER = "tokenizer.json"
_TOKENS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_COUNT = re.compile(r"(?:n|num)_(?:\w*_)?(?:layers?|heads?|experts?|blocks?|labels|groups)|(?:encoder|decoder)_layers")
_BYTES_A_MODULE = 2**20  # estimated bytes of a layer, an expert or a head, without parameters
_LONGEST_TOKEN = 2**12  # smallest assumed length of the longest token, in characters
_LONGEST_REASON = 200  # longest quotation of a library's error message, in characters


def load_tokenizer(name: str | Path, *, trust_remote_code: bool = False) -> Tokenizer:
    """Load the tokenizer of a folder or of a model on the Hugging Face hub. Weights are not downloaded."""
    boolean("trust_remote_code", trust_remote_code)
    folder = _local(name) or _download(str(name), _patterns(trust_remote_code))
    with _quiet():
        if not any(kind(folder / file) == "file" for file in _VOCABULARIES):
            raise BadFile(f"{str(name)!r} must hold one of {', '.join(_VOCABULARIES)}, got {_listing(folder)}")
        _check_small_files(folder)
        _check_tokenizer(folder)
        with _one_sentence(name):
            tokenizer: Tokenizer = _TRANSFORMERS.AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=trust_remote_code
            )
    return tokenizer


def load_model(name: str | Path, *, dtype: Precision = "float32", trust_remote_code: bool = False) -> CausalModel:
    """Load a causal language model from a folder or the Hugging Face hub, on the CPU and in eval mode.

    A folder is read without network access. Attention is "eager", because the uses of its parameters can be recorded.
    Without ``trust_remote_code``, no Python code of the model runs.
    """
    one_of("dtype", dtype, get_args(Precision))
    folder = model_folder(name, trust_remote_code=trust_remote_code)
    options = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    with _quiet():
        with _one_sentence(name):
            config = _TRANSFORMERS.AutoConfig.from_pretrained(str(folder), **options)
        _check_causal(name, config, trust_remote_code)
        for part in (config, config.get_text_config()):
            part.use_cache = False
        stored = sum((folder / file).stat().st_size for file in _weight_files(folder))
        model: CausalModel
        with _one_sentence(name):
            _check_built(name, config, stored, trust_remote_code=trust_remote_code)
            model, loaded = _TRANSFORMERS.AutoModelForCausalLM.from_pretrained(
                str(folder),
                config=config,
                dtype=getattr(torch, dtype),
                attn_implementation="eager",
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # mismatches are reported below, with names
                **options,
            )
        _check_complete(name, model, loaded)
        model.eval()
        with _one_sentence(name), torch.no_grad():
            first, second = model(input_ids=torch.tensor([[0, 0], [0, 1]])).logits[:, 0]
    # In a BERT that is not a decoder, the prediction after the first token depends on the second token.
    if (first - second).abs().max() > torch.finfo(model.dtype).eps ** 0.5 * first.abs().max():
        raise BadFile(f"{str(name)!r} must be a causal language model, got {type(model).__name__} that sees all tokens")
    return model


def weights_digest(name: str | Path) -> str:
    """Return the SHA-256 of ``config.json`` and the weight files."""
    folder = model_folder(name)
    whole = sha256()
    for file in (_CONFIG, *_weight_files(folder)):
        with decoding(folder / file, "a file that can be read") as content:
            whole.update(f"{file_digest(content, 'sha256').hexdigest()}  {file}\n".encode())
    return whole.hexdigest()


def model_folder(name: str | Path, *, trust_remote_code: bool = False) -> Path:
    """Return the folder of a model, after downloading it if needed. Raise if a pickle could be loaded."""
    boolean("trust_remote_code", trust_remote_code)
    folder = _local(name)
    if folder is None:
        folder = _download(str(name), [*_patterns(trust_remote_code), _WEIGHTS])
        if kind(folder / _WEIGHTS) is None and kind(folder / _INDEX) == "file":
            folder = _download(str(name), _weight_files(folder), revision=folder.name)
    _check_folder(folder)
    return folder


def _local(name: str | Path) -> Path | None:
    try:
        path = as_path(name)
    except ValueError:
        raise ValueError(f"model must be a folder or a model on the Hugging Face hub, got {shown(name)}") from None
    found = kind(path)
    if found == "folder":
        return path
    if found is not None:
        raise BadFile(f"{str(path)!r} must be the folder of a model, got a {found}")
    if isinstance(name, str):
        with suppress(ValueError):
            _UTILS.validate_repo_id(name)
            return None
    must = "must be a folder or the name of a model on the Hugging Face hub such as 'owner/model'"
    raise FileNotFoundError(f"{str(path)!r} {must}, but there is no such folder, and this is not a valid name")


def _patterns(trust_remote_code: bool) -> list[str]:
    return [*_SMALL_FILES, *(["*.py"] if trust_remote_code else [])]


def _download(name: str, patterns: list[str], revision: str | None = None) -> Path:
    options: Foreign = {"revision": revision, "allow_patterns": patterns, "ignore_patterns": ["*/*"]}
    try:
        with nullcontext() if sys.stderr.isatty() else _quiet():  # show download progress only in a terminal
            return Path(huggingface_hub.snapshot_download(name, **options))
    except Exception as error:  # huggingface_hub and its HTTP client have no common base class
        if constants.HF_HUB_OFFLINE:
            why = "the hub's cache on this computer lacks it or a part of it while HF_HUB_OFFLINE forbids a download"
        elif isinstance(error, errors.GatedRepoError):
            why = "the hub gives it only to those who accepted its terms and logged in with `hf auth login`"
        elif isinstance(error, errors.RepositoryNotFoundError):
            why = "the hub has none of that name, or only for those who log in with `hf auth login`"
        else:
            why = f"the hub could not be reached: {_shortened(error.__cause__ or error)}"
        must = "model must be a folder or a model on the Hugging Face hub"
        raise ValueError(f"{must}, but no folder is {name!r}, and {why}") from None


def _check_folder(folder: Path) -> None:
    """Raise if anything in the folder could make transformers load a file that is not safetensors."""
    if kind(folder / _CONFIG) != "file":
        raise BadFile(f"{str(folder)!r} must hold {_CONFIG} and {_WEIGHTS}, got {_listing(folder)}")
    _check_small_files(folder)
    config = _read_object(folder / _CONFIG)
    _check_counts(folder / _CONFIG, config)
    for key, must in (
        ("transformers_weights", "leave it to transformers which file holds the weights"),
        (
            "quantization_config",
            "describe a model in float32 or bfloat16, since 8-bit weights cannot be trained",
        ),
    ):
        if any(isinstance(part, dict) and part.get(key) is not None for part in _values_in(config)):
            raise BadFile(f"{str(folder / _CONFIG)!r} must {must}, got one with {key}")
    if kind(folder / _ADAPTER) is not None:
        what = "merge the adapter into the model with merge_and_unload() of peft and save that"
        raise BadFile(f"{str(folder)!r} must hold a whole model, got one with {_ADAPTER}: {what}")
    for file in _weight_files(folder):
        if kind(folder / file) != "file":
            raise BadFile(f"{str(folder)!r} must hold {file!r}, which {_INDEX} names, got {_listing(folder)}")


def _weight_files(folder: Path) -> list[str]:
    """Return the names of the weight files, all safetensors, and of their index."""
    if kind(folder / _WEIGHTS) == "file":
        return [_WEIGHTS]
    if kind(folder / _INDEX) != "file":
        what = "pickles are never loaded. If you trust them, convert them by model.save_pretrained(folder)"
        must = f"must hold its weights as {_WEIGHTS} or {_INDEX}, got {_listing(folder)}"
        raise BadFile(f"{str(folder)!r} {must}: {what}")
    places = _read_object(folder / _INDEX).get("weight_map")
    shards = list(places.values()) if isinstance(places, dict) else []
    for shard in shards or [None]:
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            must = "must name safetensors files beside it in weight_map"
            raise BadFile(f"{str(folder / _INDEX)!r} {must}, got {shard!r}")
    return [_INDEX, *sorted(set(shards))]


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if names[8:] else "") if names else "an empty folder"


def _check_causal(name: str | Path, config: transformers.PreTrainedConfig, trust_remote_code: bool) -> None:
    """Raise for encoders, because transformers would load them with a new, random language-model head."""
    if trust_remote_code and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {}):
        return
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    stored = config.architectures or []
    known = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING and not config.is_encoder_decoder
    if not known or (stored and names.isdisjoint(stored)):
        got = " and ".join(stored) or f"a configuration of type {config.model_type}"
        raise BadFile(f"{str(name)!r} must be a causal language model, got {got}")


def _check_complete(name: str | Path, model: CausalModel, loaded: Fields) -> None:
    """Raise if a weight is missing or has the wrong shape: transformers would initialise it at random."""
    wanted = f"{str(name)!r} must hold all parameters of {type(model).__name__}"
    for parameter, stored, shape in sorted(loaded["mismatched_keys"]):
        raise BadFile(f"{wanted}, got {parameter!r} of shape {tuple(stored)} instead of {tuple(shape)}")
    if absent := sorted(loaded["missing_keys"]):
        more = f" and {len(absent) - 1} more are missing" if absent[1:] else " is missing"
        raise BadFile(f"{wanted}, but {absent[0]!r}{more}")


@contextmanager
def _one_sentence(name: str | Path) -> Iterator[None]:
    """Turn errors of transformers, which have many types and lines, into one sentence."""
    try:
        yield
    except BadFile:
        raise
    except Exception as error:  # also ImportError, because some tokenizers need further packages
        if "trust_remote_code" in str(error):
            why = "which needs Python code that comes with it: read that code first"
            raise ValueError(
                f"trust_remote_code (--trust-remote-code) must be given for {str(name)!r}, {why}"
            ) from None
        raise BadFile(f"{str(name)!r} could not be loaded by transformers: {_shortened(error)}") from None


def _shortened(error: BaseException) -> str:
    words = " ".join(str(error).split()).split(". ")[0].rstrip(".") or type(error).__name__
    return words if len(words) <= _LONGEST_REASON else f"{words[:_LONGEST_REASON]} [...]"


@contextmanager
def _quiet() -> Iterator[None]:
    """Turn off progress bars and loading reports of transformers."""
    log, hub_bars = _TRANSFORMERS.utils.logging, not _UTILS.are_progress_bars_disabled()
    bars, verbosity = log.is_progress_bar_enabled(), log.get_verbosity()
    log.disable_progress_bar()
    log.set_verbosity_error()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()  # also turns on the progress bars of huggingface_hub
        if not hub_bars:
            _UTILS.disable_progress_bars()


# Checks of a model's small files before transformers reads them: one line can describe a giant model.


def _read_object(path: Path) -> Fields:
    with decoding(path, "a JSON object") as file:
        content = json.loads(bytes(read_all(file, path, PARSED)))
        if not isinstance(content, dict):
            raise TypeError
    return content


def _check_small_files(folder: Path) -> None:
    """Raise for files that are too large to parse, and for pipes and devices, whose size is unknown."""
    for path in sorted(folder.iterdir()):
        if any(fnmatch(path.name, pattern) for pattern in _PARSED):
            size = find(path, "file").stat().st_size
            if size > most_bytes(PARSED):
                raise too_large(f"{str(path)!r} must have", PARSED, f"{size:,}")


def _check_tokenizer(folder: Path) -> None:
    path = folder / _TOKENIZER
    if not path.exists():
        return
    described = _read_object(path)
    with decoding(path, "the description of a tokenizer"):
        growth = described_growth(described)
    others = [_read_object(folder / name) for name in _TOKENS if (folder / name).exists()]
    tokens = (part for part in _values_in([described.get("added_tokens"), *others]) if type(part) is str)
    longest = max(map(len, tokens), default=0)
    if max(longest, _LONGEST_TOKEN) * growth > most_bytes(PARSED):
        got = f"steps that may make a text {growth:.4g} times as long, for tokens of up to {longest:,}"
        raise too_large(f"{str(path)!r} must make of a token", PARSED, got, "characters")


def _check_counts(path: Path, config: Fields) -> None:
    for part in _values_in(config):
        for key, count in part.items() if isinstance(part, dict) else ():
            if not _COUNT.fullmatch(str(key)) or type(count) is not int:
                continue
            if count < 0:
                raise BadFile(f"{str(path)!r} must have a {key} of at least 0, got {count}")
            if count * _BYTES_A_MODULE > most_bytes():
                must = f"{str(path)!r} must have a {key} whose modules take, at {_BYTES_A_MODULE:,} each,"
                raise too_large(must, got=f"{count:,}")


def _check_built(name: str | Path, config: transformers.PreTrainedConfig, stored: int, **options: Foreign) -> None:
    with torch.device("meta"):
        model = _TRANSFORMERS.AutoModelForCausalLM.from_config(config, **options)
    needed = sum(part.numel() * 4 for part in (*model.parameters(), *model.buffers()))
    if needed > max(most_bytes(), 4 * stored):
        got = f"one of {needed:,} with files of {stored:,}"
        raise too_large(f"{str(name)!r} must be a model that takes", got=got)


def _values_in(value: object) -> Iterator[object]:
    waiting = [value]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
