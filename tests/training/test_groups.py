"""A group is so many copies of the canary, each sampled and clipped by itself. About 10 seconds."""

import numpy as np
import pytest
from scipy.stats import ks_2samp

import lastiterate as li
from lastiterate import data
from lastiterate.attacks import Adversarial, GradientSpace, InputSpace
from lastiterate.attacks.adversarial import sample_scores
from lastiterate.auditing.evidence.score_signal import expected_signal
from lastiterate.training import ExampleCanary, GradientCanary, problems, train
from lastiterate.training.models import cross_entropy

QUIET = 1e-6  # noise, next to which a canary is counted exactly


def copies_in(run: li.DPSGD, canary: object, problem: object, models: int) -> np.ndarray:
    """How many copies of a canary of norm 1 each model was trained with."""
    trained = train(run, problem, canary, models=models, present=True)
    return np.rint(-np.asarray(trained.parameters).reshape(models, -1)[:, 0]).astype(int)


@pytest.mark.parametrize("others", [None, 5])
def test_copies_of_a_gradient_canary_are_binomial(others):
    run = li.DPSGD(3, 0.3, QUIET, optimizer=li.SGD(1.0), group_size=4)
    problem = problems.linear(np.zeros((others, 1), np.float32)) if others else problems.linear()
    counts = copies_in(run, GradientCanary(np.array([10.0], np.float32)), problem, 4000)
    expected = np.random.default_rng(0).binomial(12, 0.3, 4000)
    assert ks_2samp(counts, expected).pvalue > 1e-3
    assert counts.mean() == pytest.approx(3.6, abs=0.1)


def test_trained_and_drawn_scores_of_a_group_have_one_distribution():
    run = li.DPSGD(60, 0.1, 1.5, optimizer=li.SGD(0.3), group_size=4)
    trained, drawn = (
        li.audit(run, None, Adversarial(kind), models=4000, seed=5, methods=["gdp"]) for kind in ("trained", "exact")
    )
    for world in ("scores_in", "scores_out"):
        assert ks_2samp(getattr(trained, world), getattr(drawn, world)).pvalue > 1e-3


def test_audit_of_digits_has_the_signal_that_is_predicted():
    run = li.DPSGD(40, 0.1, 1.0, optimizer=li.SGD(0.02), group_size=4)
    result = li.audit(run, problems.logistic(data.digits()), GradientSpace("quiet"), models=96, methods=["gdp"])
    assert result.ideal_signal == pytest.approx(expected_signal(run))
    assert result.ideal_signal > 3 * expected_signal(run.replace(group_size=1))
    assert result.signal == pytest.approx(result.ideal_signal, rel=0.2)
    assert result.verdict != "violation"


RELEASES_QUIET = 1e-6  # noise, next to which a canary is counted exactly
DIGITS = problems.logistic(data.digits())
GRADIENTS = np.random.default_rng(0).standard_normal((12, 3)).astype(np.float32)


@pytest.mark.parametrize("optimizer", [li.SGD(0.1, weight_decay=0.5), li.SGD(0.1, momentum=0.9, averaging="uniform")])
def test_released_iterates_are_what_shorter_runs_release(optimizer):
    run = li.DPSGD(9, 0.4, 1.0, optimizer=optimizer, releases=[2, 5])
    found = train(run, problems.linear(GRADIENTS), models=5, chunk_size=2, progress=False)
    assert found.released.shape == (5, 3, 3)
    np.testing.assert_array_equal(found.released[:, -1], found.parameters)
    for column, steps in enumerate((2, 5)):
        shorter = train(run.prefix(steps).replace(releases=None), problems.linear(GRADIENTS), models=5, progress=False)
        np.testing.assert_allclose(found.released[:, column], shorter.parameters, rtol=1e-5, atol=1e-6)
        assert shorter.released is None


