"""Predict, audit and probe what the last iterate of DP-SGD leaks."""

from lastiterate.optimizer import SGD
from lastiterate.privacy.composition import composition
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.full_batch import full_batch
from lastiterate.privacy.last_iterate import last_iterate
from lastiterate.privacy.no_amplification import no_amplification
from lastiterate.run import DPSGD
