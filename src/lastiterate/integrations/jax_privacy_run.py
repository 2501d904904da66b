"""The run that a configuration of jax-privacy describes, with its sampling and possibly correlated noise.

jax-privacy 2.0 has ``BandMFExecutionPlanConfig`` in ``jax_privacy.experimental.execution_plan``. Its accountant states
the neighbours. Version 2.2 has ``jax_privacy.execution_plan``, and the plan states the neighbours. Later sources
call the class ``BandMFConfig`` and give ``expected_participations`` instead of ``sampling_prob``.

A strategy in jax-privacy is a list of the coefficients of a matrix C. The noise is C^-1 times independent normal draws.
The run's noise multiplier is the standard deviation of these draws over the clipping norm. Its noise filter is C^-1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lastiterate.common.types import Foreign
from lastiterate.common.validation import PerStep, instance, integer, told
from lastiterate.mechanism import Neighbours, Sampling
from lastiterate.optimizer import SGD, Adam, Optimizer
from lastiterate.privacy.mixtures.correlated_noise import inverse
from lastiterate.run import DPSGD

_RELATIONS: dict[str, tuple[Neighbours, float]] = {  # with the sensitivity in clipping norms
    "ADD_OR_REMOVE_ONE": ("add-remove", 1.0),
    "REPLACE_SPECIAL": ("zero-out", 1.0),
    "REPLACE_ONE": ("replace", 2.0),
}
_BANDS = ("BandMFExecutionPlanConfig", "BandMFConfig")
_MOST_ERROR = 1e-9


def run_from_jax_privacy(
    config: Foreign,
    optimizer: Optimizer | None = None,
    steps: int | None = None,
    noise_filter: Sequence[float] | NDArray[np.floating] | None = None,
) -> DPSGD:
    """See ``DPSGD.from_jax_privacy``."""
    if optimizer is not None:
        expected = "a lastiterate.SGD, a lastiterate.Adam or None, because settings of optax optimizers cannot be read"
        instance("optimizer", optimizer, (SGD, Adam), expected)
    kind = type(config)
    name = kind.__name__ if kind.__module__.partition(".")[0] == "jax_privacy" else ""
    if name not in (*_BANDS, "DpParams"):
        raise ValueError(
            f"config must be jax-privacy's {', '.join(_BANDS)} or DpParams, got {told(config)}: describe other runs "
            "with lastiterate.DPSGD(...)"
        )
    if name == "DpParams":
        return _of_parameters(config, optimizer, steps, noise_filter)
    for given, value in (("steps", steps), ("noise_filter", noise_filter)):
        if value is not None:
            raise ValueError(f"{given} must be None for a {name}, which contains it, got {told(value)}")
    return _of_bands(config, optimizer)


def _of_bands(config: Foreign, optimizer: Optimizer | None) -> DPSGD:
    strategy = np.asarray(config.strategy, np.float64)
    if config.column_normalize and strategy.size > 1:
        raise ValueError(
            "column_normalize must be False, got True: the last steps would have another noise filter than the first"
        )
    clip_norm = float(config.l2_clip_norm)
    if not 0.0 < clip_norm < math.inf:
        raise ValueError(f"l2_clip_norm must be greater than 0 and finite, got {clip_norm!r}")
    noise, relation = _noise_and_relation(config)
    if relation not in _RELATIONS:
        raise ValueError(f"config must have one of the neighbours {', '.join(_RELATIONS)}, got {relation}")
    neighbours, apart = _RELATIONS[relation]
    rate, noise = _sample_rate(config, strategy.size), apart * noise
    most, sampling = config.truncated_batch_size, _of_poisson(config)
    if most is not None and strategy.size > 1:
        raise ValueError(
            f"truncated_batch_size must be None if the strategy has several bands, got {most!r}: for a guarantee that "
            "holds for any batches, describe the run with lastiterate.DPSGD(...)"
        )
    run = DPSGD(
        *(config.iterations, rate, noise, sampling, clip_norm, optimizer),
        neighbours=neighbours,
        max_batch_size=most,
        dataset_size=None if most is None else config.num_examples,
    )
    if strategy.size == 1:
        return run
    coefficients, error = inverse(strategy, config.iterations)
    if not error <= _MOST_ERROR * float(np.sum(np.abs(coefficients))):
        raise ValueError("strategy must have an inverse that can be computed accurately in floating-point numbers")
    noise = noise * float(np.linalg.norm(strategy))
    return run.replace(noise_multiplier=noise, noise_filter=coefficients, min_separation=strategy.size)


def _of_poisson(config: Foreign) -> Sampling:
    return "poisson" if config.truncated_batch_size is None else "truncated-poisson"


def _sample_rate(config: Foreign, bands: int) -> float:
    """Return the probability that an example is in a given batch. Its group takes part in every ``bands``-th batch."""
    fields = config.__dataclass_fields__
    if "sampling_prob" in fields:
        return float(config.sampling_prob) / bands
    if "expected_participations" in fields:
        return float(config.expected_participations) / int(config.iterations)
    raise _unknown_layout(config, "sampling_prob or expected_participations")


def _noise_and_relation(config: Foreign) -> tuple[float, str]:
    """Return the noise multiplier before bands and neighbours are counted, and the name of the neighbours."""
    fields = config.__dataclass_fields__
    if "accountant" in fields:
        noise = config.noise_multiplier
        return (
            _noise_of_event(config.plan.dp_event) if noise is None else float(noise),
            config.accountant.neighboring_relation.name,
        )
    if config.noise_multiplier is None:
        raise ValueError("noise_multiplier must be given, got None: use the config that calibrate() returns")
    if not hasattr(config, "make"):
        raise _unknown_layout(config, "accountant or make()")
    return float(config.noise_multiplier), config.make().neighboring_relation.name


def _noise_of_event(event: Foreign) -> float:
    while not hasattr(event, "noise_multiplier"):
        event = event.event
    return float(event.noise_multiplier)


def _unknown_layout(config: Foreign, missing: str) -> ValueError:
    return ValueError(
        f"config must have the fields of jax-privacy 2.0 or 2.2, got a {type(config).__name__} without {missing}: "
        "describe the run with lastiterate.DPSGD(...)"
    )


def _of_parameters(
    config: Foreign,
    optimizer: Optimizer | None,
    steps: int | None,
    noise_filter: Sequence[float] | NDArray[np.floating] | None,
) -> DPSGD:
    if steps is None:
        raise ValueError("steps must be given for DpParams, which does not contain the number of updates")
    count = integer("steps", steps)
    if config.noise_multipliers is None:
        raise ValueError("config must have noise_multipliers, got None: calibrate the config first")
    if not config.is_finite_guarantee:
        raise ValueError(
            "is_finite_guarantee must be True, got False: gradients without a finite clipping norm have no guarantee"
        )
    cycle = config.cycle_length or 1
    if (cycle > 1) != (noise_filter is not None):
        got = "none" if noise_filter is None else "one"
        raise ValueError(f"noise_filter must be given if and only if cycle_length is above 1, got {got}")
    return DPSGD(
        count,
        _per_step("batch_sizes", config.batch_sizes, count) / config.num_samples,
        _per_step("noise_multipliers", config.noise_multipliers, count),
        _of_poisson(config) if config.sampling_method.name == "POISSON" else "fixed",
        optimizer=optimizer,
        max_batch_size=config.truncated_batch_size,
        dataset_size=None if config.truncated_batch_size is None else config.num_samples,
        group_size=config.examples_per_user or 1,
        noise_filter=noise_filter,
        min_separation=cycle,
    )


def _per_step(name: str, schedule: Foreign, steps: int) -> PerStep:
    """Return a number, or one value per step from a list of (first step, value) pairs."""
    if np.ndim(schedule) == 0:
        return float(schedule)
    changes = sorted(((int(begin), float(value)) for begin, value in schedule), key=lambda pair: pair[0])
    if not changes or changes[0][0] != 0:
        raise ValueError(f"{name} must begin at step 0, got {told(schedule)}: the first steps have no value")
    values = np.empty(steps)
    for begin, value in changes:
        values[begin:] = value
    return values
