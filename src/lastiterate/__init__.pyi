"""Public names, each with the module it lives in. `__init__.py` loads a module on first use."""

from .auditing.evidence.audit_power import Power as Power
from .auditing.evidence.audit_power import power as power
from .auditing.evidence.estimate import Estimate as Estimate
from .auditing.evidence.estimate import estimate as estimate
from .auditing.evidence.zero_run import ZeroRun as ZeroRun
from .auditing.evidence.zero_run import zero_run as zero_run
from .auditing.experiments.user_trainer import Trained as Trained
from .auditing.run_audit import audit as audit
from .checking.check import check as check
from .citation import sentence as sentence
from .common.errors import TrainerFailed as TrainerFailed
from .integrations.balls_in_bins import BallsInBinsSampler as BallsInBinsSampler
from .integrations.balls_in_bins import balls_in_bins_loader as balls_in_bins_loader
from .integrations.dp_accounting import LastIterateAccountant as LastIterateAccountant
from .integrations.history import HeuristicWarning as HeuristicWarning
from .integrations.opacus import register_opacus as register_opacus
from .optimizer import SGD as SGD
from .optimizer import Adam as Adam
from .privacy.analyses.calibrate import calibrate as calibrate
from .privacy.analyses.composition import composition as composition
from .privacy.analyses.convex import convex as convex
from .privacy.analyses.last_iterate import (
    full_batch as full_batch,
)
from .privacy.analyses.last_iterate import (
    last_iterate as last_iterate,
)
from .privacy.analyses.last_iterate import (
    last_iterate_epsilon as last_iterate_epsilon,
)
from .privacy.analyses.max_over_steps import max_over_steps as max_over_steps
from .privacy.analyses.no_amplification import no_amplification as no_amplification
from .privacy.convex.distances import Contraction as Contraction
from .privacy.curve import PrivacyCurve as PrivacyCurve
from .run import DPSGD as DPSGD
from .training.problems import contraction_of as contraction_of

__version__: str
