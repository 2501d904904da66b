"""The blocks of steps between released iterates. Each block has its own signal S and its own noise.

With plain SGD, and with decay, an iterate is determined by the iterate before it and the block in between. The
contribution of the earlier iterate is a known constant. So the block reveals as much as if the run had begun there.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from lastiterate.common.errors import BadArgument
from lastiterate.common.validation import PerStep
from lastiterate.features import (
    CHECKPOINTS_INSIDE_EPOCHS,
    CHECKPOINTS_OF_MEMORY,
    CORRELATED_RELEASES,
    Support,
    require_supported,
    reveals_every_step,
)
from lastiterate.privacy.mixtures.law import LAW, Law, law_of
from lastiterate.run import DPSGD

BLOCKS = Support(
    "the heuristic", LAW.features - {CORRELATED_RELEASES, CHECKPOINTS_OF_MEMORY, CHECKPOINTS_INSIDE_EPOCHS}
)


def released_laws(run: DPSGD) -> list[tuple[float, Law]]:
    """Return pairs (number of blocks, law of S), one for each distinct law.

    Blocks that add nothing are left out. All values of S have one sign, and are returned as non-negative.
    """
    if run.release_count == 1:
        return [(1.0, law_of(run))]
    require_supported(run, BLOCKS)
    if reveals_every_step(run):
        run = run.replace(optimizer=None, weights=None)
    counts: dict[object, float] = {}
    laws: dict[object, Law] = {}
    for start, stop, number in _blocks(run):
        if (law := _law(run, start, stop)) is not None:
            key = _key(law)
            laws[key] = law
            counts[key] = counts.get(key, 0.0) + number
    if not laws:
        raise BadArgument("weights", "must not all be zero: with these learning rates the run releases nothing")
    return [(counts[key], law) for key, law in laws.items()]


def laws_in_order(run: DPSGD) -> list[Law | None]:
    """Return the law of S of each block in order, or None for a block that adds nothing."""
    require_supported(run, BLOCKS)
    if reveals_every_step(run):
        run = run.replace(optimizer=None, weights=None)
    ends = np.concatenate(([0], run.released_steps())).tolist()
    known: dict[object, Law] = {}  # equal laws are the same object

    def law(start: int, stop: int) -> Law | None:
        found = _law(run, start, stop)
        return None if found is None else known.setdefault(_key(found), found)

    if any(np.ndim(value) for value in _per_step(run)):
        return [law(start, stop) for start, stop in pairwise(ends)]
    of_length = {length: law(0, length) for length in set(np.diff(ends).tolist())}
    return [of_length[stop - start] for start, stop in pairwise(ends)]


def _blocks(run: DPSGD) -> list[tuple[int, int, float]]:
    ends = np.concatenate(([0], run.released_steps()))
    if any(np.ndim(value) for value in _per_step(run)):
        return [(start, stop, 1.0) for start, stop in pairwise(ends.tolist())]
    lengths, numbers = np.unique(np.diff(ends), return_counts=True)
    return [(0, length, float(number)) for length, number in zip(lengths.tolist(), numbers.tolist(), strict=True)]


def _per_step(run: DPSGD) -> tuple[PerStep, ...]:
    rate = 1.0 if run.optimizer is None else run.optimizer.learning_rate
    return run.sample_rate, run.noise_multiplier, rate, 1.0 if run.weights is None else run.weights


def _law(run: DPSGD, start: int, stop: int) -> Law | None:
    """Return the law of a non-negative S of a block, or None if the block adds nothing."""
    schedule = run.weights if run.optimizer is None else run.optimizer.learning_rate
    if schedule is not None and np.ndim(schedule) == 1 and not np.any(np.asarray(schedule)[start:stop]):
        return None
    law = law_of(run.stretch(start, stop))
    if law.low < 0.0 < law.high:
        raise BadArgument(
            "weights", "must all have one sign with several releases: otherwise the best test for a block is unknown"
        )
    return law.flipped() if law.low < 0.0 else law


def _key(law: Law) -> tuple[object, ...]:
    blocks = tuple((values.tobytes(), chances.tobytes()) for values, chances in law.blocks)
    return law.noise, law.constant, law.counts.tobytes(), law.rates.tobytes(), law.weights.tobytes(), blocks
