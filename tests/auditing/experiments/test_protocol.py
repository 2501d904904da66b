"""Every kind of experiment speaks the protocol: what it plans is what it trains, and it can be sent elsewhere."""

import json
import pickle
from functools import cached_property

import cloudpickle
import numpy as np
import pytest

import lastiterate as li
from lastiterate import attacks, data
from lastiterate.attacks.attack import LikelihoodRatio, LinearScores, Unknown
from lastiterate.auditing.design import OneModel, Paired, Quality
from lastiterate.auditing.experiments.choose import Given, experiment_on
from lastiterate.auditing.run_audit import collected
from lastiterate.auditing.stores.audit_record import Crafted
from lastiterate.training.recipes import recipe
from tests.lm.conftest import tiny_llama, tiny_texts  # noqa: F401 - fixtures

RUN = li.DPSGD(4, 0.5, 1.0, optimizer=li.SGD(0.05))
MODELS, SEED = 3, 3


def score(seed, canary):
    return float(np.random.default_rng(seed).standard_normal() + canary)


def parameters(seed, canary):
    return np.random.default_rng(seed).standard_normal(3) + canary


def _digits():
    usual = recipe(data.digits(), "logistic")
    return usual.problem, usual.test


def _trained_models(request):
    problem, test = _digits()
    return problem, attacks.GradientSpace("quiet", references=4), test


def _trained_models_of_no_problem(request):
    return None, attacks.Adversarial("trained"), None


def _all_iterates(request):
    return _digits()[0], attacks.AllIterates("zero"), None


def _exact_draws(request):
    return None, attacks.Adversarial("exact"), None


def _one_training(request):
    problem, test = _digits()
    return problem, attacks.OneRun(references=3), test


def _users_scores(request):
    return score, None, None


def _users_parameters(request):
    return parameters, attacks.Displacement([1.0, 2.0, 3.0], references=8), None


def _texts(request):
    from lastiterate.lm import TextProblem

    return TextProblem.of(request.getfixturevalue("tiny_llama"), request.getfixturevalue("tiny_texts"), 0.2)


def _fine_tunings(request):
    problem = _texts(request)
    from lastiterate.lm import UnseenTokens

    return problem, UnseenTokens(candidates=1, references=8, length=4), None


def _one_fine_tuning(request):
    problem = _texts(request)
    from lastiterate.lm import OneRunTokens

    return problem, OneRunTokens(length=4, references=2), None


KINDS = {  # what is given; its class, design, quality, what is expected of the scores, models that only craft
    _trained_models: ("TrainedModels", Paired, "accuracy", LinearScores, 4),
    _trained_models_of_no_problem: ("TrainedModels", Paired, None, LinearScores, 0),
    _all_iterates: ("TrainedModels", Paired, None, LikelihoodRatio, 0),
    _exact_draws: ("ExactDraws", Paired, None, LinearScores, 0),
    _one_training: ("OneTraining", OneModel, "accuracy", LinearScores, 3),
    _users_scores: ("UserTrainings", Paired, None, Unknown, 0),
    _users_parameters: ("UserTrainings", Paired, None, LinearScores, 8),
    _fine_tunings: ("FineTunings", Paired, "perplexity", LinearScores, 8),
    _one_fine_tuning: ("OneFineTuning", OneModel, "perplexity", LinearScores, 2),
}


class Case:
    """An experiment, crafted once for all tests of it."""

    def __init__(self, kind, request):
        self.kind, self.design, quality, self.expected, self.references = KINDS[kind]
        self.quality = None if quality is None else Quality(quality)
        self.given = kind(request)
        self.experiment = self.again()
        self.crafted = self.experiment.craft(False)

    def again(self, seed=SEED, models=MODELS):
        problem, attack, test = self.given
        return experiment_on(problem, Given(RUN, attack, models, seed, test))

    def trained(self, experiment=None, rows=slice(None)):
        """The chunks of these rows of what is planned, at a size of two."""
        experiment = experiment or self.experiment
        trials = experiment.trials(self.crafted, 2, workers=1)
        numbers, present = experiment.design.planned()
        return trials.chunk_size, list(trials.chunks(numbers[rows], present[rows], None))

    @cached_property
    def whole(self):
        return self.trained()


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__.strip("_"))
def case(request):
    return Case(request.param, request)


