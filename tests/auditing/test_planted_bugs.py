"""An audit catches a broken DP-SGD, by either kind of claim, and lets a correct one pass."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate.attacks import Displacement
from lastiterate.auditing.engines.engine import Local
from lastiterate.auditing.evidence.estimates import Question
from lastiterate.auditing.experiments.protocol import Trials
from lastiterate.auditing.load_evidence import read
from lastiterate.auditing.stores.audit_record import ScoredTrials
from tests.tools.trainers import Numpy

CONFIDENCE = 0.999
DELTA = 1e-5
RUN = li.DPSGD(steps=30, sample_rate=0.4, noise_multiplier=1.5, clip_norm=4.0, optimizer=li.SGD(0.006))
CLAIMS = ({"claim_noise": RUN.noise_multiplier}, {"claim_epsilon": li.composition(RUN).epsilon(DELTA)})


class Quick(Local):
    """Hands trials over all at once: a model takes less time here than the disk needs to keep it."""

    def prepare(self, *args) -> Trials:
        trials = super().prepare(*args)
        return Trials(trials.chunk_size, lambda *given: iter([ScoredTrials.mixed(list(trials.chunks(*given)))]))


class Network(Numpy):
    """The canary's gradient is equally long in each tensor: faults of clipping and of biases show with nothing less."""

    def example(self):
        return {name: 40.0 * value / np.linalg.norm(value) for name, value in super().example().items()}


def network(fault=None, size=1.0):
    """A trainer of a small network, with one fault."""
    return Network(RUN, "mlp", examples=40, features=64, classes=10, fault=fault, size=size)


@pytest.fixture(scope="module")
def audit(tmp_path_factory):
    """Audits a trainer by what its run says, and judges the same scores by each claim."""

    def audit(trainer):
        store = tmp_path_factory.mktemp("audit") / "store.sqlite"
        attack = Displacement(trainer.example())
        li.audit(RUN, trainer, attack, 512, store=store, engine=Quick(), delta=DELTA, confidence=CONFIDENCE)
        return [read(store, Question(DELTA, CONFIDENCE, **claim)) for claim in CLAIMS]

    return audit


def test_the_correct_trainer_is_consistent_though_nearly_all_of_its_leakage_is_found(audit):
    results = audit(network())
    assert [result.verdict for result in results] == ["consistent"] * 2
    assert results[0].signal > 0.9 * results[0].ideal_signal


@pytest.mark.parametrize(("fault", "size"), [("no noise on biases", 1.0), ("noise", 0.25), ("always in", 1.0)])
def test_a_fault_is_a_violation_of_the_noise_and_of_the_epsilon_that_are_claimed(audit, fault, size):
    by_noise, by_epsilon = audit(network(fault, size))
    assert by_noise.verdict == "violation", by_noise.reason
    assert by_epsilon.verdict == "violation", by_epsilon.reason
    assert "noise multiplier 1.5" in by_noise.reason
    assert by_noise.empirical["composition"] > 1.4 * by_noise.composition  # not by a hair
