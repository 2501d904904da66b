"""What we use of a Hugging Face language model, as a type: transformers' own classes say less about themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch


class TextConfig(Protocol):
    """The sizes of a model."""

    hidden_size: int
    num_hidden_layers: int
    vocab_size: int


class Config(Protocol):
    """The configuration of a model, which may be one for texts among others."""

    def get_text_config(self) -> TextConfig: ...


class CausalModel(torch.nn.Module):
    """A causal language model of transformers, or one of peft around it. None is made from this class."""

    config: Config
    dtype: torch.dtype
    get_input_embeddings: Callable[[], torch.nn.Embedding]
    get_output_embeddings: Callable[[], torch.nn.Linear]
    gradient_checkpointing_enable: Callable[..., None]
