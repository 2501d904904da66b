"""Which parameters of a language model are trained: all, the embeddings, or a LoRA adapter beside them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import torch

from lastiterate.extras import MissingExtra

if TYPE_CHECKING:
    from lastiterate.lm.causal_model import CausalModel

Trained: TypeAlias = Literal["all", "embeddings", "lora"]

LORA_RANK = 8


def choose_trained(model: CausalModel, trained: Trained) -> CausalModel:
    """The model with ``requires_grad`` on those parameters that are trained; an adapter is wrapped around it."""
    if trained == "lora":
        return _with_adapter(model)
    for parameter in model.parameters():
        parameter.requires_grad_(trained == "all")
    if trained == "embeddings":
        for module in (model.get_input_embeddings(), model.get_output_embeddings()):
            module.weight.requires_grad_()
    return model


def _with_adapter(model: CausalModel) -> CausalModel:
    try:
        import peft
    except ImportError as error:
        raise MissingExtra("trained='lora' needs peft, which is not installed: pip install peft") from error
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft speaks of how it stores an adapter, which is not stored here
        torch.manual_seed(0)  # the adapter begins with random numbers, which must be the same in every session
        config = peft.LoraConfig(
            r=LORA_RANK, lora_alpha=2 * LORA_RANK, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        return cast("CausalModel", peft.get_peft_model(model, config, autocast_adapter_dtype=False))
