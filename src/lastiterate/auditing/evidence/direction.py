"""Scores with the wrong sign: do they tell the two worlds apart the other way round?"""

from __future__ import annotations

import numpy as np

from lastiterate.auditing.evidence.rates import ranks
from lastiterate.auditing.evidence.threshold import Worlds

CHANCE = 1e-4  # with which scores without signal seem to
_RATIO = 2.0  # of neighbouring numbers of smallest scores: finer tells hardly more, and shares the error further
OTHER_WAY = (
    f"The scores tell the two worlds apart the other way round, beyond chance ({CHANCE:g}): smaller scores speak for "
    "the canary. Their sign seems to be wrong; of many models, the threshold split finds the direction by itself."
)
SMALLER = (
    "The half of the models that chose the threshold found that smaller scores speak for the canary: those of at most "
    'the threshold are called "in".'
)


def separates_the_other_way(worlds: Worlds) -> bool:
    """Whether smaller scores, not larger ones, speak for the canary, beyond a chance of ``CHANCE``.

    Two tests share that chance; neither minds ties or infinities. Mann and Whitney's asks whether a score with the
    canary is mostly smaller than one without. The other asks whether the smallest of all scores are mostly of models
    with the canary, which is what there is to see where few models use it, and the largest are not.
    """
    if worlds.inside[0] == worlds.outside[0] == worlds.inside[-1] == worlds.outside[-1]:
        return False  # all scores are equal
    from scipy.stats import mannwhitneyu

    if mannwhitneyu(worlds.inside, worlds.outside, alternative="less").pvalue < 0.5 * CHANCE:
        return True
    return _smallest_are_in(worlds) and not _smallest_are_in(worlds.mirrored())


def _smallest_are_in(worlds: Worlds) -> bool:
    """Fisher's exact test of the smallest scores, in numbers that are fixed in advance and share the error.

    Scores that equal the largest among them belong to them: which do is the same for both worlds.
    """
    from scipy.stats import hypergeom

    scores = np.sort(np.concatenate((worlds.inside, worlds.outside)))
    counts = ranks(scores.size, _RATIO)
    bounds = scores[counts]
    ins, outs = (np.searchsorted(world, bounds, side="right") for world in (worlds.inside, worlds.outside))
    chances = hypergeom.sf(ins - 1, scores.size, worlds.inside.size, ins + outs)
    return bool(np.min(chances) < 0.5 * CHANCE / counts.size)
