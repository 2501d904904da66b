"""This package's trainer in the form that ``lastiterate.check`` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Literal

import jax
import numpy as np

from lastiterate.common.types import RealArray
from lastiterate.common.validation import instance
from lastiterate.run import DPSGD, require_run
from lastiterate.training.problem import GradientCanary, Problem, sizes_of
from lastiterate.training.trainer import Trainer

Gradient = Mapping[str, RealArray]


def own_trainer(run: DPSGD, problem: Problem) -> Callable[..., Gradient]:
    """Return a trainer ``train(seed, canary, steps)`` of this problem and run for ``lastiterate.check(run, train)``.

    The trainer returns the released parameters as arrays by name, and a canary has the same form. A name is the path of
    an array in ``problem.trainable``. Training stops after ``steps`` steps of the run; None: after all. Without a
    canary, the trainer plants a gradient of zero, so that a seed gives both worlds the same batches and the same noise.
    """
    instance("problem", problem, Problem, "a training.Problem")
    # The canary of a check is one example that is present or absent.
    run = require_run(run).replace(group_size=1, neighbours=None)
    leaves = jax.tree_util.tree_leaves_with_path(problem.trainable)
    shapes = {jax.tree_util.keystr(path).lstrip(".") or "parameters": np.shape(leaf) for path, leaf in leaves}
    nothing = GradientCanary(np.zeros(sum(sizes_of(problem)), np.float32))
    trainer = cache(lambda: Trainer(run, problem, nothing, models=1, chunk_size=1, workers=1))

    def train(seed: int, canary: Gradient | Literal[False], steps: int | None = None) -> Gradient:
        gradient = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()} if canary is False else canary
        found = {name: np.shape(array) for name, array in gradient.items()}
        if found != shapes:
            raise ValueError(f"canary must have the form of the parameters, {shapes}, got {found}")
        flat = np.concatenate([np.ravel(gradient[name]) for name in shapes])
        planted = trainer().with_canary(GradientCanary(np.asarray(flat, np.float32)))
        planted = planted.stopping_after(run.steps if steps is None else steps)
        (chunk,) = planted.chunks(np.zeros(1, np.int64), np.ones(1, np.bool_), seed)
        return {name: leaf[0] for name, leaf in zip(shapes, jax.tree.leaves(chunk.parameters), strict=True)}

    return train
