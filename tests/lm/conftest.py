"""Tiny language models with random weights, and dialogues that use two thirds of their words."""

import pickle
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>", "\n"]
_WORDS = (
    "i you we they like love have see know want a the my your some cat dog book song river house garden train "
    "and or but not today often here there yes no well why how old"
)
SPOKEN = _WORDS.split()
UNSPOKEN = [f"never{number}" for number in range(64 - len(SPECIAL) - len(SPOKEN))]
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # so that random logits differ by more than rounding
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SLIDING_WINDOW = 4


@pytest.fixture(scope="session")
def tiny_texts():
    """40 dialogues of two to four turns of three to six words."""
    from lastiterate.lm.texts import Texts  # here, because it needs the extra

    rng = np.random.default_rng(5)
    dialogues = []
    for _ in range(40):
        turns = [" ".join(rng.choice(SPOKEN, rng.integers(3, 7))) for _ in range(rng.integers(2, 5))]
        dialogues.append("\n".join(turns))
    return Texts(tuple(dialogues), "dialogue")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory):
    """The folder of a Llama whose head is its embedding."""
    return _build(tmp_path_factory, "Llama", tie_word_embeddings=True)


@pytest.fixture(scope="session")
def tiny_llama_untied(tmp_path_factory):
    """The folder of a Llama whose head has weights of its own."""
    return _build(tmp_path_factory, "Llama", tie_word_embeddings=False)


@pytest.fixture(scope="session")
def tiny_gemma2(tmp_path_factory):
    """The folder of a Gemma 2 whose first layer looks back at no more than ``SLIDING_WINDOW`` tokens."""
    return _build(tmp_path_factory, "Gemma2", sliding_window=SLIDING_WINDOW, query_pre_attn_scalar=8)


class WritesMarker:
    """Pickled, it creates a file as soon as it is loaded."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.fixture
def no_network(monkeypatch):
    """Whoever asks for an address or a connection is told so, and counted."""
    asked = []

    def refuse(*arguments, **_):
        asked.append(arguments)
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return asked


@pytest.fixture
def folder(tiny_llama, tmp_path):
    """A copy of a model to do harm to."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


@pytest.fixture
def pickled(tmp_path):
    """The bytes of a pickle and the file that appears if somebody loads it."""
    marker = tmp_path / "marker"
    content = pickle.dumps(WritesMarker(marker))
    pickle.loads(content)
    assert marker.exists()
    marker.unlink()
    return content, marker


def into_shards(folder):
    """Write the weights of a model into several files."""
    from lastiterate.lm.hub import load_model

    model = load_model(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="4KB")
    assert len(list(folder.glob("*.safetensors"))) > 1


def logits(model, ids):
    import torch

    with torch.no_grad():
        return model(torch.tensor(ids)).logits


def _build(tmp_path_factory, family, **changes):
    return build(tmp_path_factory.mktemp(family.lower()), family, **changes)


def build(folder, family, **changes):
    """Write a model with random weights, and its tokenizer, into a folder."""
    import torch
    import transformers

    config = getattr(transformers, f"{family}Config")(**SIZES, **changes)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = getattr(transformers, f"{family}ForCausalLM")(config)
    model.save_pretrained(folder)
    _tokenizer(transformers).save_pretrained(folder)
    return folder


def _tokenizer(transformers):
    """A token a word, and one for the end of a line."""
    import tokenizers

    words = {word: number for number, word in enumerate([*SPECIAL, *SPOKEN, *UNSPOKEN])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    split = tokenizers.pre_tokenizers.Split
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split(" ", "removed"), split("\n", "isolated")])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("<bos> $A", None, [("<bos>", words["<bos>"])])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )
