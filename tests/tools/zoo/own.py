"""Our own trainer, trained by another run than is declared."""

from functools import cache

from lastiterate.optimizer import SGD
from lastiterate.run import DPSGD
from tests.tools.zoo.faults import Fault

RATE = 2e-4
DECLARED = DPSGD(40, 0.1, 2.0, optimizer=SGD(RATE, momentum=0.5))
OTHERS = {
    "right": ("", {}),
    "half_the_noise": ("noise", {"noise_multiplier": 1.0}),
    "clipping_norm": ("clipping", {"clip_norm": 1.5, "noise_multiplier": 2.0 / 1.5}),
    "sample_rate": ("participation", {"sample_rate": 0.5}),
    "momentum": ("optimizer", {"optimizer": SGD(RATE)}),
}


@cache
def own(name: str) -> Fault:
    from lastiterate.data import digits
    from lastiterate.integrations.own_trainer import own_trainer
    from lastiterate.training.problems import logistic

    category, changes = OTHERS[name]
    return Fault(f"own_{name}", category, DECLARED, own_trainer(DECLARED.replace(**changes), logistic(digits())))
