"""Predict, audit and probe what the last iterate of DP-SGD leaks."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lastiterate.auditing.conduct import audit
    from lastiterate.auditing.evidence.estimate import Estimate, estimate
    from lastiterate.auditing.evidence.planning import power
    from lastiterate.auditing.evidence.reach import Power
    from lastiterate.auditing.experiments.trained import Trained
    from lastiterate.checking.check import check
    from lastiterate.contraction import Contraction
    from lastiterate.integrations.dp_accounting import LastIterateAccountant
    from lastiterate.integrations.history import HeuristicWarning
    from lastiterate.integrations.opacus import register_opacus
    from lastiterate.optimizer import SGD, Adam
    from lastiterate.privacy.analyses.calibrate import calibrate
    from lastiterate.privacy.analyses.composition import composition
    from lastiterate.privacy.analyses.convex import convex
    from lastiterate.privacy.analyses.full_batch import full_batch
    from lastiterate.privacy.analyses.grid import last_iterate_epsilon
    from lastiterate.privacy.analyses.last_iterate import last_iterate
    from lastiterate.privacy.analyses.max_over_steps import max_over_steps
    from lastiterate.privacy.analyses.no_amplification import no_amplification
    from lastiterate.privacy.curve import PrivacyCurve
    from lastiterate.reporting import sentence
    from lastiterate.run import DPSGD
    from lastiterate.trainer_failure import TrainerFailed
    from lastiterate.training.contraction import contraction_of

__version__ = "0.1.0"

__all__ = [
    "DPSGD",
    "SGD",
    "Adam",
    "Contraction",
    "Estimate",
    "HeuristicWarning",
    "LastIterateAccountant",
    "Power",
    "PrivacyCurve",
    "Trained",
    "TrainerFailed",
    "audit",
    "calibrate",
    "check",
    "composition",
    "contraction_of",
    "convex",
    "estimate",
    "full_batch",
    "last_iterate",
    "last_iterate_epsilon",
    "max_over_steps",
    "no_amplification",
    "power",
    "register_opacus",
    "sentence",
]


# Everything is loaded when it is first asked for: some takes long, few need all, and the command line must be able to
# say what Ctrl-C does before NumPy is loaded. Type checkers read the imports above.
_LOADED_WHEN_ASKED_FOR = {
    "Contraction": "contraction",
    "DPSGD": "run",
    "SGD": "optimizer",
    "Adam": "optimizer",
    "Estimate": "auditing.evidence.estimate",
    "HeuristicWarning": "integrations.history",
    "LastIterateAccountant": "integrations.dp_accounting",
    "Power": "auditing.evidence.reach",
    "PrivacyCurve": "privacy.curve",
    "Trained": "auditing.experiments.trained",
    "TrainerFailed": "trainer_failure",
    "audit": "auditing.conduct",
    "calibrate": "privacy.analyses.calibrate",
    "check": "checking.check",
    "composition": "privacy.analyses.composition",
    "contraction_of": "training.contraction",
    "convex": "privacy.analyses.convex",
    "estimate": "auditing.evidence.estimate",
    "full_batch": "privacy.analyses.full_batch",
    "last_iterate": "privacy.analyses.last_iterate",
    "last_iterate_epsilon": "privacy.analyses.grid",
    "max_over_steps": "privacy.analyses.max_over_steps",
    "no_amplification": "privacy.analyses.no_amplification",
    "power": "auditing.evidence.planning",
    "register_opacus": "integrations.opacus",
    "sentence": "reporting",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _LOADED_WHEN_ASKED_FOR:
            raise AttributeError(f"module 'lastiterate' has no attribute {name!r}")
        return getattr(import_module(f"lastiterate.{_LOADED_WHEN_ASKED_FOR[name]}"), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