def test_replaced_gradient_pulls_the_other_way_as_often():
    run = li.DPSGD(40, 0.3, RELEASES_QUIET, optimizer=li.SGD(1.0), neighbours="replace", group_size=2)
    canary = GradientCanary(np.array([10.0], np.float32))
    for world, sign in ((True, -1), (False, 1)):
        found = sign * train(run, problems.linear(), canary, models=2000, present=world, progress=False).flat()[:, 0]
        assert ks_2samp(np.rint(found), np.random.default_rng(0).binomial(80, 0.3, 2000)).pvalue > 1e-3


@pytest.mark.parametrize("is_group", [False, True])
def test_examples_of_a_person_and_what_replaces_them_are_each_clipped_and_in_their_place(is_group):
    run = li.DPSGD(3, 1.0, RELEASES_QUIET, "full", optimizer=li.SGD(1.0), neighbours="replace", group_size=2)
    one, other = np.array([[9.0, 0.0], [0.0, 0.5]], np.float32), np.array([[0.0, -7.0], [0.25, 0.0]], np.float32)
    if not is_group:
        one, other = one[0], other[0]
    problem = problems.linear(np.zeros((4, 2), np.float32))
    canary = ExampleCanary(one, other, is_group)
    inside, outside = (train(run, problem, canary, models=2, present=p, progress=False).flat() for p in (True, False))
    np.testing.assert_allclose(inside, [[-3.0, -1.5]] * 2 if is_group else [[-6.0, 0.0]] * 2, atol=1e-4)
    np.testing.assert_allclose(outside, [[-0.75, 3.0]] * 2 if is_group else [[0.0, 6.0]] * 2, atol=1e-4)


SCHEDULE = li.SGD(np.linspace(0.2, 0.1, 60), weight_decay=0.5)
RUNS = {
    "replaced": li.DPSGD(60, 0.1, 1.0, optimizer=li.SGD(0.3), neighbours="replace"),
    "replaced people, checkpoints": li.DPSGD(
        60, 0.1, 1.5, optimizer=SCHEDULE, releases=[7, 30], group_size=3, neighbours="replace"
    ),
    "all iterates, momentum": li.DPSGD(
        30, 0.1, 1.0, optimizer=li.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.1), releases=30
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_trained_and_drawn_scores_have_one_distribution(name):
    trained = li.audit(RUNS[name], None, Adversarial("trained"), models=2500, seed=5, methods=["gdp"])
    drawn = sample_scores(RUNS[name], np.arange(5000) % 2 == 0, np.random.default_rng(5))
    for world, scores in (("scores_in", drawn[::2]), ("scores_out", drawn[1::2])):
        assert ks_2samp(getattr(trained, world), scores).pvalue > 1e-3
    assert trained.verdict not in ("violation", "above heuristic")


@pytest.mark.parametrize("canary", ["mislabelled", "clipbkd"])
def test_input_space_attacks_know_people_and_replaced_examples(canary):
    run = li.DPSGD(40, 0.1, 1.0, optimizer=li.SGD(0.02), group_size=2, neighbours="replace")
    attack = InputSpace(canary, pilots=8)
    from lastiterate.auditing.experiments.shipped_trainer import TrainsReferences

    facts = attack.craft(run, DIGITS, TrainsReferences(0, False))
    armed = attack.arm(run, DIGITS, facts)
    labels = DIGITS.examples[1]
    if canary == "mislabelled":
        assert armed.problem.size == DIGITS.size - 2
        np.testing.assert_array_equal(armed.canary.replacement[1], labels[facts["index"]])
        assert np.all(armed.canary.example[1] != labels[facts["index"]])
    trained = train(run, armed.problem, armed.canary, models=3, progress=False)
    examples = [armed.canary.example, armed.canary.replacement]
    rows = [list(zip(*each, strict=True)) if armed.canary.is_group else [each] for each in examples]
    for position, score in enumerate(armed.score(trained.parameters)):
        lost = [np.mean([cross_entropy(trained.model(position), example, None) for example in each]) for each in rows]
        assert score == pytest.approx((lost[1] - lost[0] - facts["centre"]) / facts["unit"], rel=1e-3, abs=1e-3)
    assert "loss on the replacement" in attack.words(facts).attack
