"""Predict, audit and probe what the last iterate of DP-SGD leaks."""

from typing import Any

from lastiterate.optimizer import SGD
from lastiterate.privacy.analyses.calibrate import calibrate
from lastiterate.privacy.analyses.composition import composition
from lastiterate.privacy.analyses.full_batch import full_batch
from lastiterate.privacy.analyses.grid import last_iterate_epsilon
from lastiterate.privacy.analyses.last_iterate import last_iterate
from lastiterate.privacy.analyses.max_over_steps import max_over_steps
from lastiterate.privacy.analyses.no_amplification import no_amplification
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.run import DPSGD
from lastiterate.trainer_failure import TrainerFailed

__version__ = "0.1.0"

__all__ = [
    "DPSGD",
    "SGD",
    "Estimate",
    "HeuristicWarning",
    "LastIterateAccountant",
    "PrivacyCurve",
    "Trained",
    "TrainerFailed",
    "audit",
    "calibrate",
    "composition",
    "estimate",
    "full_batch",
    "last_iterate",
    "last_iterate_epsilon",
    "max_over_steps",
    "no_amplification",
    "register_opacus",
]


def __getattr__(name: str) -> Any:
    """Load what takes long to import, or few need, when it is first asked for."""
    if name == "audit":
        from lastiterate.auditing.conduct import audit

        return audit
    if name == "Trained":
        from lastiterate.auditing.experiments.trained import Trained

        return Trained
    if name in ("Estimate", "estimate"):
        from lastiterate.auditing.evidence import estimate

        return getattr(estimate, name)
    if name in ("HeuristicWarning", "LastIterateAccountant", "register_opacus"):
        from lastiterate.integrations import dp_accounting

        return getattr(dp_accounting, name)
    raise AttributeError(f"module 'lastiterate' has no attribute {name!r}")
