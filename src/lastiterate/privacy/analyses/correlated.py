"""The guarantee where noise is correlated: one Gaussian mechanism, whichever batches the canary is in.

Seen are the noisy sums G + F z of all steps. F is lower triangular, so that with C = F^-1 this is to see C G + z, step
by step. What the canary changes of step t's mean is (C D)_t, where D holds its gradients, which may depend on all that
was seen before. The sum of the squares of these changes is never more than the largest |C D|^2, and a Gaussian
mechanism whose changes are chosen as it goes, under such a bound, is one with that change (Denisov et al. 2022, theorem
2.1). A mixture over batches is no easier to tell than the worst of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lastiterate.privacy.analyses.participations import largest_norm
from lastiterate.privacy.mixtures.law import Law, epoch_length, require_separable_epochs
from lastiterate.privacy.mixtures.pairs import NothingPair, pair_of
from lastiterate.run import DPSGD

if TYPE_CHECKING:
    from lastiterate.privacy.curve import Pair


def correlated_pair(run: DPSGD) -> Pair:
    """The Gaussian mechanism with mu = |C u| / sigma, for the worst u; noise that differs counts by its smallest.

    Examples of a group may all be in the same batches. Where one example replaces another, gradients differ by twice
    the clipping norm.
    """
    assert run.noise_filter is not None
    if not np.any(run.sample_rate):
        return NothingPair()
    epoch = None
    if run.sampling == "shuffled":
        require_separable_epochs(run)
        epoch = epoch_length(run)
    size = largest_norm(run.noise_filter, run.steps, run.min_separation, epoch)
    apart = run.group_size * (2.0 if run.neighbours == "replace" else 1.0)
    none = np.empty(0)
    return pair_of(Law(float(np.min(run.noise_multiplier)), apart * size, none, none, none))


def without_filter(run: DPSGD) -> DPSGD | None:
    """The same run without a filter, if that only scales its noise and batches are drawn without regard to it."""
    assert run.noise_filter is not None
    if any(run.noise_filter[1 : run.steps]) or run.min_separation > 1:
        return None
    return run.replace(noise_filter=None, noise_multiplier=run.noise_multiplier * abs(run.noise_filter[0]))
