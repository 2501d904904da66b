"""Predict, audit and probe what the last iterate of DP-SGD leaks."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lastiterate.auditing.evidence.audit_power import Power, power
    from lastiterate.auditing.evidence.estimate import Estimate, estimate
    from lastiterate.auditing.experiments.user_trainer import Trained
    from lastiterate.auditing.run_audit import audit
    from lastiterate.checking.check import check
    from lastiterate.citation import sentence
    from lastiterate.common.errors import TrainerFailed
    from lastiterate.integrations.dp_accounting import LastIterateAccountant
    from lastiterate.integrations.history import HeuristicWarning
    from lastiterate.integrations.opacus import register_opacus
    from lastiterate.optimizer import SGD, Adam
    from lastiterate.privacy.analyses.calibrate import calibrate
    from lastiterate.privacy.analyses.composition import composition
    from lastiterate.privacy.analyses.convex import convex
    from lastiterate.privacy.analyses.last_iterate import full_batch, last_iterate, last_iterate_epsilon
    from lastiterate.privacy.analyses.max_over_steps import max_over_steps
    from lastiterate.privacy.analyses.no_amplification import no_amplification
    from lastiterate.privacy.convex.distances import Contraction
    from lastiterate.privacy.curve import PrivacyCurve
    from lastiterate.run import DPSGD
    from lastiterate.training.problems import contraction_of

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


# Modules are loaded on first use: some are slow, and the command line must handle Ctrl-C before NumPy is loaded.
# Type checkers read the imports above.
_LOADED_WHEN_ASKED_FOR = {
    "Contraction": "privacy.convex.distances",
    "DPSGD": "run",
    "SGD": "optimizer",
    "Adam": "optimizer",
    "Estimate": "auditing.evidence.estimate",
    "HeuristicWarning": "integrations.history",
    "LastIterateAccountant": "integrations.dp_accounting",
    "Power": "auditing.evidence.audit_power",
    "PrivacyCurve": "privacy.curve",
    "Trained": "auditing.experiments.user_trainer",
    "TrainerFailed": "common.errors",
    "audit": "auditing.run_audit",
    "calibrate": "privacy.analyses.calibrate",
    "check": "checking.check",
    "composition": "privacy.analyses.composition",
    "contraction_of": "training.problems",
    "convex": "privacy.analyses.convex",
    "estimate": "auditing.evidence.estimate",
    "full_batch": "privacy.analyses.last_iterate",
    "last_iterate": "privacy.analyses.last_iterate",
    "last_iterate_epsilon": "privacy.analyses.last_iterate",
    "max_over_steps": "privacy.analyses.max_over_steps",
    "no_amplification": "privacy.analyses.no_amplification",
    "power": "auditing.evidence.audit_power",
    "register_opacus": "integrations.opacus",
    "sentence": "citation",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _LOADED_WHEN_ASKED_FOR:
            raise AttributeError(f"module 'lastiterate' has no attribute {name!r}")
        return getattr(import_module(f"lastiterate.{_LOADED_WHEN_ASKED_FOR[name]}"), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
