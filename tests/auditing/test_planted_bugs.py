"""An audit catches a broken DP-SGD, by either kind of claim, and lets a correct one pass."""

import pytest

import lastiterate as li
from lastiterate.attacks import Displacement
from lastiterate.auditing.engines.engine import Local
from lastiterate.auditing.evidence.estimates import Question
from lastiterate.auditing.experiments.protocol import Trials
from lastiterate.auditing.load_evidence import read
from lastiterate.auditing.stores.audit_record import ScoredTrials
from tests.auditing.broken_trainers import BUGS, CANARY, RUN, Correct, unflatten

CONFIDENCE = 0.999
DELTA = 1e-5
CLAIMS = ({"claim_noise": RUN.noise_multiplier}, {"claim_epsilon": li.composition(RUN).epsilon(DELTA)})


class Quick(Local):
    """Hands trials over all at once: a model takes less time here than the disk needs to keep it."""

    def prepare(self, *args) -> Trials:
        trials = super().prepare(*args)
        return Trials(trials.chunk_size, lambda *given: iter([ScoredTrials.mixed(list(trials.chunks(*given)))]))


@pytest.fixture(scope="module")
def audit(tmp_path_factory):
    """Audits a trainer by what its run says, and judges the same scores by each claim."""

    def audit(trainer):
        store = tmp_path_factory.mktemp("audit") / "store.sqlite"
        attack = Displacement(unflatten(CANARY))
        li.audit(RUN, trainer, attack, 512, store=store, engine=Quick(), delta=DELTA, confidence=CONFIDENCE)
        return [read(store, Question(DELTA, CONFIDENCE, **claim)) for claim in CLAIMS]

    return audit


def test_the_correct_trainer_is_consistent_though_nearly_all_of_its_leakage_is_found(audit):
    results = audit(Correct())
    assert [result.verdict for result in results] == ["consistent"] * 2
    assert results[0].signal > 0.9 * results[0].ideal_signal


@pytest.mark.parametrize("bug", BUGS[::3], ids=lambda bug: bug.__name__)
def test_a_bug_is_a_violation_of_the_noise_and_of_the_epsilon_that_are_claimed(audit, bug):
    by_noise, by_epsilon = audit(bug())
    assert by_noise.verdict == "violation", by_noise.reason
    assert by_epsilon.verdict == "violation", by_epsilon.reason
    assert "noise multiplier 1.5" in by_noise.reason
    assert by_noise.empirical["composition"] > 1.4 * by_noise.composition  # not by a hair
