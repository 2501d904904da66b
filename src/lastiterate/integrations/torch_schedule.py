"""The learning rate of each step under a scheduler of PyTorch's, found by letting a copy of it run once more.

A scheduler knows how often it was stepped, and not when. That is clear if it was once after each update, or once after
each epoch, and is asked for otherwise.
"""

from __future__ import annotations

import warnings

import numpy as np

from lastiterate.arrays import FloatArray, IntArray
from lastiterate.integrations.opacus import Foreign, extra

INSTEAD = "pass optimizer=lastiterate.SGD(learning_rate=[...]) with one rate a step instead"
_SAME = 1e-9  # of the largest rate: the copy does the same sums
# What makes a scheduler again: names of constructors' arguments and of attributes. Their rates depend on nothing else.
_MADE_OF = {
    "LambdaLR": {"lr_lambda": "lr_lambdas"},
    "MultiplicativeLR": {"lr_lambda": "lr_lambdas"},
    "StepLR": {"step_size": "step_size", "gamma": "gamma"},
    "MultiStepLR": {"milestones": "milestones", "gamma": "gamma"},
    "ConstantLR": {"factor": "factor", "total_iters": "total_iters"},
    "LinearLR": {"start_factor": "start_factor", "end_factor": "end_factor", "total_iters": "total_iters"},
    "ExponentialLR": {"gamma": "gamma"},
    "CosineAnnealingLR": {"T_max": "T_max", "eta_min": "eta_min"},
    "CosineAnnealingWarmRestarts": {"T_0": "T_0", "T_mult": "T_mult", "eta_min": "eta_min"},
    "PolynomialLR": {"total_iters": "total_iters", "power": "power"},
    "SequentialLR": {"schedulers": "_schedulers", "milestones": "_milestones"},
}


def scheduled_rates(scheduler: Foreign, optimizer: Foreign, steps: int, epoch: int | None) -> FloatArray:
    """The learning rate of each of ``steps`` updates, of which ``epoch`` are an epoch, if that is known.

    ``optimizer`` is PyTorch's own, after training.
    """
    if unwrapped(getattr(scheduler, "optimizer", None)) is not optimizer:
        raise ValueError(f"scheduler must be that of optimizer, got a {type(scheduler).__name__} of another one")
    _require_known(scheduler)
    made = int(scheduler.last_epoch)
    rates = _replayed(scheduler, optimizer, made)
    now = float(optimizer.param_groups[0]["lr"])
    if abs(now - rates[-1]) > _SAME * np.max(np.abs(rates)):
        raise ValueError(
            f"optimizer must have the learning rate that scheduler has given it, {rates[-1]:g}, got {now:g}: something "
            f"else has changed it; {INSTEAD}"
        )
    readings = [rates[each] for each in _positions(made, steps, epoch)]
    if not readings or any(not np.array_equal(each, readings[0]) for each in readings):
        often = "could be either" if readings else "is neither"
        epochs = "of a length that is not known" if epoch is None else f"of {epoch} updates"
        raise ValueError(
            f"scheduler must have been stepped once after each update or once after each epoch, got {made} times in "
            f"{steps} updates, with epochs {epochs}, which {often}; {INSTEAD}"
        )
    return readings[0]


def unwrapped(optimizer: Foreign) -> Foreign:
    """The optimizer of PyTorch's that Opacus has wrapped, perhaps several times."""
    while hasattr(optimizer, "original_optimizer"):
        optimizer = optimizer.original_optimizer
    return optimizer


def _positions(made: int, steps: int, epoch: int | None) -> list[IntArray]:
    """How often the scheduler may have been stepped before each update. After the last one that need not be."""
    updates = np.arange(steps)
    if made == 0:
        return [np.zeros_like(updates)]
    found = [updates] if made in (steps - 1, steps) else []
    if epoch is not None and made in (steps // epoch, -(-steps // epoch)):
        found.append(updates // epoch)
    return found


def _require_known(scheduler: Foreign) -> None:
    """Exact types only: a subclass may do anything."""
    name, module = type(scheduler).__name__, extra("torch.optim.lr_scheduler")
    if name not in _MADE_OF or type(scheduler) is not getattr(module, name, None):
        raise ValueError(f"scheduler must be one of {', '.join(_MADE_OF)}, got {name}; {INSTEAD}")
    for each in scheduler._schedulers if name == "SequentialLR" else []:
        _require_known(each)


def _replayed(scheduler: Foreign, optimizer: Foreign, made: int) -> FloatArray:
    """The learning rates before the first and after each of ``made`` steps of a scheduler like this one."""
    torch = extra("torch")
    groups = [{"params": [torch.zeros(1)], "lr": float(group["initial_lr"])} for group in optimizer.param_groups]
    model = torch.optim.SGD(groups, lr=1.0)
    rates = np.empty(made + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions of SequentialLR warn of what they do themselves
        copy = _again(scheduler, model)
        for position in range(made + 1):
            if position:
                model.step()
                copy.step()
            each = {float(group["lr"]) for group in model.param_groups}
            if len(each) > 1:
                raise ValueError(f"scheduler must treat all parameter groups alike, got learning rates {sorted(each)}")
            (rates[position],) = each
    return rates


def _again(scheduler: Foreign, optimizer: Foreign) -> Foreign:
    """A scheduler like this one, at its beginning, for another optimizer."""
    arguments = {name: getattr(scheduler, kept) for name, kept in _MADE_OF[type(scheduler).__name__].items()}
    if type(scheduler).__name__ == "SequentialLR":
        arguments["schedulers"] = [_again(each, optimizer) for each in arguments["schedulers"]]
    if type(scheduler).__name__ == "MultiStepLR":
        arguments["milestones"] = list(arguments["milestones"].elements())
    return type(scheduler)(optimizer, **arguments)
