"""What no attack on a run may exceed."""

from __future__ import annotations

from collections.abc import Callable

from lastiterate.privacy.analyses.composition import composition
from lastiterate.privacy.analyses.no_amplification import no_amplification
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.run import DPSGD


def guarantee_of(run: DPSGD) -> Callable[[DPSGD], PrivacyCurve]:
    """The analysis that no attack on this run may exceed."""
    return composition if run.amplifies else no_amplification
