"""The paper's baseline: full-batch DP-GD with the same expected steps and the same noise."""

from __future__ import annotations

import numpy as np

from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.law import Law, law_of
from lastiterate.privacy.mixtures.pairs import pair_of
from lastiterate.run import DPSGD, require_run


def full_batch(run: DPSGD) -> PrivacyCurve:
    """The run with q = 1, learning rates times q_t and noise multipliers over q_t (the paper's equation 4).

    Every example then counts as much as it does on average, with certainty: the Gaussian mechanism with
    mu = sum_t w_t q_t / sqrt(sum_t w_t^2 sigma_t^2). A baseline for comparison, not a guarantee for the run itself.
    """
    law = law_of(require_run(run))
    none = np.empty(0)
    return PrivacyCurve(pair_of(Law(law.noise, law.mean, none, none, none)), "full_batch", is_guarantee=False)
