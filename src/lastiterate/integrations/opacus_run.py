"""The run that Opacus has trained, read from its engine, optimizer, scheduler and data loader.

The engine records the noise multiplier and sample rate of each step, but not how batches were drawn. The sampling must
be given or read from the loader, because the guarantee for Poisson sampling is far better than for shuffled batches.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import get_args

import numpy as np

from lastiterate.common.types import FloatArray, Foreign, IntArray
from lastiterate.common.validation import PerStep, one_of, told
from lastiterate.integrations.balls_in_bins import BallsInBinsSampler
from lastiterate.integrations.opacus import extra, history_from_opacus
from lastiterate.mechanism import Sampling
from lastiterate.optimizer import SGD, Adam, Optimizer, is_optimizer, require_optimizer
from lastiterate.run import DPSGD

# Schedulers: the learning rate of each step, found by replaying a copy of the PyTorch scheduler. A scheduler records
# how often it was stepped, but not when. It is accepted only if it was stepped once per update or once per epoch.

INSTEAD = "pass optimizer=lastiterate.SGD(learning_rate=[...]) with one learning rate per step instead"
# Constructor arguments of each scheduler and the attributes that hold them. The rates depend on nothing else.
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
    """Return the learning rate of each update, from PyTorch's own scheduler and optimizer after training.

    ``epoch`` is the number of updates per epoch, or None if it is unknown.
    """
    if unwrapped(getattr(scheduler, "optimizer", None)) is not optimizer:
        raise ValueError(f"scheduler must belong to optimizer, got {type(scheduler).__name__}, which does not")
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
        epochs = "of unknown length" if epoch is None else f"of {epoch} updates"
        raise ValueError(
            f"scheduler must have been stepped once after each update or once after each epoch, got {made} scheduler "
            f"steps in {steps} updates, with epochs {epochs}, which {often}; {INSTEAD}"
        )
    return readings[0]


def unwrapped(optimizer: Foreign) -> Foreign:
    """Return the PyTorch optimizer inside one or several wrappers of Opacus and accelerate."""
    while True:
        if hasattr(optimizer, "original_optimizer"):
            optimizer = optimizer.original_optimizer
        elif type(optimizer).__name__ == "AcceleratedOptimizer":
            optimizer = optimizer.optimizer
        else:
            return optimizer


def _positions(made: int, steps: int, epoch: int | None) -> list[IntArray]:
    """Return the possible numbers of scheduler steps before each update. The step after the last may be missing."""
    updates = np.arange(steps)
    if made == 0:
        return [np.zeros_like(updates)]
    found = [updates] if made in (steps - 1, steps) else []
    if epoch is not None and made in (steps // epoch, -(-steps // epoch)):
        found.append(updates // epoch)
    return found


def _require_known(scheduler: Foreign) -> None:
    """Raise if the scheduler's exact type is unknown. A subclass is refused, because it may behave differently."""
    name, module = type(scheduler).__name__, extra("torch.optim.lr_scheduler")
    if name not in _MADE_OF or type(scheduler) is not getattr(module, name, None):
        raise ValueError(f"scheduler must be one of {', '.join(_MADE_OF)}, got {name}; {INSTEAD}")
    for each in scheduler._schedulers if name == "SequentialLR" else []:
        _require_known(each)


