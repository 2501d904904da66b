"""Identities: equal for equal audits, different for different ones, and the same in other processes and versions."""

import functools
import json
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate import attacks
from lastiterate.auditing.experiments.choose import Given, experiment_on
from lastiterate.auditing.identity import describe_run, fingerprint, read_run
from lastiterate.training import Problem
from tests.auditing.conftest import RUN


def identity(problem, attack=None, models=4, seed=0, run=RUN, **more):
    return experiment_on(problem, Given(run, attack, models, seed, **more)).identity()


def different(things):
    """Whether all have fingerprints of their own."""
    return len({fingerprint(thing) for thing in things}) == len(things)


@pytest.mark.parametrize(
    "run",
    [
        li.DPSGD(10, 0.1, 1.0),
        li.DPSGD(3, [0.1, 0.2, 0.3], [1.0, 2.0, 3.0], clip_norm=0.5, weights=[1, 2, 3]),
        li.DPSGD(4, 0.5, 1.0, sampling="shuffled", optimizer=li.SGD([0.1, 0.2, 0.3, 0.4], momentum=0.9, averaging=0.5)),
        li.DPSGD(10, 0.1, 1.0, releases=[2, 5], group_size=3, neighbours="replace"),
        li.DPSGD(10, 0.1, 1.0, releases=5),
        li.DPSGD(10, 0.1, 1.0, noise_filter=[1.0, -0.5], min_separation=3),
    ],
)
def test_runs_survive_json(run):
    assert read_run(json.loads(json.dumps(describe_run(run)))) == run


def test_what_runs_were_always_described_by_has_not_changed():
    run = li.DPSGD(10, 0.1, 1.0, optimizer=li.SGD(0.1))
    sgd = {"learning_rate": 0.1, "momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0}
    assert describe_run(run) == {
        "steps": 10,
        "sample_rate": 0.1,
        "noise_multiplier": 1.0,
        "sampling": "poisson",
        "optimizer": {**sgd, "decoupled": False, "averaging": None},
        "clip_norm": 1.0,
    }
    changed = run.replace(noise_filter=(1.0, -0.5), min_separation=2)
    assert describe_run(changed) == {**describe_run(run), "noise_filter": [1.0, -0.5], "min_separation": 2}


def test_fingerprints_tell_data_parameters_and_losses_apart():
    images = np.ones((3, 2), np.float32)

    def loss(parameters, example, moment):
        return jnp.sum(parameters * example)

    def other(parameters, example, moment):
        return jnp.sum(parameters + example)

    def closing_over(factor):
        return lambda parameters, example, moment: factor * jnp.sum(parameters * example)

    start = np.zeros(2, np.float32)
    variants = [
        Problem(start, images, loss),
        Problem(start, images + 1, loss),
        Problem(start + 1, images, loss),
        Problem(start, images, other),
        Problem(start, images, closing_over(1.0)),
        Problem(start, images, closing_over(2.0)),
    ]
    assert different(variants)
    assert fingerprint(Problem(start.copy(), images.copy(), loss)) == fingerprint(variants[0])


def score(seed, canary, scale=1.0, *, shift=0.0):
    return scale * (seed % 7) + shift + canary


class Trainer:
    """A callable object, and one with methods."""

    def __init__(self, noise):
        self.noise = noise

    def __call__(self, seed, canary):
        return self.noise * (seed % 7)

    def train(self, seed, canary):
        return self.noise * (seed % 7)

    def other(self, seed, canary):
        return self.noise * (seed % 5)


class Slotted:
    __slots__ = ("noise",)

    def __init__(self, noise):
        self.noise = noise

    def __call__(self, seed, canary):
        return self.noise


@dataclass
class Recorded:
    """A dataclass of a user, who keeps arrays out of comparisons because they cannot be compared."""

    data: np.ndarray = field(compare=False)

    def __call__(self, seed, canary):
        return float(self.data[seed % 2])


def with_default(value):
    def train(seed, canary, noise=value):
        return noise

    return train


def with_keyword(value):
    def train(seed, canary, *, noise=value):
        return noise

    return train


def with_closure(value):
    def train(seed, canary):
        return value

    return train


class Repeated:
    """A decorator with a value of its own."""

    def __init__(self, train, times):
        functools.update_wrapper(self, train)
        self.times = times

    def __call__(self, seed, canary):
        return self.times * self.__wrapped__(seed, canary)


def with_attribute(value):
    def train(seed, canary):
        return train.noise

    train.noise = value
    return train


def decorated(value):
    @functools.wraps(score)
    def train(seed, canary):
        return value * score(seed, canary)

    return train


@pytest.mark.parametrize(
    "bound",
    [
        with_default,
        with_keyword,
        with_closure,
        with_attribute,
        decorated,
        lambda value: functools.partial(score, scale=value),
        lambda value: functools.partial(score, 1, True, value),
        lambda value: functools.partial(functools.partial(score, shift=value), scale=2.0),
        Trainer,
        lambda value: Trainer(value).train,
        lambda value: Trainer(Trainer(value)).train,
        Slotted,
        lambda value: Recorded(np.array([value])),
        lambda value: jax.jit(with_closure(value)),
        lambda value: Repeated(score, value),
        lambda value: Repeated(with_closure(value), 3),
    ],
)
def test_what_is_bound_to_a_trainer_counts(bound):
    assert different([bound(1.0), bound(2.0), bound(np.float32(1.0))])
    assert fingerprint(bound(1.0)) == fingerprint(bound(1.0)) == fingerprint(bound(np.float64(1.0)))


def test_equal_audits_have_equal_identities_and_others_do_not():
    given = dict(problem=score, models=4, seed=0, run=RUN)
    first = identity(**given)
    assert identity(**given) == first
    assert identity(**given, data="other words") == first
    changes = ({"problem": Trainer(1)}, {"models": 5}, {"seed": 1}, {"run": RUN.replace(steps=31)})
    changes += ({"run": replace(RUN, clip_norm=2.0)}, {"attack": attacks.Displacement([1.0])})
    found = [first, *(identity(**given | change) for change in changes)]
    assert len({json.dumps(each.values) for each in found}) == len({each.digest() for each in found}) == 7


def trained():
    return RUN.replace(optimizer=li.SGD(0.1))
