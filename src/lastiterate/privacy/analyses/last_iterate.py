"""The paper's heuristic: the run analysed as if its losses were linear, only the last iterate being released."""

from __future__ import annotations

from lastiterate.privacy.analyses.released import released_pair
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.run import DPSGD, require_run


def last_iterate(run: DPSGD) -> PrivacyCurve:
    """The last-iterate heuristic (the paper's Theorem 1): exact for linear losses, a prediction for all others.

    Not a guarantee. P and Q are those of its equation 1, generalised to steps of different weight, to people with
    several examples, and to examples that are replaced. Where a run releases several iterates, it is for all of them.
    """
    return PrivacyCurve(released_pair(require_run(run)), "last_iterate", is_guarantee=False)
