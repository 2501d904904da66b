"""``lastiterate.check``: is a training what its run says? Measured on a handful of models."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Literal

import numpy as np

from lastiterate.checking.adam_checks import adam_rows
from lastiterate.checking.check_result import LEAST_MODELS, MOST_MODELS, ROWS, CheckResult, Trainer, Trainings, plan
from lastiterate.checking.declared import Declared, Foreign
from lastiterate.checking.gradient_checks import example_rows, gradient_rows
from lastiterate.checking.measurements import Measured
from lastiterate.checking.noise_tests import Initial, different_row, equal_row, initial_row, initial_values
from lastiterate.common.validation import function, integer, number, one_of
from lastiterate.optimizer import is_adam
from lastiterate.run import DPSGD, require_run

MODELS, ERROR = 16, 1e-3
MOST_STEPS = 10**6  # of each of which it is known how much it counts


def check(
    run: DPSGD,
    train: Trainer,
    models: int = MODELS,
    canary: Literal["gradient", "example"] = "gradient",
    seed: int = 0,
    error: float = ERROR,
    *,
    batch_size: float | None = None,
    initial: Callable[[int], Foreign] | None = None,
    told: Callable[[], None] | None = None,
) -> CheckResult:
    """Check training code against its declared run, on a handful of models; short trainings are best.

    Only the last iterate is looked at, and a canary is one example, whatever the run releases and whom it protects.

    Args:
        run: what is declared, of at most a million steps. The learning rate of its optimizer is that of the sum of
            gradients; without an optimizer or weights it is 1.
        train: ``train(seed, canary)`` returns parameters: arrays, a dict, list or tuple of them, a PyTorch module or a
            state dict. ``canary`` is False, or what the next argument says.
        models: how many models are trained, in [8, 1000].
        canary: what ``train`` is given beside False. ``"gradient"``: a gradient in the form of the parameters, to be
            added to the data as one more example's gradient before clipping, and drawn into batches as any other.
            ``"example"``: True, which puts in an example of the trainer's own; less is checked then.
        seed: of the trainer's seeds and of the canaries.
        error: the probability that a correct training has any fault in the result.
        batch_size: expected number of examples in a batch, if known: tells too much noise from that of sampling.
        initial: ``initial(seed)`` returns the parameters before training, if they follow the seed.
        told: is called after each training, as for a progress bar.
    """
    declared = Declared(require_run(run))
    integer("steps", run.steps, 1, MOST_STEPS)
    check_trainer(train)
    one_of("canary", canary, ("gradient", "example"))
    count = integer("models", models, LEAST_MODELS, MOST_MODELS)
    level = number("error", error, 0.0, 0.5, open_low=True)
    expected = None if batch_size is None else number("batch_size", batch_size, 0.0, open_low=True)
    if initial is not None:
        function("initial", initial, "a function of a seed that returns parameters, or None")
    if told is not None:
        function("told", told, "a function without arguments, or None")
    trainings = Trainings(declared.run, train, integer("seed", seed, 0), told or _nothing)
    return _checked(declared, trainings, count, canary == "gradient", level, expected, initial)


def check_trainer(train: object) -> None:
    """Refuse what cannot be called with seed and canary, as far as Python knows how it is called."""
    function("train", train, "a function train(seed, canary) that returns parameters")
    try:
        how = signature(train)  # type: ignore[arg-type]  # it can be called
    except (TypeError, ValueError):
        return
    try:
        how.bind(0, False)
    except TypeError as error:
        raise ValueError(
            f"train must be a trainer that takes (seed, canary), got one that takes {how}: {error}"
        ) from None


def _nothing() -> None: ...


def _checked(
    declared: Declared,
    trainings: Trainings,
    models: int,
    with_gradients: bool,
    error: float,
    batch_size: float | None,
    initial: Initial | None,
) -> CheckResult:
    planned = plan(models, with_shapes=with_gradients)
    plain = np.stack([trainings.without(number) for number in range(planned.plain)])
    again = trainings.again(0)
    assert trainings.first is not None
    seeds = [equal_row(plain[0], again, declared), different_row(plain, declared)]
    if initial is not None:
        starts = initial_values(initial, trainings, planned.plain)
        seeds.append(initial_row(starts))
        plain = plain - declared.memory * starts
    measured = Measured(declared, trainings, plain, planned, error / (len(trainings.first.names) + ROWS), batch_size)
    if is_adam(declared.run.optimizer):
        rows, notes = adam_rows(measured, with_gradients=with_gradients)
    else:
        rows, notes = (gradient_rows if with_gradients else example_rows)(measured)
    if trainings.complaint:
        rows.append(trainings.complaint)
    return CheckResult(declared.run, (*rows, *seeds), trainings.trained, error, (*notes, *_not_looked_at(declared.run)))


def _not_looked_at(run: DPSGD) -> list[str]:
    """What a run says beyond how one model is trained."""
    notes = []
    if run.release_count > 1:
        notes.append(
            f"Of the {run.release_count:,} released iterates only the last one is looked at: others are what the same "
            "steps had made by then."
        )
    if run.group_size > 1 or run.neighbours == "replace":
        notes.append(
            "Canaries are single examples that are there or not: group_size and neighbours say whom a run protects, "
            "and change nothing in its training."
        )
    return notes
