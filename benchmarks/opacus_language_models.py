"""A step of DP-SGD on a language model with Opacus, in each of its ways to find per-sample gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

WAYS = ("functorch", "hooks", "ghost")


def opacus_step(
    model: Any, tokens: torch.Tensor, way: str, *, noise: float, clip_norm: float, rate: float
) -> Callable[[], None] | None:
    """What trains one step; None: Opacus refuses the model."""
    from opacus.grad_sample import GradSampleModule
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    if GradSampleModule.validate(model.train()):
        return None
    options: dict[str, Any] = {"batch_first": True, "loss_reduction": "mean"}
    plain = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=rate)
    noisy = {"noise_multiplier": noise, "max_grad_norm": clip_norm, "expected_batch_size": len(tokens)}
    criterion: Any = torch.nn.CrossEntropyLoss()
    if way == "ghost":
        sampled = GradSampleModuleFastGradientClipping(model, **options, max_grad_norm=clip_norm)
        optimizer: Any = DPOptimizerFastGradientClipping(plain, **noisy)
        criterion = DPLossFastGradientClipping(sampled, optimizer, criterion, "mean")
    else:
        sampled = GradSampleModule(model, **options, force_functorch=way == "functorch")
        optimizer = DPOptimizer(plain, **noisy)
    # One row of positions for each example, since Opacus takes everything to have a row an example.
    positions = torch.arange(tokens.shape[1]).repeat(len(tokens), 1)

    def step() -> None:
        optimizer.zero_grad()
        logits = sampled(input_ids=tokens, position_ids=positions, use_cache=False).logits[:, :-1]
        shape = {"shape": logits.shape} if way == "ghost" else {}
        criterion(logits.flatten(0, 1), tokens[:, 1:].flatten(), **shape).backward()
        optimizer.step()

    return step
