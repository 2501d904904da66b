"""What a run says about the parameters of one training: how much of each step is in them, and how much noise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, combinations, pairwise
from math import comb
from typing import Any, TypeAlias

import numpy as np

from lastiterate.auditing.experiments.user_trainer import Trained
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import told
from lastiterate.optimizer import SGD, is_adam
from lastiterate.privacy.mixtures.correlated_noise import filtered_noise
from lastiterate.privacy.mixtures.law import epoch_length
from lastiterate.run import DPSGD, noise_root

_MOST_SUMS = 2**17


@dataclass(frozen=True, eq=False)
class Declared:
    """A run, step by step. Weights are those of the sum of gradients: learning rates included."""

    run: DPSGD

    @cached_property
    def weights(self) -> FloatArray:
        """Minus the derivative of the released parameters by each step's sum of gradients."""
        return np.broadcast_to(np.asarray(self.run.effective_weights(), np.float64), (self.run.steps,))

    @cached_property
    def rates(self) -> FloatArray:
        """Probability that an example is in each batch."""
        return np.broadcast_to(np.asarray(self.run.sample_rate, np.float64), (self.run.steps,))

    @cached_property
    def variance(self) -> float:
        """Variance of the noise in each released parameter."""
        if self.run.noise_filter is not None:
            return (filtered_noise(self.run, self.weights) * self.run.clip_norm) ** 2
        sigma = np.broadcast_to(np.asarray(self.run.noise_multiplier, np.float64), (self.run.steps,))
        return float(np.sum((self.weights * sigma * self.run.clip_norm) ** 2))

    @cached_property
    def last(self) -> float:
        """The share of the last step in the variance of the noise, which nothing after it can take away."""
        sigma = np.broadcast_to(np.asarray(self.run.noise_multiplier, np.float64), (self.run.steps,))
        own = 1.0 if self.run.noise_filter is None else self.run.noise_filter[0]
        return float((self.weights[-1] * own * sigma[-1] * self.run.clip_norm) ** 2) / self.variance

    @property
    def is_correlated(self) -> bool:
        """Whether later noise takes back or adds to earlier noise, which curvature then brings out of balance."""
        return self.run.noise_filter is not None and any(self.run.noise_filter[1 : self.run.steps])

    @cached_property
    def squares(self) -> float:
        """Sum of the squared weights, by which sampling is bounded."""
        return float(np.sum(self.weights**2))

    @cached_property
    def most(self) -> float:
        """The most that one example can weigh: it is in every batch."""
        return float(np.sum(np.abs(self.weights)))

    def reach(self, models: int, error: float) -> float:
        """How far the sum of an example's weights, over models, may be from its mean, by Bernstein's inequality."""
        doubt = float(np.log(2.0 / error))
        if self.run.min_separation > 1:  # its batches depend on each other: Hoeffding's inequality
            return self.most * float(np.sqrt(0.5 * models * doubt))
        variance = models * float(np.sum(self.weights**2 * self.rates * (1.0 - self.rates)))
        largest = float(np.abs(self.weights).max()) / 3.0
        return largest * doubt + float(np.sqrt((largest * doubt) ** 2 + 2.0 * variance * doubt))

    @cached_property
    def repeated(self) -> float:
        """By which factor the variance of the noise grows if every step adds the same noise."""
        if self.is_correlated:
            return 1.0  # nobody knows what would be the same
        return float(np.sum(self.weights)) ** 2 / self.squares

    @cached_property
    def memory(self) -> float:
        """How much of the initial parameters is in the released ones: what weight decay leaves."""
        sgd = self.run.optimizer
        if is_adam(sgd):
            return sgd.memory(self.run.steps, noise_root(self.run))
        return 1.0 if sgd is None or (not sgd.weight_decay and sgd.averaging is None) else _kept(sgd, self.run.steps)

    @property
    def is_plain(self) -> bool:
        """Whether every step counts alike, so that the effect of a canary counts its batches."""
        return bool(np.allclose(self.weights, self.weights[0], rtol=1e-9, atol=0.0))

    @property
    def is_certain(self) -> bool:
        """Whether the canary is in every batch."""
        return bool(np.all(self.rates == 1.0))

    @cached_property
    def epochs(self) -> list[slice]:
        """The steps of each epoch of shuffled batches."""
        length = epoch_length(self.run)
        return [slice(begin, min(begin + length, self.run.steps)) for begin in range(0, self.run.steps, length)]

    @cached_property
    def sums(self) -> FloatArray | None:
        """All that one example can weigh, sorted, by which batches it is in; None: too many sums to list."""
        if self.is_certain:
            return np.array([self.weights.sum()])
        return self._shuffled_sums() if self.run.sampling == "shuffled" else self.free_sums

    @cached_property
    def free_sums(self) -> FloatArray | None:
        """The same, whatever the sampling, if an example is sometimes in and sometimes not."""
        steps, weights = self.run.steps, self.weights
        if self.is_plain:
            return np.arange(steps + 1) * weights[0] if steps <= _MOST_SUMS else None
        if self.is_certain:
            return np.array([weights.sum()])
        free = np.flatnonzero((self.rates < 1.0) & (self.rates > 0.0))
        if 2 ** min(len(free), 64) > _MOST_SUMS:
            return None
        sums = np.array([float(weights[self.rates == 1.0].sum())])
        for step in free:
            sums = np.concatenate([sums, sums + weights[step]])
        return np.unique(sums)

    def sums_of_few(self, most: int) -> FloatArray:
        """What an example can weigh that is in at most so many batches, and in one at least; sorted."""
        steps = np.flatnonzero(self.rates > 0.0)
        least, counts = [np.zeros(1)], 0
        for count in range(1, most + 1):
            counts += comb(len(steps), count)
            if counts > _MOST_SUMS:
                break
            least.append(_sums_of(self.weights[steps], count))
        return np.unique(np.concatenate(least[1:])) if len(least) > 1 else np.zeros(0)

    def _shuffled_sums(self) -> FloatArray | None:
        """Each example once in a whole epoch, and once or never in a last part of one."""
        whole = max(len(range(*self.epochs[0].indices(self.run.steps))), epoch_length(self.run))
        sums = np.zeros(1)
        for epoch in self.epochs:
            weights = np.unique(self.weights[epoch])
            if epoch.stop - epoch.start < whole:
                weights = np.append(weights, 0.0)
            sums = np.unique(np.round(np.add.outer(sums, weights).ravel(), 15))
            if len(sums) > _MOST_SUMS:
                return None
        return sums


