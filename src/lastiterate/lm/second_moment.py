"""How far noise makes up Adam's second moment in fine-tunings of a language model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lastiterate.lm.problem import TextProblem, load
from lastiterate.lm.trainer import Watched
from lastiterate.lm.training import Model, train_models
from lastiterate.run import DPSGD
from lastiterate.second_moment import LEAST_MODELS, SecondMoment, SecondMomentWatch
from lastiterate.training_progress import TrainingProgress
from lastiterate.values import boolean, instance, integer

MODELS = 2


def second_moment(
    run: DPSGD,
    problem: TextProblem,
    *,
    models: int = MODELS,
    seed: int = 0,
    first: int = 0,
    progress: bool | None = None,
) -> SecondMoment:
    """Fine-tune a few models with Adam, and look at its second moment as they train.

    Args:
        run: its optimizer is a ``lastiterate.Adam``.
        problem: a model and texts.
        models: how many, 2 at least.
        seed: of the models' randomness.
        first: the number of the first of them.
        progress: show a bar on stderr. None: if that is a terminal.
    """
    count = integer("models", models, LEAST_MODELS, 2**20)
    integer("seed", seed, 0)
    integer("first", first, 0)
    if progress is not None:
        boolean("progress", progress)
    loaded = load(instance("problem", problem, TextProblem, "a lm.TextProblem"))
    watch = SecondMomentWatch(run, sum(value.numel() for value in loaded.start.values()), count)

    def watched(model: int) -> Callable[[int, list[Tensor]], None]:
        def see(step: int, moments: list[Tensor]) -> None:
            if watch.wants(step):
                flat = torch.cat([value.detach().flatten() for value in moments])[None]
                watch.see(step, [model - first], flat.cpu().numpy())

        return see

    of: Callable[[int], Watched] = watched
    wanted = [Model(first + number, ()) for number in range(count)]
    with TrainingProgress(count, run.steps, progress) as bar:
        for _ in train_models(run, problem, (), wanted, seed, lambda *_: None, progress=bar, watched=of):
            pass
    return watch.result()
