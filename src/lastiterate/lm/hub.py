"""Causal language models in Hugging Face's layout, loaded so that no file of a model can run code.

Weights are loaded from safetensors only. The option ``use_safetensors=True`` of transformers is not enough: a
``config.json`` may name other weights (``transformers_weights``), an index may name shards that are pickles, and
transformers loads an adapter in the model's folder if peft is installed. All of these are checked first.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from hashlib import file_digest, sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict, get_args

from lastiterate.common.errors import MissingExtra
from lastiterate.common.validation import one_of
from lastiterate.data.files import BadFile, as_path, decoding, kind
from lastiterate.lm.model_files import (
    SMALL_FILES,
    check_built,
    check_counts,
    check_small_files,
    check_tokenizer,
    read_object,
    sets_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from transformers import PreTrainedConfig

    from lastiterate.lm.tokens import CausalModel, Tokenizer

Precision: TypeAlias = Literal["float32", "bfloat16"]

_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_ADAPTER = "adapter_config.json"
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
_LONGEST_REASON = 200  # characters of a library's error message


class _Loaded(TypedDict):
    """Parameters that transformers did not load: missing names, and mismatched shapes in file and model."""

    missing_keys: set[str]
    mismatched_keys: set[tuple[str, tuple[int, ...], tuple[int, ...]]]


def load_tokenizer(name: str | Path, *, trust_remote_code: bool = False) -> Tokenizer:
    """Load the tokenizer of a folder or of a model on the Hugging Face hub. Weights are not downloaded."""
    _check_flag(trust_remote_code)
    transformers = _extra("transformers")
    folder = _local(name) or _download(str(name), _patterns(trust_remote_code))
    with _quiet(transformers):
        if not any(kind(folder / file) == "file" for file in _VOCABULARIES):
            raise BadFile(f"{str(name)!r} must hold one of {', '.join(_VOCABULARIES)}, got {_listing(folder)}")
        check_small_files(folder)
        check_tokenizer(folder)
        with _one_sentence(name):
            tokenizer: Tokenizer = transformers.AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=trust_remote_code
            )
    return tokenizer


def load_model(name: str | Path, *, dtype: Precision = "float32", trust_remote_code: bool = False) -> CausalModel:
    """Load a causal language model from a folder or the Hugging Face hub, on the CPU and in eval mode.

    A folder is read without network access. Attention is eager, because its gradients can be followed. Nothing is
    cached between calls.

    Args:
        name: a folder, or ``"owner/model"``.
        dtype: the precision to which parameters are rounded.
        trust_remote_code: whether Python code of the model may run. If False, a model that has its own code but is
            known to transformers is loaded with the code of transformers.
    """
    _check_flag(trust_remote_code)
    one_of("dtype", dtype, get_args(Precision))
    torch, transformers = _extra("torch"), _extra("transformers")
    folder = model_folder(name, trust_remote_code=trust_remote_code)
    options = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    with _quiet(transformers):
        with _one_sentence(name):
            config = transformers.AutoConfig.from_pretrained(str(folder), **options)
        _check_causal(name, config, trust_remote_code)
        for part in (config, config.get_text_config()):
            part.use_cache = False
        stored = sum((folder / file).stat().st_size for file in _weight_files(folder))
        with _one_sentence(name):
            check_built(name, config, stored, torch, transformers, trust_remote_code=trust_remote_code)
        model: CausalModel
        with _one_sentence(name):
            model, loaded = transformers.AutoModelForCausalLM.from_pretrained(
                str(folder),
                config=config,
                dtype=getattr(torch, dtype),
                attn_implementation="eager",
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # otherwise transformers logs the names and raises an error without them
                **options,
            )
        _check_complete(name, model, loaded)
        model.eval()
        with _one_sentence(name):
            looks_ahead = _looks_ahead(torch, model)
    if looks_ahead:
        raise BadFile(f"{str(name)!r} must be a causal language model, got {type(model).__name__} that sees all tokens")
    return model


def weights_digest(name: str | Path) -> str:
    """Return the SHA-256 of ``config.json`` and the weight files. The folder's name does not matter."""
    folder = model_folder(name)
    whole = sha256()
    for file in (_CONFIG, *_weight_files(folder)):
        with decoding(folder / file, "a file that can be read") as content:
            whole.update(f"{file_digest(content, 'sha256').hexdigest()}  {file}\n".encode())
    return whole.hexdigest()


