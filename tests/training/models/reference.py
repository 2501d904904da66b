"""The same networks in PyTorch, with the weights of ours."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from torch.nn import functional


def array(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def random_model(make: Callable[[jax.Array], Any], seed: int = 0) -> Any:
    """A model of this structure with random parameters, without compiling how it begins: no gain is 1, no offset 0."""
    leaves, structure = jax.tree.flatten(jax.eval_shape(make, jax.random.key(0)))
    values = [array(seed + i, *leaf.shape) / np.sqrt(leaf.shape[0]) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, values)


def tensors(model: Any) -> Any:
    """The model with tensors for arrays, whose gradients PyTorch keeps."""
    return jax.tree.map(lambda leaf: torch.tensor(np.asarray(leaf), requires_grad=True), model)


def gradients(model: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.grad.numpy(), model)


def channels_first(image: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(image)).permute(2, 0, 1)[None]


def kernel(weight: torch.Tensor, size: int) -> torch.Tensor:
    """A matrix [size * size * inputs, outputs] as the kernel PyTorch takes."""
    return weight.reshape(size, size, -1, weight.shape[1]).permute(3, 2, 0, 1)


def convolution(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return functional.conv2d(x, kernel(layer.weight, layer.kernel), layer.bias, layer.stride, layer.padding)


def cnn(model: Any, x: torch.Tensor) -> torch.Tensor:
    for layer in (model.first, model.second):
        x = functional.max_pool2d(torch.tanh(convolution(layer, x)), 2, 1)
    flat = x.permute(0, 2, 3, 1).reshape(-1)
    hidden = torch.tanh(flat @ model.hidden.weight + model.hidden.bias)
    return hidden @ model.output.weight + model.output.bias


def wide_resnet(model: Any, x: torch.Tensor) -> torch.Tensor:
    """The network as published: an activation, then its normalisation, then a standardised convolution."""
    x = _standardised(model.stem, x)
    for block in model.blocks:
        skipped = x if block.skip is None else _branch(block.skip, x)
        x = _branch(block.second, _branch(block.first, x)) + skipped
    x = _group_norm(model.norm, torch.relu(x)).mean((0, 2, 3))
    return x @ model.output.weight + model.output.bias


def _branch(branch: Any, x: torch.Tensor) -> torch.Tensor:
    return _standardised(branch.conv, _group_norm(branch.norm, torch.relu(x)))


def _group_norm(norm: Any, x: torch.Tensor) -> torch.Tensor:
    return functional.group_norm(x, 16, norm.scale, norm.offset, 1e-5)


def _standardised(layer: Any, x: torch.Tensor) -> torch.Tensor:
    weight = kernel(layer.weight, layer.kernel)
    variance, mean = torch.var_mean(weight, (1, 2, 3), keepdim=True, correction=0)
    fan_in = weight[0].numel()
    weight = (weight - mean) / torch.sqrt(torch.clamp(variance * fan_in, min=1e-4)) * layer.gain[:, None, None, None]
    if layer.kernel == 3:  # on an even side, a stride of 2 has nothing to pad in front
        x = functional.pad(x, (0, 1, 0, 1) if layer.stride == 2 else (1, 1, 1, 1))
    return functional.conv2d(x, weight, layer.bias, layer.stride)
