"""Predict, audit and probe what the last iterate of DP-SGD leaks."""

from lastiterate.optimizer import SGD
from lastiterate.privacy.full_batch import full_batch
from lastiterate.privacy.last_iterate import last_iterate
from lastiterate.run import DPSGD