def model_folder(name: str | Path, *, trust_remote_code: bool = False) -> Path:
    """Return the folder of a model, downloaded to the hub's cache if needed. Raise if a pickle could be loaded.

    Load the model and its tokenizer from this folder: the hub may have a newer version of the model a moment later.
    """
    _check_flag(trust_remote_code)
    local = _local(name)
    if local:
        _check_folder(local)
        return local
    wanted = _patterns(trust_remote_code)
    folder = _download(str(name), [*wanted, _WEIGHTS])
    if kind(folder / _WEIGHTS) is None and kind(folder / _INDEX) == "file":
        folder = _download(str(name), _weight_files(folder), revision=folder.name)
    _check_folder(folder)
    return folder


def _local(name: str | Path) -> Path | None:
    """Return the folder of this name; None if the name can only be a model on the hub."""
    try:
        path = as_path(name)
    except ValueError:
        raise ValueError(f"model must be a folder or a model on the Hugging Face hub, got {name!r}") from None
    found = kind(path)
    if found == "folder":
        return path
    if found is not None:
        raise BadFile(f"{str(path)!r} must be the folder of a model, got a {found}")
    if isinstance(name, str) and _could_be_on_hub(name):
        return None
    raise FileNotFoundError(
        f"{str(path)!r} must be a folder or the name of a model on the Hugging Face hub such as 'owner/model', "
        "but nothing is there and no model can be called so"
    )


def _could_be_on_hub(name: str) -> bool:
    validators = _extra("huggingface_hub.utils")
    try:
        validators.validate_repo_id(name)
    except ValueError:
        return False
    return True


def _patterns(trust_remote_code: bool) -> list[str]:
    return [*SMALL_FILES, *(["*.py"] if trust_remote_code else [])]


def _download(name: str, patterns: list[str], revision: str | None = None) -> Path:
    """Return the folder of a model in the hub's cache, updated from the hub. Offline, the cache is used unchanged.

    The hub's progress bars are shown if stderr is a terminal, because models have gigabytes.
    """
    download = _extra("huggingface_hub").snapshot_download
    watched = nullcontext() if sys.stderr.isatty() else _quiet(_extra("transformers"))
    try:
        with watched:
            return Path(download(name, revision=revision, allow_patterns=patterns, ignore_patterns=["*/*"]))
    except Exception as error:  # huggingface_hub and its HTTP client have no common base class
        raise ValueError(
            f"model must be a folder or a model on the Hugging Face hub, but no folder is {name!r}, "
            f"and {_why_not_downloaded(error)}"
        ) from None


def _why_not_downloaded(error: Exception) -> str:
    errors = _extra("huggingface_hub.errors")
    if _extra("huggingface_hub.constants").HF_HUB_OFFLINE:
        return "the hub's cache on this computer lacks it or a part of it while HF_HUB_OFFLINE forbids a download"
    if isinstance(error, errors.GatedRepoError):
        return "the hub gives it only to those who accepted its terms and logged in with `hf auth login`"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "the hub has none of that name, or only for those who log in with `hf auth login`"
    return f"the hub could not be reached: {_shortened(error.__cause__ or error)}"


def _check_folder(folder: Path) -> None:
    """Raise if anything in the folder could make transformers load a file that is not safetensors."""
    if kind(folder / _CONFIG) != "file":
        raise BadFile(f"{str(folder)!r} must hold {_CONFIG} and {_WEIGHTS}, got {_listing(folder)}")
    check_small_files(folder)
    config = read_object(folder / _CONFIG)
    check_counts(folder / _CONFIG, config)
    for key, must in (
        ("transformers_weights", "leave it to transformers which file holds the weights"),
        ("quantization_config", "describe a model that is not quantized"),
    ):
        if sets_key(config, key):
            raise BadFile(f"{str(folder / _CONFIG)!r} must {must}, got one with {key}")
    if kind(folder / _ADAPTER) is not None:
        raise BadFile(
            f"{str(folder)!r} must hold a whole model, got one with {_ADAPTER}: merge the adapter into the model with "
            "merge_and_unload() of peft and save that"
        )
    for file in _weight_files(folder):
        if kind(folder / file) != "file":
            raise BadFile(f"{str(folder)!r} must hold {file!r}, which {_INDEX} names, got {_listing(folder)}")