def test_the_design_plans_each_trial_once(case):
    design = case.experiment.design
    numbers, present = design.planned()
    assert (
        len(numbers) == len(present) == design.trials == len(set(zip(numbers.tolist(), present.tolist(), strict=True)))
    )
    assert set(numbers.tolist()) == set(range(MODELS)) == set(range(design.models))
    if isinstance(design, Paired):
        assert present.sum() == MODELS
    else:
        assert design.trials == MODELS


def test_the_identity_is_plain_known_and_of_this_audit_alone(case):
    identity = case.experiment.identity()
    assert identity == case.again().identity()
    assert identity.unknown == ()
    assert json.loads(json.dumps(identity.values)) == identity.values
    others = [case.again(seed=SEED + 1).identity(), case.again(models=MODELS + 1).identity()]
    assert len({each.digest() for each in (identity, *others)}) == 3


def test_what_is_crafted_is_typed_and_survives_a_store(case):
    crafted = case.crafted
    assert isinstance(crafted.expected, case.expected)
    assert Crafted.of_fields(json.loads(json.dumps(crafted.fields() | {"chunk_size": 1}))) == crafted
    assert (crafted.quality_before is not None) == (case.quality == Quality("perplexity"))
    assert crafted.words.attack
    assert crafted.words.unit


def test_chunks_are_exactly_what_was_asked_for(case):
    size, chunks = case.whole
    numbers, present = case.experiment.design.planned()
    asked = list(zip(numbers.tolist(), present.tolist(), strict=True))
    got = [pair for chunk in chunks for pair in zip(chunk.models.tolist(), chunk.present.tolist(), strict=True)]
    assert sorted(got) == sorted(asked)
    assert size >= 1
    scores = np.concatenate([chunk.scores for chunk in chunks])
    assert np.unique(scores).size == len(asked)
    measured = ~np.isnan(np.concatenate([chunk.qualities for chunk in chunks]))
    assert np.all(measured == (case.quality is not None))


def test_the_chunk_that_is_missing_is_trained_as_it_would_have_been(case):
    """What a store asks for when it is resumed: some whole chunks, at the size that it was begun with."""
    size, chunks = case.whole
    whole = {(m, w): s for c in chunks for m, w, s in zip(c.models, c.present, c.scores, strict=True)}
    last = slice((case.experiment.design.trials - 1) // size * size, None)
    _, again = case.trained(rows=last)
    assert sum(map(len, again)) > 0
    for chunk in again:
        for model, world, score in zip(chunk.models, chunk.present, chunk.scores, strict=True):
            assert score == pytest.approx(whole[model, world], rel=1e-5, abs=1e-6)


def test_an_experiment_that_was_sent_elsewhere_gives_the_same_scores(case):
    pickles = cloudpickle if case.kind == "TrainedModels" else pickle
    sent = pickle.loads(pickles.dumps(case.experiment))
    assert sent.identity() == case.experiment.identity()
    (_, here), (_, there) = case.whole, case.trained(sent)
    for one, other in zip(here, there, strict=True):
        np.testing.assert_array_equal(one.models, other.models)
        np.testing.assert_allclose(one.scores, other.scores, rtol=1e-5, atol=1e-6)


def test_all_trials_are_collected_and_a_finished_experiment_is_not_crafted_again(case, tmp_path, monkeypatch):
    path = tmp_path / "x.sqlite"
    with collected(case.experiment, store=path, progress=False) as store:
        first = store.scores()
        assert store.record.design == case.experiment.design
        assert store.record.quality == case.quality
    assert len(first) == case.experiment.design.trials
    monkeypatch.setattr(type(case.experiment), "craft", None)
    monkeypatch.setattr(type(case.experiment), "trials", None)
    with collected(case.again(), store=path, progress=False) as store:
        np.testing.assert_array_equal(store.scores().scores, first.scores)
