"""``lastiterate audit --attack FILE.py:CLASS``: a user's own attack, by its source, and told apart when it fails."""

import json
from pathlib import Path

import pytest

SMALL = "audit --model logistic --steps 5 --sample-rate 0.1 --noise-multiplier 1 --learning-rate 0.02 --models 4"
FILE = """
from dataclasses import dataclass

from lastiterate import attacks


@dataclass(frozen=True)
class Mine(attacks.GradientSpace):
    references: int = 4

    def words(self, facts):
        return attacks.Words("my own attack", "standard deviations")


few = Mine(references=2)
number = 3


class Wants:
    def __init__(self, strength):
        pass


class Crafts(Mine):
    def craft(self, run, problem, references):
        raise ValueError("no canary today")


class Many(attacks.OneRun):
    pass
"""
TRAINER = """
import numpy as np

import lastiterate
import lastiterate.attacks

run = lastiterate.DPSGD(5, 0.1, 1.0)


def train(seed, canary):
    return np.array([canary, 0.0]) + np.random.default_rng(seed).standard_normal(2)


class First:
    references = 2

    def craft(self, run, references):
        return {"centre": float(np.mean(references))}

    def score(self, run, facts, parameters):
        return float(parameters[0] - facts["centre"])

    def expected(self, facts):
        return lastiterate.attacks.Expected("none")

    def words(self, facts):
        return lastiterate.attacks.Words("the first parameter", "units")
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = Path("mine.py")
    file.write_text(FILE, encoding="utf-8")
    return file


@pytest.mark.parametrize("name", ["Mine", "few"])
def test_a_class_or_an_instance_of_a_file_attacks(cli, mine, name):
    fields = json.loads(cli(f"{SMALL} --attack mine.py:{name} --json").stdout)
    assert fields["attack"] == "my own attack"
    assert len(fields["estimates"]) == 4


def test_a_users_attack_scores_a_users_trainer(cli, mine):
    Path("trainer.py").write_text(TRAINER, encoding="utf-8")
    command = "audit --trainer trainer.py:train --models 4 --json"
    assert json.loads(cli(f"{command} --attack trainer.py:First").stdout)["attack"] == "the first parameter"
    refusal = cli.refusal(f"{command} --attack mine.py:Mine")
    assert "for a trainer, or have craft, score, expected and words, got a value of type Mine" in refusal
    Path("trainer.py").write_text(f"{TRAINER}\n\nattack = First()\n", encoding="utf-8")
    assert "either by --attack or in 'trainer.py:train'" in cli.refusal(f"{command} --attack trainer.py:First")
