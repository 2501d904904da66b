"""Trials without a verdict, attacks that bring their problem, and training in float64."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.attacks import AllIterates
from lastiterate.attacks.attack import Armed, BringsProblem, Unknown, Words
from lastiterate.auditing.experiments.choose import Given, experiment_on
from lastiterate.auditing.run_audit import collected
from lastiterate.training import GradientCanary, Problem, problems
from tests.paper.reproduce.conftest import Idle

RUN = li.DPSGD(6, 0.5, 1.0, optimizer=li.SGD(0.5))
TINY = li.DPSGD(3, 0.5, 1e-12, optimizer=li.SGD(1.0))


@dataclass(frozen=True)
class Precise(BringsProblem):
    """One parameter that begins at 1, of which float32 cannot tell noise and a canary of 1e-12."""

    double: bool

    def craft(self, run, problem, references):
        assert problem is None
        return {}

    def arm(self, run, problem, facts):
        assert problem is None
        own = Problem(np.ones(1), regulariser_gradient=lambda model, step: jnp.zeros_like(model))
        return Armed(own, GradientCanary(np.array([1e-12])), _above_one, double=self.double)

    def expected(self, facts):
        return Unknown()

    def words(self, facts):
        return Words("a test", "score")


def _above_one(parameters):
    assert jnp.ones(1).dtype == jnp.float32  # whoever scores is not in float64
    return np.asarray(parameters, np.float64)[:, 0] - 1.0


def collect(run, problem, attack, models, seed=0, store=None, engine="local"):
    experiment = experiment_on(problem, Given(run, attack, models, seed))
    with collected(experiment, store=store, engine=engine) as kept:
        return kept.scores()


def test_an_audit_judges_what_was_collected_into_its_store(tmp_path):
    file = tmp_path / "kept.sqlite"
    subject = RUN, problems.linear(), AllIterates("zero")
    trials = collect(*subject, 12, 2, file)
    result = li.audit(*subject, 12, 2, file, Idle(), methods=["clopper-pearson"])
    assert np.array_equal(np.sort(result.scores_in), np.sort(trials.scores[trials.present]))
    again = collect(*subject, 12, 2, file, Idle())
    assert np.array_equal(again.scores, trials.scores)


def test_nothing_is_kept_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    collect(TINY, None, Precise(double=False), 2)
    assert not list(tmp_path.iterdir())


def test_double_trains_in_float64_while_jax_stays_as_it_is():
    scores = collect(TINY, None, Precise(double=True), 40).scores
    assert np.all(scores != 0.0)
    assert scores.std() == pytest.approx(np.sqrt(3.0) * 1e-12, rel=0.5)
    assert not jax.config.x64_enabled
    assert jnp.ones(1).dtype == jnp.float32
