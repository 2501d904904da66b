"""The examples run as they say, and say what they should."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from lastiterate.cli.app import app

EXAMPLES = Path(__file__).parents[1] / "examples"
OPACUS = EXAMPLES / "audit_opacus.py"


@pytest.fixture(scope="module")
def opacus():
    """The names in the example."""
    return runpy.run_path(str(OPACUS))


def test_a_seed_gives_the_same_opacus_model_again(opacus):
    run, attack, train = opacus["run"], opacus["attack"], opacus["train"]
    facts = {"weights": [1.0, 1.0], "centre": 0.0}
    first, again, other = (attack.score(run, facts, train(seed, True).result) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_the_canary_of_the_opacus_example_is_clipped_and_moves_the_model_as_the_linear_analysis_says(opacus):
    run, attack, train = opacus["run"], opacus["attack"], opacus["train"]
    sizes = [np.linalg.norm(tensor) for tensor in attack.canary.values()]
    assert np.linalg.norm(sizes) > 5.0 * run.clip_norm
    facts = {"weights": (sizes / np.linalg.norm(sizes)).tolist(), "centre": 0.0}
    with_it, without = (
        [attack.score(run, facts, train(seed, canary).result) for seed in range(12)] for canary in (True, False)
    )
    expected = run.steps * run.sample_rate / (np.sqrt(run.steps) * run.noise_multiplier)
    assert np.mean(with_it) - np.mean(without) == pytest.approx(expected, abs=4.0 * np.sqrt(2.0 / 12.0))


@pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "fault", "row"),
    [
        ("opacus", "noise", "noise"),
        ("torch_func", "1", "clipping norm"),
        ("jax_privacy", "1", "normalisation"),
        ("own", "1", "noise"),
    ],
)
def test_the_check_of_an_example_passes_and_finds_its_fault(name, fault, row, monkeypatch):
    command = ["check", "--trainer", f"{EXAMPLES / f'check_{name}.py'}:train", "--json"]
    passed = CliRunner().invoke(app, command)
    assert passed.exit_code == 0, passed.output
    monkeypatch.setenv("FAULT", fault)
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 1, found.output
    assert row in [each["name"] for each in json.loads(found.stdout)["faults"]]
