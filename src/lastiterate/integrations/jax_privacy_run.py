"""The run that a configuration of jax-privacy describes, with its sampling and possibly correlated noise.

A strategy in jax-privacy is the coefficients of C. The noise is C^-1 times independent normals of one standard
deviation. The run's noise multiplier is that standard deviation over the clipping norm; its noise filter is C^-1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lastiterate.common.validation import PerStep, instance, integer, told
from lastiterate.integrations.opacus import Foreign
from lastiterate.optimizer import SGD, Adam, Optimizer
from lastiterate.privacy.mixtures.correlated_noise import inverse
from lastiterate.run import DPSGD, Neighbours, Sampling

_RELATIONS: dict[str, tuple[Neighbours, float]] = {  # with the sensitivity in clipping norms
    "ADD_OR_REMOVE_ONE": ("add-remove", 1.0),
    "REPLACE_SPECIAL": ("zero-out", 1.0),
    "REPLACE_ONE": ("replace", 2.0),
}
_MOST_ERROR = 1e-9


def run_from_jax_privacy(
    config: object,
    optimizer: Optimizer | None = None,
    steps: int | None = None,
    noise_filter: Sequence[float] | NDArray[np.floating] | None = None,
) -> DPSGD:
    """See ``DPSGD.from_jax_privacy``."""
    if optimizer is not None:
        expected = "a lastiterate.SGD, a lastiterate.Adam or None, as one of optax does not say what it does"
        instance("optimizer", optimizer, (SGD, Adam), expected)
    kind = type(config)
    name = kind.__name__ if kind.__module__.partition(".")[0] == "jax_privacy" else ""
    if name == "BandMFExecutionPlanConfig":
        for given, value in (("steps", steps), ("noise_filter", noise_filter)):
            if value is not None:
                raise ValueError(f"{given} must be None for a {name}, which says it, got {told(value)}")
        return _of_bands(config, optimizer)
    if name == "DpParams":
        return _of_parameters(config, optimizer, steps, noise_filter)
    raise ValueError(
        f"config must be jax-privacy's BandMFExecutionPlanConfig or DpParams, got {told(config)}: describe others by "
        "lastiterate.DPSGD(...)"
    )


def _of_bands(config: Foreign, optimizer: Optimizer | None) -> DPSGD:
    if config.truncated_batch_size is not None:
        raise ValueError(_truncated(config.truncated_batch_size))
    strategy = np.asarray(config.strategy, np.float64)
    if config.column_normalize and strategy.size > 1:
        raise ValueError(
            "column_normalize must be False, got True: the noise of the last steps then has another filter than that "
            "of the first"
        )
    clip_norm = float(config.l2_clip_norm)
    if not 0.0 < clip_norm < math.inf:
        raise ValueError(f"l2_clip_norm must be greater than 0 and finite, got {clip_norm!r}")
    relation = config.accountant.neighboring_relation.name
    if relation not in _RELATIONS:
        raise ValueError(f"accountant must have one of the relations {', '.join(_RELATIONS)}, got {relation}")
    neighbours, apart = _RELATIONS[relation]
    sampling: Sampling = "poisson"
    rate, noise = float(config.sampling_prob) / strategy.size, apart * _noise_multiplier(config)
    if strategy.size == 1:
        return DPSGD(config.iterations, rate, noise, sampling, clip_norm, optimizer=optimizer, neighbours=neighbours)
    coefficients, error = inverse(strategy, config.iterations)
    if not error <= _MOST_ERROR * float(np.sum(np.abs(coefficients))):
        raise ValueError("strategy must have an inverse that does not grow beyond what floats can hold")
    return DPSGD(
        config.iterations,
        rate,
        noise * float(np.linalg.norm(strategy)),
        sampling,
        clip_norm,
        optimizer=optimizer,
        neighbours=neighbours,
        noise_filter=coefficients,
        min_separation=strategy.size,
    )


def _noise_multiplier(config: Foreign) -> float:
    """Return the given noise multiplier, or the one that jax-privacy calibrated, from the dp-accounting event."""
    if config.noise_multiplier is not None:
        return float(config.noise_multiplier)
    event = config.plan.dp_event
    while not hasattr(event, "noise_multiplier"):
        event = event.event
    return float(event.noise_multiplier)


def _of_parameters(
    config: Foreign,
    optimizer: Optimizer | None,
    steps: int | None,
    noise_filter: Sequence[float] | NDArray[np.floating] | None,
) -> DPSGD:
    if steps is None:
        raise ValueError("steps must be given for DpParams, which does not say how many updates there are")
    count = integer("steps", steps)
    if config.noise_multipliers is None:
        raise ValueError("config must have noise_multipliers, got None: calibrate it first")
    if not config.is_finite_guarantee:
        raise ValueError(
            "is_finite_guarantee must be True, got False: gradients without a finite clipping norm have no guarantee"
        )
    if config.truncated_batch_size is not None:
        raise ValueError(_truncated(config.truncated_batch_size))
    cycle = config.cycle_length or 1
    if (cycle > 1) != (noise_filter is not None):
        got = "none" if noise_filter is None else "one"
        raise ValueError(f"noise_filter must be given with a cycle_length above 1, and only then, got {got}")
    sampling: Sampling = "poisson" if config.sampling_method.name == "POISSON" else "fixed"
    rates = _per_step("batch_sizes", config.batch_sizes, count)
    return DPSGD(
        count,
        rates / config.num_samples,
        _per_step("noise_multipliers", config.noise_multipliers, count),
        sampling,
        optimizer=optimizer,
        group_size=config.examples_per_user or 1,
        noise_filter=noise_filter,
        min_separation=cycle,
    )


def _per_step(name: str, schedule: Foreign, steps: int) -> PerStep:
    """Return a number, or one value per step from a list of (step, value) pairs."""
    if np.ndim(schedule) == 0:
        return float(schedule)
    changes = sorted(((int(begin), float(value)) for begin, value in schedule), key=lambda pair: pair[0])
    if not changes or changes[0][0] != 0:
        raise ValueError(f"{name} must begin at step 0, got {told(schedule)}: nothing says what earlier steps have")
    values = np.empty(steps)
    for begin, value in changes:
        values[begin:] = value
    return values


def _truncated(size: object) -> str:
    return (
        f"truncated_batch_size must be None, got {size!r}: how often an example is in a batch then depends on the size "
        "of the data set"
    )
