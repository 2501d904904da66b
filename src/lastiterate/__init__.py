"""Predict, audit and probe what the last iterate of DP-SGD leaks."""

from importlib import import_module
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from lastiterate.auditing.conduct import audit
    from lastiterate.auditing.evidence.estimate import Estimate, estimate
    from lastiterate.auditing.experiments.trained import Trained
    from lastiterate.integrations.dp_accounting import LastIterateAccountant
    from lastiterate.integrations.history import HeuristicWarning
    from lastiterate.integrations.opacus import register_opacus

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


# Takes long to import, or few need it: loaded when first asked for. Type checkers read the imports above.
_LOADED_WHEN_ASKED_FOR = {
    "Estimate": "lastiterate.auditing.evidence.estimate",
    "HeuristicWarning": "lastiterate.integrations.history",
    "LastIterateAccountant": "lastiterate.integrations.dp_accounting",
    "Trained": "lastiterate.auditing.experiments.trained",
    "audit": "lastiterate.auditing.conduct",
    "estimate": "lastiterate.auditing.evidence.estimate",
    "register_opacus": "lastiterate.integrations.opacus",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _LOADED_WHEN_ASKED_FOR:
            raise AttributeError(f"module 'lastiterate' has no attribute {name!r}")
        return getattr(import_module(_LOADED_WHEN_ASKED_FOR[name]), name)
