"""Audits that one may watch, stop and extend."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate.attacks import Adversarial, Displacement
from lastiterate.auditing.evidence.estimates import Question
from lastiterate.auditing.load_evidence import evidence_in, read
from lastiterate.auditing.stores.store import Store
from lastiterate.training import problems
from tests.auditing.test_planted_bugs import RUN, network

GAUSSIAN = li.DPSGD(steps=1, sample_rate=1.0, noise_multiplier=1.0)


def gaussian(seed, canary):
    return float(np.random.default_rng(seed).normal(1.0 * canary, 1.0))


def loud(seed, canary):
    return float(np.random.default_rng(seed).normal(6.0 * canary, 1.0))


def scores(store):
    with Store.read(store) as kept:
        trials = kept.scores()
    return trials.models.tolist(), trials.present.tolist(), trials.scores.tolist()


def audits():
    """The same kind of audit of any size: problem, attack and run."""
    run = li.DPSGD(steps=20, sample_rate=0.2, noise_multiplier=1.0, optimizer=li.SGD(0.1))
    return {
        "trainer": (GAUSSIAN, gaussian, None),
        "shipped trainer": (run, problems.linear(np.eye(4, dtype=np.float32)), None),
        "exact draws": (run, None, Adversarial("exact")),
    }


@pytest.mark.parametrize("kind", ["trainer", "shipped trainer", "exact draws"])
def test_an_audit_that_was_extended_equals_one_that_was_begun_larger(tmp_path, kind):
    run, problem, attack = audits()[kind]
    small, large = tmp_path / "small.sqlite", tmp_path / "large.sqlite"
    for models in (7, 7, 30):
        extended = li.audit(run, problem, attack, models, store=small, validity="anytime")
    li.audit(run, problem, attack, 30, store=large, validity="anytime")
    assert scores(small) == scores(large)
    assert len(extended.scores_in) == 30


def test_the_threshold_is_that_of_the_number_of_models_that_it_began_with(tmp_path):
    run, problem, attack = audits()["exact draws"]
    store = tmp_path / "x.sqlite"
    thresholds = {
        li.audit(run, problem, attack, models, store=store, validity="anytime").estimates["gdp"].threshold
        for models in (100, 3000)
    }
    assert len(thresholds) == 1
    begun_larger = li.audit(run, problem, attack, 3000, validity="anytime").estimates["gdp"].threshold
    assert begun_larger not in thresholds


def test_models_behind_one_that_is_missing_do_not_count(tmp_path):
    from lastiterate.auditing.stores.audit_record import ScoredTrials

    run, problem, attack = GAUSSIAN, gaussian, None
    store = tmp_path / "x.sqlite"
    li.audit(run, problem, attack, 3, store=store, validity="anytime")
    from lastiterate.auditing.experiments.choose import Given, experiment_on
    from lastiterate.auditing.run_audit import _open

    experiment = experiment_on(problem, Given(run, attack, 10, 0, None, "", open_ended=True))
    with _open(store, experiment, {}) as kept:
        for model, world in ((5, True), (5, False), (3, True)):
            kept.add(ScoredTrials.of([model], [world], [0.0], seconds=0.0))
        evidence = evidence_in(kept)
    assert evidence.prefix == 6
    assert len(read(store).scores_in) == 3


def test_a_report_of_an_open_ended_audit_is_valid_at_any_time_whatever_is_asked(tmp_path):
    store = tmp_path / "x.sqlite"
    li.audit(GAUSSIAN, gaussian, models=80, store=store, validity="anytime")
    found = read(store, Question(validity="fixed"))
    assert {each.validity for each in found.estimates.values()} == {"anytime"}
    assert any("look, stop or continue" in caveat for caveat in found.caveats)
    with pytest.raises(ValueError, match="threshold must be a-priori, split or a number"):
        read(store, Question(threshold="corrected"))


def test_a_fixed_audit_is_neither_extended_nor_mixed_with_an_open_ended_one(tmp_path):
    store = tmp_path / "x.sqlite"
    li.audit(GAUSSIAN, gaussian, models=4, store=store)
    for options in ({"models": 8}, {"models": 4, "validity": "anytime"}):
        with pytest.raises(ValueError, match="holds another audit"):
            li.audit(GAUSSIAN, gaussian, store=store, **options)


@pytest.mark.parametrize("fault", ["by layer", "twice"])
def test_a_planted_fault_is_refuted_after_a_few_dozen_models(fault):
    trainer = network(fault)
    attack = Displacement(trainer.example())
    result = li.audit(RUN, trainer, attack, 512, claim_noise=1.5, validity="anytime", until="refuted")
    assert result.verdict == "violation"
    after = int(result.reason.split(" after ")[1].split(" models")[0])
    assert 15 <= after <= 100


def test_an_audit_stops_when_it_has_found_so_much():
    result = li.audit(GAUSSIAN, loud, models=20_000, validity="anytime", until="epsilon=2", methods=["clopper-pearson"])
    assert result.empirical["clopper-pearson"] >= 2.0
    assert len(result.scores_in) < 20_000
