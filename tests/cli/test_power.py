"""``power``, and what audits say of it before they begin: ``--models auto`` and ``--dry-run``."""

import json

import pytest

import lastiterate as li

RUN = "--steps 100 --sample-rate 0.1 --noise-multiplier 0.94"
POWER = f"power {RUN} --method clopper-pearson"
SMALL = f"audit --attack adversarial {RUN} --momentum 0 --method gdp"

TRAINER = """
import numpy as np
import lastiterate as li

run = li.DPSGD(steps=1, sample_rate=1.0, noise_multiplier=1.0)


def train(seed, canary):
    return float(canary + np.random.default_rng(seed).standard_normal())


def loud(seed, canary):
    return float(9 * canary + np.random.default_rng(seed).standard_normal())
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(TRAINER)
    return tmp_path


@pytest.fixture
def at_every_model(monkeypatch):
    """Looks are not put off though these trainers are quicker than a look."""
    monkeypatch.setattr("lastiterate.auditing.stopping_rules._SHARE", 1e9)


def test_the_table_says_how_many_models_it_takes_and_that_it_is_a_heuristic(cli):
    found = cli(f"{POWER} --leaks-noise 0.3")
    assert found.exit_code == 0
    words = " ".join(found.stdout.split())
    needed = li.power(li.DPSGD(100, 0.1, 0.94), methods=["clopper-pearson"], leaks_noise=0.3).needed
    assert f"80% needs {needed} models per world" in words
    assert "Faulty training: noise multiplier 0.3, epsilon" in words
    assert "a heuristic" in words


def test_auto_trains_as_many_models_as_power_says(cli, folder):
    needed = cli.json(f"power {RUN} --method gdp")["needed"]
    found = cli(f"{SMALL} --models auto --store x.sqlite --json")
    assert found.exit_code == 0
    assert json.loads(found.stdout)["models"] == needed
    assert found.stderr.startswith(f"models: {needed} per world, so that a training with half of the claimed noise")
    assert "a heuristic" in found.stderr


def test_a_claim_is_refuted_early_and_the_same_command_goes_on(cli, folder, at_every_model):
    audit = "audit --trainer mine.py:loud --anytime --store x.sqlite --method clopper-pearson"
    stopped = cli(f"{audit} --models 500 --until refuted --json")
    assert stopped.exit_code == 1, stopped.stderr
    first = json.loads(stopped.stdout)
    assert len(first["estimates"]) == 1
    assert first["estimates"][0]["models_in"] < 100
    more = json.loads(cli(f"{audit} --models 300 --json").stdout)
    assert more["estimates"][0]["models_in"] == 300 - 64  # those that chose the threshold do not count
    assert more["estimates"][0]["validity"] == "anytime"


def test_scores_in_a_file_are_bounded_at_every_moment(cli, folder):
    rows = [f"{world},{9 * (world == 'in')}" for world in ("in", "out") for _ in range(128)]
    (folder / "scores.csv").write_text("\n".join(["world,score", *rows, ""]))
    fixed, anytime = (cli.json(f"estimate scores.csv --threshold 4 {how}") for how in ("", "--anytime"))
    assert anytime["validity"] == "anytime"
    assert 0.0 < anytime["epsilon"] < fixed["epsilon"]
    assert "validity" in cli.refusal("estimate scores.csv --threshold corrected --anytime")