def _sums_of(weights: FloatArray, count: int) -> FloatArray:
    """The sums of each ``count`` of these weights."""
    chosen = np.array(list(combinations(range(len(weights)), count)))
    return np.asarray(weights[chosen].sum(axis=1), np.float64)


def _kept(sgd: SGD, steps: int) -> float:
    """What is released after so many steps from 1 where all gradients are zero, which decay and averaging change."""
    value, buffer, mean, moving = 1.0, 0.0, 0.0, 1.0
    for step, rate in enumerate(np.broadcast_to(np.asarray(sgd.learning_rate, np.float64), (steps,)).tolist()):
        gradient = 0.0 if sgd.decoupled else sgd.weight_decay * value
        if sgd.decoupled:
            value *= 1.0 - rate * sgd.weight_decay
        if sgd.momentum:
            buffer = gradient if step == 0 else sgd.momentum * buffer + (1.0 - sgd.dampening) * gradient
            gradient = gradient + sgd.momentum * buffer if sgd.nesterov else buffer
        value -= rate * gradient
        mean += value / steps
        if isinstance(sgd.averaging, float):
            moving = sgd.averaging * moving + (1.0 - sgd.averaging) * value
    if sgd.averaging is None:
        return value
    return mean if sgd.averaging == "uniform" else moving


# Whatever a trainer returns as one vector of numbers, and such a vector in the form of what it returned.
#
# NumPy and JAX arrays, PyTorch tensors, modules and state dicts, and dicts, lists and tuples of them. Other trees, as
# of equinox, are taken apart by JAX, if it is loaded.

Foreign: TypeAlias = Any  # arrays, and trees of them, of libraries that need not be installed
_TAKEN = "arrays, a dict, list or tuple of them, a PyTorch module or a state dict"
_DEEPEST = 100  # dicts, lists and tuples in each other; a list that contains itself has no bottom
_LARGEST = 1e150  # whose square is a number


@dataclass(frozen=True, eq=False)
class Parameters:
    """Parameters as one vector, and which of it is which tensor.

    Attributes:
        vector: all numbers, one tensor after the other.
        names: of the tensors.
        shapes: of the tensors.
        precision: the coarsest relative rounding of the tensors' number types.
        tree: what the trainer returned.
        trained: what the trainer said about its training, if it did.
    """

    vector: FloatArray
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    precision: float
    tree: Foreign
    trained: Trained | None = None

    @cached_property
    def slices(self) -> list[slice]:
        """Where each tensor is in the vector."""
        ends = accumulate((int(np.prod(shape)) for shape in self.shapes), initial=0)
        return [slice(begin, end) for begin, end in pairwise(ends)]


def flatten(result: Foreign) -> Parameters:
    """The parameters that a trainer returned; a ``ValueError`` in one sentence, if they are none."""
    trained = result if isinstance(result, Trained) else None
    tree = result.result if isinstance(result, Trained) else result
    leaves = [(name, leaf) for name, leaf in _leaves(_opened(tree), "", _DEEPEST) if _is_float(leaf)]
    if not leaves:
        raise ValueError(f"the trainer must return parameters ({_TAKEN}), got {told(tree)}")
    arrays = [(name or "parameters", _numbers(leaf)) for name, leaf in leaves]
    return Parameters(
        np.concatenate([array.astype(np.float64).ravel() for _, array in arrays]),
        tuple(name for name, _ in arrays),
        tuple(array.shape for _, array in arrays),
        max(_rounding(leaf) for _, leaf in leaves),
        tree,
        trained,
    )