def _weight_files(folder: Path) -> list[str]:
    """Return the names of the weight files that transformers loads, all safetensors, and of their index."""
    if kind(folder / _WEIGHTS) == "file":
        return [_WEIGHTS]
    if kind(folder / _INDEX) != "file":
        raise BadFile(
            f"{str(folder)!r} must hold its weights as {_WEIGHTS} or {_INDEX}, got {_listing(folder)}: pickles are "
            "never loaded, and where you trust them model.save_pretrained(folder) of transformers 5 converts them"
        )
    places = read_object(folder / _INDEX).get("weight_map")
    shards = list(places.values()) if isinstance(places, dict) else []
    for shard in shards or [None]:
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise BadFile(
                f"{str(folder / _INDEX)!r} must name safetensors files beside it in weight_map, got {shard!r}"
            )
    return [_INDEX, *sorted(set(shards))]


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if names[8:] else "") if names else "an empty folder"


def _check_causal(name: str | Path, config: PreTrainedConfig, trust_remote_code: bool) -> None:
    """Raise for encoders, by ``architectures``: transformers would load them with a new language-model head."""
    if trust_remote_code and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {}):
        return
    transformers = _extra("transformers")
    names = set(_extra("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    stored = config.architectures or []
    known = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING and not config.is_encoder_decoder
    if not known or (stored and names.isdisjoint(stored)):
        got = " and ".join(stored) or f"a configuration of type {config.model_type}"
        raise BadFile(f"{str(name)!r} must be a causal language model, got {got}")


def _looks_ahead(torch: ModuleType, model: CausalModel) -> bool:
    """Return whether the prediction after the first token depends on the second, as in a BERT that is no decoder."""
    with torch.no_grad():
        first, second = model(input_ids=torch.tensor([[0, 0], [0, 1]])).logits[:, 0]
    rounding = torch.finfo(model.dtype).eps ** 0.5 * first.abs().max()
    return bool((first - second).abs().max() > rounding)


def _check_complete(name: str | Path, model: CausalModel, loaded: _Loaded) -> None:
    """Raise if transformers initialised a part of the model at random."""
    wanted = f"{str(name)!r} must hold all parameters of {type(model).__name__}"
    for parameter, stored, shape in sorted(loaded["mismatched_keys"]):
        raise BadFile(f"{wanted}, got {parameter!r} of shape {tuple(stored)} instead of {tuple(shape)}")
    absent = sorted(loaded["missing_keys"])
    if absent:
        more = f" and {len(absent) - 1} more are missing" if absent[1:] else " is missing"
        raise BadFile(f"{wanted}, but {absent[0]!r}{more}")


@contextmanager
def _one_sentence(name: str | Path) -> Iterator[None]:
    """Turn errors of transformers, which have many types and lines, into one sentence."""
    try:
        yield
    except BadFile:
        raise
    except Exception as error:  # also ImportError, for packages that single tokenizers need
        if "trust_remote_code" in str(error):
            raise ValueError(
                f"trust_remote_code (--trust-remote-code) must be given for {str(name)!r}, which needs Python code "
                "that comes with it: read that code first"
            ) from None
        raise BadFile(f"{str(name)!r} could not be loaded by transformers: {_shortened(error)}") from None


def _shortened(error: BaseException) -> str:
    """Return the first sentence of an error message."""
    words = " ".join(str(error).split()).split(". ")[0].rstrip(".") or type(error).__name__
    return words if len(words) <= _LONGEST_REASON else f"{words[:_LONGEST_REASON]} [...]"


@contextmanager
def _quiet(transformers: ModuleType) -> Iterator[None]:
    """Turn off progress bars and loading reports of transformers. The loading is checked here instead."""
    log, hub = transformers.utils.logging, _extra("huggingface_hub.utils")
    bars, verbosity, hub_bars = log.is_progress_bar_enabled(), log.get_verbosity(), not hub.are_progress_bars_disabled()
    log.disable_progress_bar()
    log.set_verbosity_error()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()  # also turns on the hub's bars
        if not hub_bars:
            hub.disable_progress_bars()


def _check_flag(trust_remote_code: bool) -> None:
    if not isinstance(trust_remote_code, bool):
        raise ValueError(f"trust_remote_code must be True or False, got {trust_remote_code!r}")


def _extra(module: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(f'{module} could not be imported: pip install "lastiterate[lm]"') from error
