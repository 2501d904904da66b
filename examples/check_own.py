"""Check our own trainer, as anybody's: digits by logistic regression with momentum and weight decay.

python examples/check_own.py
lastiterate check --trainer examples/check_own.py:train
FAULT=1 lastiterate check --trainer examples/check_own.py:train     (half of the noise; status 1)
"""

from __future__ import annotations

import os

import lastiterate as li
from lastiterate.data import digits
from lastiterate.integrations.own_trainer import own_trainer
from lastiterate.training.problems import logistic

run = li.DPSGD(40, sample_rate=0.1, noise_multiplier=2.0, optimizer=li.SGD(0.0005, momentum=0.5, weight_decay=0.1))
trained = run.replace(noise_multiplier=1.0) if os.environ.get("FAULT") else run
train = own_trainer(trained, logistic(digits()))


if __name__ == "__main__":
    print(li.check(run, train))
