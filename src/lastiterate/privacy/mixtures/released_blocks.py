"""The blocks of steps between released iterates, each a sum S of its own under noise of its own.

With plain SGD, and with decay, an iterate is determined by the iterate before it and the block in between. The
contribution of the earlier iterate is a known constant. So the block is seen as if the run had begun there.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.optimizer import is_adam
from lastiterate.privacy.mixtures.law import Law, epoch_length, law_of

if TYPE_CHECKING:
    from lastiterate.common.validation import PerStep
    from lastiterate.run import DPSGD


def released_laws(run: DPSGD) -> list[tuple[float, Law]]:
    """Return the laws of S of the blocks, each with its number of blocks. Blocks that add nothing are left out.

    All values of S have one sign, and are returned as non-negative.
    """
    if run.release_count == 1:
        return [(1.0, law_of(run))]
    require_independent_noise(run)
    if tells_every_step(run):
        run = run.replace(optimizer=None, weights=None)
    require_separable(run)
    counts: dict[object, float] = {}
    laws: dict[object, Law] = {}
    for start, stop, number in _blocks(run):
        if _adds_nothing(run, start, stop):
            continue
        law = _one_sided(law_of(run.stretch(start, stop)))
        key = _key(law)
        laws[key] = law
        counts[key] = counts.get(key, 0.0) + number
    if not laws:
        raise ValueError("weights must not all be zero: with these learning rates the run releases nothing")
    return [(counts[key], law) for key, law in laws.items()]


def laws_in_order(run: DPSGD) -> list[Law | None]:
    """Return the law of S of each block in order; None for a block that adds nothing."""
    if tells_every_step(run):
        run = run.replace(optimizer=None, weights=None)
    require_separable(run)
    ends = np.concatenate(([0], run.released_steps())).tolist()
    known: dict[object, Law] = {}  # equal laws are the same object

    def law(start: int, stop: int) -> Law | None:
        if _adds_nothing(run, start, stop):
            return None
        found = _one_sided(law_of(run.stretch(start, stop)))
        return known.setdefault(_key(found), found)

    if any(np.ndim(value) for value in _per_step(run)):
        return [law(start, stop) for start, stop in pairwise(ends)]
    of_length = {length: law(0, length) for length in set(np.diff(ends).tolist())}
    return [of_length[stop - start] for start, stop in pairwise(ends)]


def tells_every_step(run: DPSGD) -> bool:
    """Return whether the iterates reveal every noisy gradient: all are released, and no step has weight 0.

    This holds with momentum, decay and averaging as well, and for Adam with its divisor taken as given.
    """
    if run.release_count != run.steps or (run.sampling == "shuffled" and float(run.sample_rate) < 1.0):
        return False
    schedule = run.weights if run.optimizer is None else run.optimizer.learning_rate
    return schedule is None or bool(np.all(np.asarray(schedule) != 0.0))


def require_independent_noise(run: DPSGD) -> None:
    """Refuse several releases of a run whose noise is correlated."""
    if run.noise_filter is not None and run.release_count > 1:
        raise ValueError(
            f"releases must be None with noise_filter, got {run.release_count} of them: the noise of a block then "
            "depends on earlier blocks; the bound that holds is lastiterate.composition"
        )


def require_separable(run: DPSGD) -> None:
    """Refuse several releases if the iterates around a block do not determine the contribution of the block."""
    optimizer = run.optimizer
    if is_adam(optimizer) or (optimizer and (optimizer.momentum or optimizer.averaging is not None)):
        what = "Adam" if is_adam(optimizer) else "momentum" if optimizer.momentum else "averaging"
        raise ValueError(
            f"releases must be 1, or all {run.steps} steps, with {what}, got {run.release_count}: what is between two "
            "iterates then depends on earlier blocks; the bound that holds is lastiterate.composition"
        )
    if run.sampling == "shuffled":
        length = epoch_length(run)
        inside = [int(step) for step in run.released_steps()[:-1] if step % length]
        if inside:
            raise ValueError(
                f"releases must be at ends of epochs of {length} steps with sampling 'shuffled', got one after step "
                f"{inside[0]}: blocks that share an epoch are not independent"
            )


def _blocks(run: DPSGD) -> list[tuple[int, int, float]]:
    """Return the first and last step of blocks, and the number of equal blocks."""
    ends = np.concatenate(([0], run.released_steps()))
    if any(np.ndim(value) for value in _per_step(run)):
        return [(start, stop, 1.0) for start, stop in pairwise(ends.tolist())]
    lengths, numbers = np.unique(np.diff(ends), return_counts=True)
    return [(0, length, float(number)) for length, number in zip(lengths.tolist(), numbers.tolist(), strict=True)]


def _per_step(run: DPSGD) -> tuple[PerStep, ...]:
    """Return the settings that may differ from step to step."""
    rate = 1.0 if run.optimizer is None else run.optimizer.learning_rate
    return run.sample_rate, run.noise_multiplier, rate, 1.0 if run.weights is None else run.weights


def _adds_nothing(run: DPSGD, start: int, stop: int) -> bool:
    schedule = run.weights if run.optimizer is None else run.optimizer.learning_rate
    return schedule is not None and np.ndim(schedule) == 1 and not np.any(np.asarray(schedule)[start:stop])


def _one_sided(law: Law) -> Law:
    low, high = law.low, law.high
    if low < 0.0 < high:
        raise ValueError(
            "weights must not have both signs with several releases: then no threshold tells best what a block adds"
        )
    return law.flipped() if low < 0.0 else law


def _key(law: Law) -> tuple[object, ...]:
    blocks = tuple((values.tobytes(), chances.tobytes()) for values, chances in law.blocks)
    return law.noise, law.constant, law.counts.tobytes(), law.rates.tobytes(), law.weights.tobytes(), blocks