def require_finite(parameters: Parameters) -> None:
    """Refuse parameters that are NaN, infinite, or too large to compute with."""
    if np.all(np.abs(parameters.vector) <= _LARGEST):
        return
    for name, where in zip(parameters.names, parameters.slices, strict=True):
        tensor = parameters.vector[where]
        if bad := np.count_nonzero(~np.isfinite(tensor)):
            raise ValueError(f"parameters must be finite, but {bad:,} of tensor {name!r} are NaN or infinite")
        if bad := np.count_nonzero(np.abs(tensor) > _LARGEST):
            raise ValueError(f"parameters must be in [-1e150, 1e150], but {bad:,} of tensor {name!r} are not")


def require_same_form(parameters: Parameters, first: Parameters) -> None:
    """Refuse parameters that have other tensors, or other shapes, than those of the first training."""
    if parameters.names != first.names:
        raise ValueError(
            f"parameters must have the same tensors in every training: the first had {_listed(first.names)}, "
            f"this one {_listed(parameters.names)}"
        )
    for name, one, other in zip(first.names, first.shapes, parameters.shapes, strict=True):
        if one != other:
            raise ValueError(
                f"parameters must have the same shapes in every training: {name!r} had {one}, and now has {other}"
            )


def in_form(vector: FloatArray, like: Parameters) -> Foreign:
    """A vector in the form of what the trainer returned; for a PyTorch module, a dict from names to tensors."""
    parts = iter([vector[where].reshape(shape) for where, shape in zip(like.slices, like.shapes, strict=True)])

    def put(leaf: Foreign) -> Foreign:
        return _like(next(parts), leaf) if _is_float(leaf) else leaf

    return _rebuilt(_opened(like.tree), put)


def _opened(tree: Foreign) -> Foreign:
    """A PyTorch module as the dict of its parameters that are trained."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tree, torch.nn.Module):
        return {name: value for name, value in tree.named_parameters() if value.requires_grad}
    return tree


def _leaves(tree: Foreign, name: str, depth: int) -> Iterator[tuple[str, Foreign]]:
    if _is_leaf(tree):
        yield name, tree
    elif not depth:
        raise ValueError(f"the trainer must return parameters ({_TAKEN}), got a tree more than {_DEEPEST} levels deep")
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _leaves(value, f"{name}.{key}" if name else str(key), depth - 1)
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(tree):
            yield from _leaves(value, f"{name}[{index}]", depth - 1)
    elif (jax := _jax()) is not None:
        for path, value in jax.tree_util.tree_flatten_with_path(tree)[0]:
            if value is tree:
                return
            yield f"{name}{jax.tree_util.keystr(path)}".removeprefix("."), value


def _rebuilt(tree: Foreign, put: Callable[[Foreign], Foreign]) -> Foreign:
    if _is_leaf(tree):
        return put(tree)
    if isinstance(tree, Mapping):
        return {key: _rebuilt(value, put) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        parts = [_rebuilt(value, put) for value in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    jax = _jax()
    return tree if jax is None else jax.tree_util.tree_map(put, tree)


def _jax() -> Foreign:
    return sys.modules.get("jax")


def _is_leaf(value: Foreign) -> bool:
    return value is None or hasattr(value, "dtype") or isinstance(value, (bool, int, float, complex, str, bytes))


def _is_float(leaf: Foreign) -> bool:
    """Whether this is trained: counters and flags in a state dict are not."""
    kind = getattr(leaf, "dtype", None)
    return isinstance(leaf, float) or (kind is not None and "float" in str(kind))


def _is_torch(leaf: Foreign) -> bool:
    return type(leaf).__module__.partition(".")[0] == "torch"


def _numbers(leaf: Foreign) -> FloatArray:
    if _is_torch(leaf):
        return np.array(leaf.detach().cpu().double().numpy(), np.float64)
    return np.asarray(leaf, np.float64)


def _like(array: FloatArray, leaf: Foreign) -> Foreign:
    """An array of the library and the number type of this one."""
    if _is_torch(leaf):
        return sys.modules["torch"].as_tensor(array, dtype=leaf.dtype, device=leaf.device)
    jax = _jax()
    if jax is not None and isinstance(leaf, jax.Array):
        return jax.numpy.asarray(array, leaf.dtype)
    return float(array) if isinstance(leaf, float) else np.asarray(array, leaf.dtype)


_ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def _rounding(leaf: Foreign) -> float:
    return _ROUNDING.get(str(getattr(leaf, "dtype", "float64")).removeprefix("torch."), 2.0**-8)


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(map(repr, names[:4]))
    return f"{shown}, ..." if len(names) > 4 else shown
