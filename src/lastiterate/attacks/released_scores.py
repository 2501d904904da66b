"""Scores by all released iterates: the log of the likelihood ratio of what each block between two of them adds.

Blocks are independent, so that the sum of theirs is the ratio of all: no attack on linear losses does better.
"""

from __future__ import annotations

import numpy as np

from lastiterate.arrays import BoolArray, FloatArray
from lastiterate.privacy.losses.mixture_of_law import mixture_of
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.released import laws_in_order, released_laws
from lastiterate.run import DPSGD


def sample_released_scores(
    run: DPSGD, present: BoolArray, generator: np.random.Generator, signal: float = 1.0, noise: float = 1.0
) -> FloatArray:
    """Draws of the score with the canary and without it, or with the example that replaces it.

    ``signal`` is the share of the canary that the attack sees, ``noise`` what there is of the noise it reckons with.
    """
    mirrored = run.neighbours == "replace"
    total = np.zeros(present.size)
    for count, law in released_laws(run):
        shown = law.scaled(1.0, law.noise / signal)
        for _ in range(int(count)):
            seen = noise * generator.standard_normal(present.size)
            seen[present] += shown.sample(int(present.sum()), generator) / shown.noise
            if mirrored:
                seen[~present] -= shown.sample(int((~present).sum()), generator) / shown.noise
            total += block_ratio(shown, seen, mirrored=mirrored)
    return total


def released_ratios(run: DPSGD, seen: FloatArray, signal: float = 1.0) -> FloatArray:
    """Scores of models, by what each block was seen to add, [models, blocks], in units of its noise."""
    total = np.zeros(len(seen))
    blocks: dict[int, tuple[Law, list[int]]] = {}
    for column, law in enumerate(laws_in_order(run)):
        if law is not None:
            blocks.setdefault(id(law), (law, []))[1].append(column)
    for law, columns in blocks.values():
        shown, there = law.scaled(1.0, law.noise / signal), seen[:, columns]
        ratios = block_ratio(shown, there.ravel(), mirrored=run.neighbours == "replace")
        total += ratios.reshape(there.shape).sum(axis=1)
    return total


def block_ratio(law: Law, seen: FloatArray, *, mirrored: bool) -> FloatArray:
    """The log-likelihood ratio of what a block adds, in units of its noise: S + N against N, or against -S + N.

    S is not negative. Where noise is too little for its exact law, weights are rounded up: a score all the same.
    """
    if law.low == law.high:
        size = law.high / law.noise
        return 2.0 * size * seen if mirrored else size * seen - 0.5 * size**2
    if not seen.size:
        return np.zeros(0)
    mixture = mixture_of(law, up=True)[0]
    farthest = float(np.max(np.abs(seen)))
    low, high = (-farthest, farthest) if mirrored else (float(seen.min()), float(seen.max()))
    loss = mixture.within(low, max(high, low + 1e-9)).loss
    return loss(seen) - loss(-seen) if mirrored else loss(seen)
