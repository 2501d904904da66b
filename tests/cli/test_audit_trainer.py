"""``lastiterate audit --trainer FILE.py:NAME``: a user's own training, as a check in their CI."""

import json

import pytest

TRAINERS = """
from lastiterate.attacks import Displacement
from tests.auditing import broken_trainers

run = broken_trainers.RUN
attack = Displacement(broken_trainers.unflatten(broken_trainers.CANARY))
train = broken_trainers.Correct()
bug = broken_trainers.NoiseDividedByBatch()
"""
OPTIONS = "--claim-noise 1.5 --models 96 --confidence 0.999"


@pytest.fixture
def trainers(tmp_path):
    file = tmp_path / "trainers.py"
    file.write_text(TRAINERS)
    return file


def test_a_correct_trainer_is_not_refuted_and_a_broken_one_exits_with_1(cli, trainers, tmp_path):
    for name, status, verdict in (("train", 4, "inconclusive"), ("bug", 1, "violation")):
        store = tmp_path / f"{name}.sqlite"
        result = cli(f"audit --trainer {trainers}:{name} {OPTIONS} --store {store} --json")
        assert result.exit_code == status, result.output
        fields = json.loads(result.stdout)
        assert fields["verdict"] == verdict
        assert verdict == "inconclusive" or "noise multiplier 1.5" in fields["reason"]
        assert fields["data"] == f"trainers.py:{name}"
        assert (fields["models"], fields["store"]) == (96, str(store))
        assert store.is_file()
