"""The runs that one gets by stopping a run early, and bounds for many of them at once.

The steps of a shorter run usually have, up to a common factor, the weights of some steps of the longer one. Then there
is a bound for all stopping times a <= t <= b at once: the signal S of the run stopped at b under the noise of the run
stopped at a. More signal, or less noise, is never harder to see.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.arrays import Floats
from lastiterate.optimizer import Adam
from lastiterate.privacy.mixtures.filtered import filtered_noise
from lastiterate.privacy.mixtures.law import NOTHING, Law, law_of
from lastiterate.values import PerStep, cut

if TYPE_CHECKING:
    from collections.abc import Callable

    from lastiterate.run import DPSGD


@dataclass(frozen=True)
class Prefixes:
    """All prefixes of a run. ``law(t)`` is the run stopped at t; ``bound(a, b)``, if any, dominates a <= t <= b."""

    steps: int
    law: Callable[[int], Law]
    bound: Callable[[int, int], Law] | None


def prefixes_of(run: DPSGD) -> Prefixes:
    """The prefixes of a run, each with the weights that its optimizer gives it."""
    weights = _nested_weights(run)
    if run.noise_filter is not None and (isinstance(weights, np.ndarray) or np.ndim(run.noise_multiplier)):
        weights = None  # the noise of a longer run may be less
    first = _first_that_counts(run)
    if weights is None:
        return Prefixes(run.steps, lambda t: law_of(run.prefix(t)) if t >= first else NOTHING, None)
    energy = _energy(weights, run)

    def bound(first: int, last: int) -> Law:
        shape = run.replace(
            steps=last,
            sample_rate=cut(run.sample_rate, last),
            noise_multiplier=cut(run.noise_multiplier, last),
            optimizer=None,
            weights=cut(weights, last),
        )
        law = law_of(shape)
        return replace(law, noise=law.noise * math.sqrt(energy(first) / energy(last)))

    def law(steps: int) -> Law:
        if steps < first:
            return NOTHING
        return law_of(run) if steps == run.steps else bound(steps, steps)

    return Prefixes(run.steps, law, bound if first == 1 else None)


def _first_that_counts(run: DPSGD) -> int:
    """The step before which nothing has been learnt, as at the beginning of a warm-up from zero."""
    schedule = run.weights if run.optimizer is None else run.optimizer.learning_rate
    return 1 if schedule is None else 1 + int(np.argmax(np.asarray(schedule) != 0.0))


def _energy(weights: PerStep, run: DPSGD) -> Callable[[int], float]:
    """The variance of the noise in a prefix, in the units of the weights."""
    if run.noise_filter is not None:  # with equal weights it grows with every step
        return lambda t: filtered_noise(run.prefix(t), 1.0) ** 2
    spread = np.asarray(weights) * np.asarray(run.noise_multiplier)
    if spread.ndim == 0:
        return lambda t: t * float(spread) ** 2
    total = np.cumsum(spread**2)
    return lambda t: float(total[t - 1])


def _nested_weights(run: DPSGD) -> PerStep | None:
    """Weights of which every prefix of the run uses the first t, up to a common factor; None where there are none."""
    optimizer = run.optimizer
    if optimizer is None or optimizer.is_memoryless:
        weights = run.effective_weights()
        return weights if np.min(weights) >= 0.0 else None
    if isinstance(optimizer, Adam):  # the correction of its bias depends on when a step was
        return None
    steady = all(np.ndim(value) == 0 for value in (run.sample_rate, run.noise_multiplier, optimizer.learning_rate))
    if steady and run.sampling != "shuffled" and (optimizer.dampening == 0.0 or optimizer.momentum == 0.0):
        # The weight of a step then depends only on how long ago it was.
        ago: Floats = np.asarray(optimizer.weights(run.steps))[::-1]
        return ago if ago.min() >= 0.0 else None
    if optimizer.momentum == 0.0 and optimizer.averaging is None:
        # Decay shrinks all earlier steps alike; undo it.
        rates = np.broadcast_to(optimizer.learning_rate, (run.steps,))
        kept = 1.0 - optimizer.weight_decay * rates
        log_growth = -np.cumsum(np.log(np.maximum(kept, 1e-300)))
        if kept.min() > 0.0 and log_growth[-1] < 600.0:
            return np.asarray(rates * np.exp(log_growth))
    return None
