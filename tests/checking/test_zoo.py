"""The trainers of the zoo are what they say: the correct one by formulas, the faulty ones each in one thing."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from lastiterate.optimizer import SGD
from lastiterate.run import DPSGD
from tests.tools.zoo.correct import correct
from tests.tools.zoo.faults import FAULTS
from tests.tools.zoo.models import EXAMPLES, Linear, Logistic, Network, constant_gradients, tensors, vector
from tests.tools.zoo.trainer import CANARY, Trainer

RATE = 0.01
NO_NOISE = 1e-30


def run_of(steps=1, rate=1.0, noise=NO_NOISE, **options):
    return DPSGD(steps, rate, noise, **({"optimizer": SGD(RATE), "clip_norm": 0.2} | options))


def canary_of(model, size=1.0):
    return tensors(np.full(sum(int(np.prod(s)) for s in model.shapes.values()), size), model.shapes)


@pytest.mark.parametrize("model", [Logistic(), Network()], ids=["logistic", "network"])
def test_gradients_are_those_of_the_loss(model):
    theta = model.start(np.random.default_rng(0)) + 0.1
    along = np.random.default_rng(1).normal(size=theta.size)
    slope = model.gradients(theta, np.arange(5)) @ along

    def losses(at):
        from tests.tools.zoo.models import digits, softmax

        images, labels = digits()
        parts = [*tensors(at, model.shapes).values()]
        h = images[:5] if len(parts) == 2 else np.tanh(images[:5] @ parts[0] + parts[1])
        return -np.log(softmax(h @ parts[-2] + parts[-1])[np.arange(5), labels[:5]])

    assert np.allclose((losses(theta + 1e-5 * along) - losses(theta - 1e-5 * along)) / 2e-5, slope, atol=1e-6)


def test_one_step_without_noise_is_the_formula():
    train = Trainer(run_of(sampling="full"), Linear())
    clipped = constant_gradients(300, 0.5) * 0.4  # from norm 0.5 to 0.2
    moved = train(0, False)["parameters"]
    assert np.allclose(moved, -RATE * clipped.sum(axis=0), atol=1e-14)
    canary = canary_of(Linear())
    with_it = train(0, canary)["parameters"]
    assert np.allclose(with_it - moved, -RATE * 0.2 / np.sqrt(300.0), atol=1e-14)
    small = {"parameters": np.full(300, 0.01)}
    assert np.allclose(train(0, small)["parameters"] - moved, -RATE * 0.01, atol=1e-14)


def test_noise_has_the_declared_variance():
    run = run_of(5, 0.1, 3.0)
    models = np.array([Trainer(run, Linear(norm=0.0))(seed, False)["parameters"] for seed in range(40)])
    assert np.var(models) == pytest.approx(5 * (RATE * 3.0 * 0.2) ** 2, rel=0.06)


@pytest.mark.parametrize("sampling", ["poisson", "fixed", "shuffled"])
def test_the_canary_is_drawn_at_the_declared_rate(sampling):
    train = Trainer(run_of(40, 0.1, sampling=sampling), Linear())
    counts = [
        train.times(np.concatenate([*islice(train.batches(np.random.default_rng(seed), True), 40)]))
        for seed in range(100)
    ]
    if sampling == "shuffled":
        assert counts == [4] * 100
    else:
        assert np.mean(counts) == pytest.approx(4.0, abs=4.0 * np.sqrt(3.6 / 100))
        assert np.var(counts) == pytest.approx(3.6, rel=0.6)


@pytest.mark.parametrize(
    "optimizer",
    [
        SGD(RATE, momentum=0.9),
        SGD(RATE, momentum=0.9, nesterov=True),
        SGD(RATE, momentum=0.8, dampening=0.5, weight_decay=3.0),
        SGD(RATE, weight_decay=3.0, decoupled=True),
        SGD(np.linspace(RATE, 0.0, 6)),
        SGD(RATE, averaging="uniform"),
        SGD(RATE, momentum=0.5, averaging=0.7),
    ],
)
def test_the_canary_counts_as_much_as_the_declared_weights_say(optimizer):
    run = run_of(6, sampling="full", optimizer=optimizer)
    train, canary = Trainer(run, Linear()), canary_of(Linear())
    effect = train(0, canary)["parameters"] - train(0, False)["parameters"]
    assert np.allclose(effect, -run.effective_weights().sum() * 0.2 / np.sqrt(300.0), rtol=1e-9)


def test_worlds_share_random_numbers_only_if_they_say_so():
    run, canary = run_of(20, 0.1, 1.0), canary_of(Linear())
    sizes = {}
    for pairing in ("shared", "noise", "independent", "entangled"):
        train = Trainer(run, Linear(), pairing)
        sizes[pairing] = np.std(train(5, canary)["parameters"] - train(5, False)["parameters"])
        assert np.array_equal(vector(train(5, False)), vector(train(5, False)))
    assert sizes["shared"] < 1e-9 < sizes["noise"] < min(sizes["independent"], sizes["entangled"])


def test_there_is_a_fault_of_every_category_and_no_name_twice():
    names = [each.name for each in FAULTS]
    assert len(names) == len(set(names)) >= 24
    assert {each.category for each in FAULTS} == {
        "noise",
        "clipping",
        "participation",
        "normalisation",
        "optimizer",
        "seeds",
    }


@pytest.mark.parametrize("each", FAULTS, ids=str)
def test_a_fault_shows_in_what_is_trained(each):
    """The faulty models differ from the correct ones of the same seeds, in one of the worlds."""
    right = Trainer(each.run, each.train.model)
    canary = tensors(np.random.default_rng(0).normal(size=vector(right(0, False)).size) * 9.0, right.model.shapes)
    small = {name: leaf / 9.0 / np.sqrt(vector(canary).size) / 2.0 for name, leaf in canary.items()}
    norm = each.run.clip_norm / float(np.linalg.norm(vector(canary)))
    near = [{name: share * norm * leaf for name, leaf in canary.items()} for share in (0.8, 1.3)]
    worlds = [(seed, given) for seed in range(3) for given in (False, canary, small, *near)]
    assert any(not np.allclose(vector(each.train(*w)), vector(right(*w)), rtol=1e-6, atol=1e-9) for w in worlds)


def test_correct_trainings_are_of_many_kinds():
    kinds = [correct(number) for number in range(100)]
    assert {each.run.sampling for each in kinds} == {"poisson", "shuffled", "fixed", "full"}
    assert {type(each.train.model) for each in kinds} == {Linear, Logistic, Network}
    assert {each.train.pairing for each in kinds} == {"shared", "noise", "independent", "entangled"}
    assert {each.initial is None for each in kinds} == {True, False}
    assert len({each.run for each in kinds}) > 90
    assert CANARY == EXAMPLES
