"""Specifications: equal for equal audits, different for different ones, and runs survive the way there and back."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from lastiterate.auditing.describe import describe_attack, describe_run, fingerprint, read_run

import lastiterate as li
from lastiterate import attacks
from lastiterate.training import Problem, problems


@pytest.mark.parametrize(
    "run",
    [
        li.DPSGD(10, 0.1, 1.0),
        li.DPSGD(3, [0.1, 0.2, 0.3], [1.0, 2.0, 3.0], clip_norm=0.5, weights=[1, 2, 3]),
        li.DPSGD(4, 0.5, 1.0, sampling="shuffled", optimizer=li.SGD([0.1, 0.2, 0.3, 0.4], momentum=0.9, averaging=0.5)),
    ],
)
def test_runs_survive_json(run):
    assert read_run(json.loads(json.dumps(describe_run(run)))) == run


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
    prints = [fingerprint(variant) for variant in variants]
    assert len(set(prints)) == len(variants)
    assert fingerprint(Problem(start.copy(), images.copy(), loss)) == prints[0]


def test_attacks_are_described_by_their_fields():
    assert describe_attack(attacks.GradientSpace("dirac", seed=3)) == {
        "name": "GradientSpace",
        "direction": "dirac",
        "norm": 10.0,
        "references": 16,
        "seed": 3,
    }
    one, two = (describe_attack(attacks.Displacement(np.array([1.0, x]))) for x in (1.0, 2.0))
    assert one != two


def test_fingerprint_is_the_same_in_another_process():
    import subprocess
    import sys

    code = (
        "from lastiterate import data; from lastiterate.training import problems;"
        "from lastiterate.auditing.describe import fingerprint;"
        "print(fingerprint(problems.mlp(data.digits(), hidden=4)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    from lastiterate import data

    assert found == fingerprint(problems.mlp(data.digits(), hidden=4))
