"""The shipped trainer in the form that ``lastiterate.check`` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Literal

import jax
import numpy as np
from numpy.typing import ArrayLike

from lastiterate.common.types import RealArray
from lastiterate.common.validation import instance
from lastiterate.run import DPSGD, require_run
from lastiterate.training.problem import GradientCanary, Problem
from lastiterate.training.trainer import Trainer

Gradient = Mapping[str, RealArray]


def own_trainer(run: DPSGD, problem: Problem) -> Callable[[int, Gradient | Literal[False]], Gradient]:
    """Return a trainer ``train(seed, canary)`` of this problem and run for ``lastiterate.check(run, train)``.

    The trainer returns the released parameters as arrays by name, and a canary has the same form. A name is the path of
    an array in ``problem.trainable``. Without a canary, the trainer plants a gradient of zero, so that a seed gives
    both worlds the same batches and the same noise.
    """
    instance("problem", problem, Problem, "a training.Problem")
    # Here a canary is one example that is present or absent.
    run = require_run(run).replace(group_size=1, neighbours=None)
    leaves = jax.tree_util.tree_leaves_with_path(problem.trainable)
    shapes = {jax.tree_util.keystr(path).lstrip(".") or "parameters": np.shape(leaf) for path, leaf in leaves}
    size = sum(int(np.prod(shape)) for shape in shapes.values())
    trainer = cache(lambda: Trainer(run, problem, _canary(np.zeros(size)), models=1, chunk_size=1, workers=1))

    def train(seed: int, canary: Gradient | Literal[False]) -> Gradient:
        gradient = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()} if canary is False else canary
        found = {name: np.shape(array) for name, array in gradient.items()}
        if found != shapes:
            raise ValueError(f"canary must have the form of the parameters, {shapes}, got {found}")
        planted = trainer().with_canary(_canary(np.concatenate([np.ravel(gradient[name]) for name in shapes])))
        (chunk,) = planted.chunks(np.zeros(1, np.int64), np.ones(1, np.bool_), seed)
        return {name: leaf[0] for name, leaf in zip(shapes, jax.tree.leaves(chunk.parameters), strict=True)}

    return train


def _canary(gradient: ArrayLike) -> GradientCanary:
    return GradientCanary(np.asarray(gradient, np.float32))
