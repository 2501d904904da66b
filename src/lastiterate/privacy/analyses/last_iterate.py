"""The paper's heuristic: the run analysed as if its losses were linear, only the last iterate being released."""

from __future__ import annotations

from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.law import law_of
from lastiterate.privacy.mixtures.pairs import pair_of
from lastiterate.run import DPSGD, require_run


def last_iterate(run: DPSGD) -> PrivacyCurve:
    """The last-iterate heuristic (the paper's Theorem 1): exact for linear losses, a prediction for all others.

    Not a guarantee. P and Q are those of its equation 1, generalised to steps of different weight.
    """
    return PrivacyCurve(pair_of(law_of(require_run(run))), "last_iterate", is_guarantee=False)
