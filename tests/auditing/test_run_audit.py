"""``lastiterate.audit``: reproducible, resumable, ordered as predicted, and clear about what it cannot do."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate import attacks, data
from lastiterate.attacks import AllIterates
from lastiterate.attacks.attack import Armed, BringsProblem, Unknown, Words
from lastiterate.auditing.experiments.choose import Given, experiment_on
from lastiterate.auditing.run_audit import collected
from lastiterate.auditing.stores.store import Store
from lastiterate.training import GradientCanary, Problem, problems
from tests.paper.reproduce.conftest import Idle

RUN = li.DPSGD(30, 0.1, 1.0, optimizer=li.SGD(0.02))
PROBLEM = problems.logistic(data.digits())
ATTACK = attacks.GradientSpace("quiet", references=4)


def noisy_sum(seed: int, canary: bool) -> float:
    """DP-SGD in one dimension, written by a user."""
    generator = np.random.default_rng(seed)
    batches = canary * (generator.random(RUN.steps) < RUN.sample_rate)
    return float(np.sum(batches + RUN.noise_multiplier * generator.standard_normal(RUN.steps)))


def test_interrupted_audit_resumes_and_equals_an_uninterrupted_one(tmp_path, monkeypatch):
    whole = li.audit(RUN, PROBLEM, ATTACK, models=40, seed=1)
    add, added = Store.add, []

    def stop_at_third(self, chunk):
        if len(added) == 2:
            raise KeyboardInterrupt
        add(self, chunk)
        added.append(chunk)

    monkeypatch.setattr(Store, "add", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        li.audit(RUN, PROBLEM, ATTACK, models=40, seed=1, store=tmp_path / "x.sqlite")
    monkeypatch.setattr(Store, "add", add)
    with Store.read(tmp_path / "x.sqlite") as store:
        stored = len(store.done())
    assert 0 < stored < 80
    resumed = li.audit(RUN, PROBLEM, ATTACK, models=40, seed=1, store=tmp_path / "x.sqlite")
    np.testing.assert_array_equal(resumed.scores_in, whole.scores_in)
    np.testing.assert_array_equal(resumed.scores_out, whole.scores_out)
    assert resumed.estimates == whole.estimates


@pytest.mark.parametrize(
    "changes",
    [{"models": 21}, {"seed": 1}, {"run": RUN.replace(steps=31)}, {"problem": lambda seed, canary: 0.0}],
    ids=["models", "seed", "run", "trainer"],
)
def test_another_audit_is_refused_and_nothing_touched(tmp_path, changes):
    path = tmp_path / "x.sqlite"
    given = {"run": RUN, "problem": noisy_sum, "models": 20, "store": path}
    li.audit(**given)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"is .* in the store and .* in this audit"):
        li.audit(**(given | changes))
    assert path.read_bytes() == before


def test_score_that_is_no_number_is_refused_and_earlier_ones_are_kept(tmp_path):
    path, calls = tmp_path / "x.sqlite", []

    def fails_late(seed, canary):
        calls.append(seed)
        return float("nan") if len(calls) == 5 else 1.0

    with pytest.raises(ValueError, match="scores must be numbers, infinite ones included, got nan"):
        li.audit(RUN, fails_late, models=10, store=path)
    with Store.read(path) as store:
        assert len(store.done()) == 4


COLLECTED_RUN = li.DPSGD(6, 0.5, 1.0, optimizer=li.SGD(0.5))
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
    subject = COLLECTED_RUN, problems.linear(), AllIterates("zero")
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
