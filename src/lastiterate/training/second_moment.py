"""How far noise makes up Adam's second moment in trainings of a problem."""

from __future__ import annotations

import jax
import numpy as np

from lastiterate.run import DPSGD
from lastiterate.second_moment import LEAST_MODELS, SecondMoment, SecondMomentWatch
from lastiterate.training.problem import Problem, flatten
from lastiterate.training.trainer import TrainedChunk, Trainer
from lastiterate.training_progress import TrainingProgress
from lastiterate.values import boolean, instance, integer

MODELS = 8


def second_moment(
    run: DPSGD, problem: Problem, *, models: int = MODELS, seed: int = 0, first: int = 0, progress: bool | None = None
) -> SecondMoment:
    """Train a few models with Adam, and look at its second moment as they train.

    Args:
        run: its optimizer is a ``lastiterate.Adam``.
        problem: what to train on.
        models: how many, 2 at least.
        seed: of the models' randomness.
        first: the number of the first of them.
        progress: show a bar on stderr. None: if that is a terminal.
    """
    count = integer("models", models, LEAST_MODELS, 2**20)
    integer("seed", seed, 0, 2**64 - 1)
    integer("first", first, 0, 2**32 - count)
    if progress is not None:
        boolean("progress", progress)
    leaves = jax.tree.leaves(instance("problem", problem, Problem, "a training.Problem").trainable)
    watch = SecondMomentWatch(run, sum(int(np.size(leaf)) for leaf in leaves), count)

    def see(step: int, chunk: TrainedChunk) -> None:
        if step and watch.wants(step):
            watch.see(step, (chunk.models - first).tolist(), flatten(chunk.second_moment))

    trainer = Trainer(run, problem, models=count)
    numbers = first + np.arange(count)
    with TrainingProgress(count, run.steps, progress) as bar:
        for _ in trainer.chunks(numbers, np.zeros(count, bool), seed, bar, see):
            pass
    return watch.result()