def _replayed(scheduler: Foreign, optimizer: Foreign, made: int) -> FloatArray:
    """Run a copy of the scheduler for ``made`` steps. Return its learning rates at the start and after each step."""
    torch = extra("torch")
    groups = [{"params": [torch.zeros(1)], "lr": float(group["initial_lr"])} for group in optimizer.param_groups]
    model = torch.optim.SGD(groups, lr=1.0)
    rates = np.empty(made + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions of SequentialLR warn about their own calls
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
    """Return a copy of the scheduler in its initial state, for another optimizer."""
    arguments = {name: getattr(scheduler, kept) for name, kept in _MADE_OF[type(scheduler).__name__].items()}
    if type(scheduler).__name__ == "SequentialLR":
        arguments["schedulers"] = [_again(each, optimizer) for each in arguments["schedulers"]]
    if type(scheduler).__name__ == "MultiStepLR":
        arguments["milestones"] = list(arguments["milestones"].elements())
    return type(scheduler)(optimizer, **arguments)


_HYPERPARAMETERS = {
    SGD: ("lr", "momentum", "dampening", "nesterov", "weight_decay"),
    Adam: ("lr", "betas", "eps", "weight_decay", "amsgrad"),
}
_SAME = 1e-9  # relative tolerance; sample rates are quotients of whole numbers
_RARE = 1e-12  # negligible probability of an empty batch, for samplers that skip empty batches


def run_from_opacus(
    privacy_engine: object,
    optimizer: object = None,
    loader: object = None,
    scheduler: object = None,
    sampling: Sampling | None = None,
) -> DPSGD:
    """See ``DPSGD.from_opacus``."""
    history = getattr(getattr(privacy_engine, "accountant", None), "history", None)
    if history is None:
        raise ValueError(f"privacy_engine must be an Opacus PrivacyEngine, got {type(privacy_engine).__name__}")
    if not history:
        raise ValueError("privacy_engine has recorded no steps yet: train first, then describe the run")
    if type(privacy_engine).__name__ == "PrivacyEngineAdaptiveClipping":
        raise ValueError(
            "privacy_engine must clip to a constant norm, got PrivacyEngineAdaptiveClipping: it counts unclipped "
            "gradients with noise that depends on the drawn batch, and no analysis supports that"
        )
    if sampling is not None:
        one_of("sampling", sampling, get_args(Sampling))
    recorded = history_from_opacus(history).run()
    drawn = None if loader is None else read_loader(loader)
    run = _drawn_run(recorded, drawn, _sampling(drawn, sampling))
    scheduler = _of_learning_rates(scheduler, optimizer)
    if optimizer is None or is_optimizer(optimizer):
        return run.replace(optimizer=optimizer)
    return _with_optimizer(run, optimizer, drawn, _from_torch(optimizer, scheduler, recorded))


def _of_learning_rates(scheduler: Foreign, optimizer: object) -> Foreign:
    """Return the scheduler if it sets learning rates, or None for a noise scheduler: the engine records the noise."""
    if scheduler is None:
        return None
    name, opacus = type(scheduler).__name__, extra("opacus.schedulers")
    if isinstance(scheduler, opacus._NoiseScheduler):
        return None
    if isinstance(scheduler, opacus._GradClipScheduler):
        raise ValueError(
            f"scheduler must not change the clipping norm, got {name}: the weight of a step would depend on clipping "
            "norms that Opacus does not record"
        )
    if optimizer is None or is_optimizer(optimizer):
        own = f"a lastiterate.{type(optimizer).__name__}, which has its own learning rates"
        got = "none" if optimizer is None else own
        raise ValueError(f"optimizer must be the one that make_private returned if scheduler is given, got {got}")
    return scheduler


@dataclass(frozen=True)
class Drawn:
    """The sampling of a loader, its batches per epoch, a batch's share of the data, and the batches taken so far."""

    sampling: Sampling
    batches: int
    share: float
    taken: int | None = None


def read_loader(loader: Foreign) -> Drawn:
    """Read how a loader draws its batches. Subclasses are refused, because they may draw batches differently."""
    data, uniform = extra("torch.utils.data"), extra("opacus.utils.uniform_sampler")
    if not isinstance(loader, data.DataLoader):
        raise ValueError(f"loader must be the DataLoader that make_private returned, got {type(loader).__name__}")
    batches = loader.batch_sampler
    if batches is None:
        raise ValueError("loader must draw batches, got a DataLoader with batch_size=None")
    if isinstance(batches, extra("opacus.utils.batch_memory_manager").BatchSplittingSampler):
        batches = batches.sampler  # BatchSplittingSampler only saves memory: a step still uses a whole batch
    is_distributed = type(batches) is uniform.DistributedUniformWithReplacementSampler
    if is_distributed or type(batches) is uniform.UniformWithReplacementSampler:
        if is_distributed and (1.0 - batches.sample_rate) ** batches.num_samples > _RARE:
            raise ValueError(
                f"loader must have larger batches, got {type(batches).__name__} with an expected "
                f"{batches.sample_rate * batches.num_samples:g} examples a batch: this sampler skips empty batches, so "
                "that sampling is not Poisson"
            )
        return Drawn("poisson", len(batches), 1.0 / len(batches))
    if type(batches) is BallsInBinsSampler:
        if batches.examples != len(loader.dataset):
            raise ValueError(
                f"loader must draw all of its {len(loader.dataset)} examples, got a BallsInBinsSampler of "
                f"{batches.examples} examples"
            )
        return Drawn("balls-in-bins", len(batches), 1.0 / len(batches), batches.taken)
    if type(batches) is not data.BatchSampler:
        raise ValueError(_unknown(batches))
    order, size = batches.sampler, len(loader.dataset)
    # Accelerate's SeedableRandomSampler shuffles as well, with a seed of its own in each epoch.
    shuffles = type(order) is data.RandomSampler or type(order).__name__ == "SeedableRandomSampler"
    if not shuffles or order.replacement or not len(order) == len(order.data_source) == size:
        raise ValueError(_unknown(order))  # not every example once per epoch, in a new random order
    share = 1.0 / len(batches) if batches.drop_last else min(1.0, batches.batch_size / size)
    return Drawn("shuffled", len(batches), share)


def _unknown(sampler: object) -> str:
    name = type(sampler).__name__
    why = {
        "SequentialSampler": "its batches are the same in every epoch, and not random",
        "RandomSampler": "it draws with replacement, or does not draw every example once per epoch",
        "WeightedRandomSampler": "it draws some examples more often than others",
        "DistributedSampler": "each process has its own part of the data, and the engine has recorded only one process",
    }.get(name)
    instead = "or train with poisson_sampling=True" if why else "or pass sampling= if you know how batches are drawn"
    return (
        f"loader must draw by Poisson sampling, into bins or by shuffling all of the data, got {name}: "
        f"{why or 'this sampler is not known'}; pass the loader that make_private returned, {instead}"
    )


def _sampling(drawn: Drawn | None, given: Sampling | None) -> Sampling:
    if drawn is not None:
        if given not in (None, drawn.sampling):
            raise ValueError(f"sampling must be None or {drawn.sampling!r}, the sampling of loader, got {told(given)}")
        return drawn.sampling
    if given is None:
        raise ValueError(
            "loader or sampling must be given, got neither: Opacus does not record how batches are drawn; pass the "
            "loader that make_private returned, sampling='poisson' (Opacus' default), or sampling='shuffled' or "
            "'balls-in-bins' if you trained with poisson_sampling=False"
        )
    return given


def _drawn_run(run: DPSGD, drawn: Drawn | None, sampling: Sampling) -> DPSGD:
    """Return the recorded run with this sampling. The rate of shuffled batches is a batch's share of the data."""
    rates = np.unique(run.sample_rate)
    if drawn is not None:
        together = rates * drawn.batches  # batches per step, above 1 if gradients are accumulated
        allowed = np.round(together) if sampling == "shuffled" else np.ones_like(together)
        if np.any(np.abs(together - allowed) > _SAME * together) or not np.all(allowed):
            shown = ", ".join(f"{rate:g}" for rate in rates[:3])
            raise ValueError(
                f"loader must be the one that all steps used, got a loader with {drawn.batches} batches per epoch, but "
                f"recorded sample rates {shown}: if all steps used the same sampling, pass sampling= instead of loader="
            )
    if drawn is not None and drawn.taken is not None and drawn.taken < run.steps:
        raise ValueError(
            f"loader must have drawn a batch for each of the {run.steps} recorded steps, got {drawn.taken} batches: "
            "epochs whose batches are drawn again with the same seed are not independent; load the sampler's state"
        )
    if sampling != "shuffled":
        return run.replace(sampling=sampling)
    if rates.size > 1 or abs(round(1.0 / rates[0]) * rates[0] - 1.0) > _SAME:
        raise ValueError(
            "privacy_engine must have recorded the same whole number of steps in every epoch of shuffled batches, got "
            f"sample rates from {rates[0]:g} to {rates[-1]:g}: an example could be in one step twice"
        )
    share = float(rates[0]) if drawn is None else min(1.0, drawn.share * round(float(rates[0]) * drawn.batches))
    return run.replace(sampling=sampling, sample_rate=share, batches_per_epoch=round(1.0 / float(rates[0])))


def _with_optimizer(run: DPSGD, optimizer: Foreign, drawn: Drawn | None, described: Optimizer) -> DPSGD:
    """Return the run with the optimizer that Opacus wraps. Learning rate and decay are those for summed gradients.

    Opacus divides sums by the expected batch size: theta -= lr (sum / size + decay theta), which equals
    theta -= lr / size (sum + size decay theta). Adam's steps do not depend on the scale of gradients, except for eps.
    """
    if not hasattr(optimizer, "expected_batch_size"):
        raise ValueError(
            f"optimizer must be the one that make_private returned, got {type(optimizer).__name__}: only that "
            "optimizer knows the batch size by which sums of gradients are divided"
        )
    if hasattr(optimizer, "clipbound_learning_rate"):
        # The gradients' noise is that of Opacus; the count of unclipped gradients is not centred, so it differs by 1.
        noise = (optimizer.noise_multiplier**-2 + 0.75 * optimizer.unclipped_num_std**-2) ** -0.5
        raise ValueError(
            f"optimizer must clip to a constant norm, got {type(optimizer).__name__}: the weight of a step would "
            "depend on a clipping norm that Opacus does not record, and the count of unclipped gradients is a second "
            f"query. For composition alone, describe the run with noise_multiplier={noise:.6g}, which counts both, and "
            "neighbours='zero-out', because the size of the drawn batch is used without noise"
        )
    run = run.replace(optimizer=described, clip_norm=float(optimizer.max_grad_norm))
    if optimizer.loss_reduction == "sum":
        return run
    rates = np.asarray(run.sample_rate)
    size = float(optimizer.expected_batch_size) * getattr(optimizer, "world_size", 1)
    if rates.ndim and described.is_adaptive:
        raise ValueError(
            f"privacy_engine must have recorded one sample rate with Adam, got {rates.min():g} to {rates.max():g}: a "
            "change of the batch size changes Adam's second moment; pass optimizer=lastiterate.Adam(...)"
        )
    if rates.ndim:  # the batch size changes with the sample rate
        return run.replace(optimizer=None, weights=run.effective_weights() * rates[-1] / rates / size)
    if drawn is not None:
        size *= round(float(rates) / drawn.share)
    # The converted optimizer takes sums of gradients; the described one takes sums divided by the batch size.
    return run.replace(optimizer=described.for_sums(size))


def _from_torch(wrapped: Foreign, scheduler: Foreign, recorded: DPSGD) -> Optimizer:
    optimizer, torch = unwrapped(wrapped), extra("torch.optim")
    kind = SGD if isinstance(optimizer, torch.SGD) else Adam
    if not isinstance(optimizer, (torch.SGD, torch.Adam, torch.AdamW)):
        require_optimizer(optimizer)
    first, *others = [group for group in optimizer.param_groups if group["params"]]
    different = [name for name in _HYPERPARAMETERS[kind] if any(other[name] != first[name] for other in others)]
    if different:
        raise ValueError(
            f"optimizer must treat all its parameter groups alike, got groups that differ in {', '.join(different)}"
        )
    rate: PerStep = float(first["lr"])
    if scheduler is not None:
        rates = np.unique(recorded.sample_rate)  # a rate is the reciprocal of the steps per epoch
        length = round(1.0 / rates[0]) if rates[0] else 0
        is_whole = rates.size == 1 and abs(length * rates[0] - 1.0) <= _SAME
        rate = scheduled_rates(scheduler, optimizer, recorded.steps, length if is_whole else None)
    elif "initial_lr" in first:
        raise ValueError(
            "optimizer must have a constant learning rate, got one with a scheduler: pass scheduler= as well, or "
            f"{INSTEAD}"
        )
    decay = float(first["weight_decay"])
    if kind is Adam:
        if first["amsgrad"]:
            raise ValueError("optimizer must be Adam without amsgrad, got amsgrad=True: AMSGrad is not supported")
        decoupled = isinstance(optimizer, torch.AdamW) or bool(first.get("decoupled_weight_decay"))
        beta1, beta2 = (float(beta) for beta in first["betas"])
        return Adam(rate, beta1, beta2, float(first["eps"]), decay, decoupled)
    rest = {name: first[name] for name in ("momentum", "dampening", "nesterov")}
    return SGD(learning_rate=rate, weight_decay=decay, **rest)
