"""The paper's baseline: full-batch DP-GD with the same expected steps and the same noise."""

from __future__ import annotations

import math

import numpy as np

from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.pairs import pair_of
from lastiterate.privacy.mixtures.released import released_laws
from lastiterate.run import DPSGD, require_run


def full_batch(run: DPSGD) -> PrivacyCurve:
    """The run with q = 1, learning rates times q_t and noise multipliers over q_t (the paper's equation 4).

    Every example then counts as much as it does on average, with certainty: the Gaussian mechanism with
    mu = sum_t w_t q_t / sqrt(sum_t w_t^2 sigma_t^2). A baseline for comparison, not a guarantee for the run itself.
    Blocks between released iterates are such mechanisms each, and their mu^2 add up.
    """
    laws, none = released_laws(require_run(run)), np.empty(0)
    noise, mean = laws[0][1].noise, laws[0][1].mean
    if run.release_count > 1:
        noise, mean = 1.0, math.sqrt(math.fsum(count * (law.mean / law.noise) ** 2 for count, law in laws))
    apart = 2.0 if run.neighbours == "replace" else 1.0
    return PrivacyCurve(pair_of(Law(noise, apart * mean, none, none, none)), "full_batch", is_guarantee=False)
