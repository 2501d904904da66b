"""``lastiterate audit`` and ``report``: what they print, draw and keep, and with which status they exit."""

import json
from pathlib import Path

import pytest

SMALL = "audit --model logistic --steps 20 --sample-rate 0.1 --noise-multiplier 1 --learning-rate 0.02 --models 8"
DRAWN = "audit --attack adversarial --steps 100 --sample-rate 0.1 --noise-multiplier 1 --models 3000"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_json_has_predictions_estimates_and_what_they_rest_on(cli, here):
    fields = json.loads(cli(f"{SMALL} --json").stdout)
    assert fields["last_iterate"] <= fields["composition"]
    assert set(fields["empirical"]) == {"clopper-pearson", "gdp", "last-iterate", "composition"}
    assert all(value <= fields["last_iterate"] for value in fields["empirical"].values())
    assert (fields["confidence"], fields["models"], fields["verdict"]) == (0.95, 8, "inconclusive")
    assert fields["strength"]["chance"] < 0.8
    assert 0.05 < fields["accuracy"] < 1.0
    assert fields["seconds"] > 0.0
    assert (here / fields["store"]).exists()
    assert [each["method"] for each in fields["estimates"]] == list(fields["empirical"])
    assert not list(here.glob("runs/*.png"))


def test_same_command_finds_its_store_and_another_one_gets_its_own(cli, here):
    first, again, other = (
        json.loads(cli(f"{command} --json").stdout) for command in (DRAWN, DRAWN, DRAWN.replace("3000", "2000"))
    )
    assert again == first
    assert other["store"] != first["store"]


@pytest.mark.parametrize("option", ["--group-size 4", "--releases 4", "--neighbours replace"])
def test_adversarial_draws_know_people_releases_and_other_neighbours(cli, here, option):
    fields = json.loads(cli(f"{DRAWN} --learning-rate 0.1 {option} --method gdp --json").stdout)
    assert fields["verdict"] == "consistent"
    assert 0.5 * fields["last_iterate"] < fields["empirical"]["gdp"] < 1.05 * fields["last_iterate"]
    again = json.loads(cli(f"report {fields['store']} --method gdp --json").stdout)
    assert again["empirical"] == fields["empirical"]


def test_report_recomputes_and_exports_without_training(cli, here, monkeypatch):
    cli(f"{DRAWN} --store x.sqlite --json")
    monkeypatch.setattr("lastiterate.auditing.run_audit._Session.fill", None)
    strict = json.loads(
        cli(
            "report x.sqlite --method gdp --confidence 0.999 --delta 1e-6 --threshold split --export s.csv --json"
        ).stdout
    )
    assert list(strict["empirical"]) == ["gdp"]
    assert (strict["confidence"], strict["delta"]) == (0.999, 1e-6)
    assert strict["estimates"][0]["threshold_choice"] == "split"
    found = json.loads(cli("estimate s.csv --json --threshold 0.5").stdout)
    assert (found["models_in"], found["models_out"]) == (3000, 3000)


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize(
    ("claim", "verdict"), [("", "Not refuted. This audit would have"), ("--claim-epsilon 1", "Refuted. ")]
)
def test_people_get_at_most_twelve_lines_in_the_order_of_every_screen(cli, here, monkeypatch, width, claim, verdict):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = cli(f"{DRAWN} --store runs/x.sqlite --name 'my audit' --owner me {claim}").stdout.splitlines()
    assert len(lines) <= 12
    assert max(map(len, lines)) <= width
    order = [
        "my audit: me: 100 steps",
        "guaranteed  ",
        "predicted  ",
        "found  ",
        verdict,
        "Files: runs/x.sqlite, .png, .html",
    ]
    starts = [next(i for i, line in enumerate(lines) if line.startswith(each)) for each in order]
    assert starts == sorted(starts)
    details = " ".join(cli(f"report runs/x.sqlite --details {claim}").stdout.split())
    assert "composition" in details
    assert "lower bounds" in details
    fields = cli(f"report runs/x.sqlite --json {claim}").stdout
    assert [json.loads(fields)[key] for key in ("name", "owner")] == ["my audit", "me"]


@pytest.mark.parametrize(
    ("claim", "status", "verdict"),
    [
        ("--claim-noise 1", 0, "consistent"),
        ("--claim-noise 3", 1, "violation"),
        ("--claim-epsilon 0.5", 1, "violation"),
        ("--claim-epsilon 20 --strict", 0, "consistent"),
    ],
)
def test_claims_decide_the_exit_status(cli, here, claim, status, verdict):
    cli(f"{DRAWN} --store x.sqlite --json")
    result = cli(f"report x.sqlite {claim} --json")
    assert result.exit_code == status
    assert json.loads(result.stdout)["verdict"] == verdict


def test_an_inconclusive_audit_is_status_4_with_a_claim_or_if_strict(cli, here):
    cli(f"{DRAWN.replace('3000', '8')} --store x.sqlite --json")
    for options, status in (("", 0), ("--strict", 4), ("--claim-noise 1", 4), ("--claim-epsilon 20 --strict", 4)):
        result = cli(f"report x.sqlite --json {options}")
        assert (result.exit_code, json.loads(result.stdout)["verdict"]) == (status, "inconclusive")
    table = " ".join(cli("report x.sqlite").stdout.split())
    assert "Inconclusive: 16 models cannot tell." in table


def test_dry_run_says_what_would_happen_and_keeps_nothing(cli, here):
    plan = json.loads(cli(f"{SMALL} --dry-run --json").stdout)
    assert plan["models"] == 16 + plan["reference_models"]
    assert plan["seconds"] > 0.0
    assert plan["bytes"] > 0
    assert "seconds" in cli(f"{SMALL} --dry-run").stdout
    assert not list(here.iterdir())


TRAINERS = """
import numpy as np, lastiterate as li
run = li.DPSGD(20, 0.5, 1.0)
def breaks(seed, canary): raise RuntimeError("out of memory")
def nothing(seed, canary): return None
def tensors(seed, canary): return {"weight": np.zeros(3)}
def score(seed, canary): return float(canary) + np.random.default_rng(seed).standard_normal()
"""


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [("breaks", 3, "out of memory"), ("nothing", 3, "got NoneType"), ("tensors", 3, "got dict")],
)
def test_a_trainer_that_fails_is_not_taken_for_a_refuted_claim(cli, here, name, status, words):
    (here / "mine.py").write_text(TRAINERS)
    result = cli(f"audit --trainer mine.py:{name} --models 4")
    assert result.exit_code == status
    assert words in result.stderr


TRAINER_TRAINERS = """
from lastiterate.attacks import Displacement
from tests.auditing.test_planted_bugs import RUN as run, network

train, bug = network(), network("noise", 1 / 16)
attack = Displacement(train.example())
"""
OPTIONS = "--claim-noise 1.5 --models 96 --confidence 0.999"


@pytest.fixture
def trainers(tmp_path):
    file = tmp_path / "trainers.py"
    file.write_text(TRAINER_TRAINERS)
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


ATTACK_SMALL = "audit --model logistic --steps 5 --sample-rate 0.1 --noise-multiplier 1 --learning-rate 0.02 --models 4"
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


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = Path("mine.py")
    file.write_text(FILE, encoding="utf-8")
    return file


@pytest.mark.parametrize("name", ["Mine", "few"])
def test_a_class_or_an_instance_of_a_file_attacks(cli, mine, name):
    fields = json.loads(cli(f"{ATTACK_SMALL} --attack mine.py:{name} --json").stdout)
    assert fields["attack"] == "my own attack"
    assert len(fields["estimates"]) == 4


def test_an_audit_trains_with_adam_reports_its_second_moment_and_keeps_it(cli, tmp_path):
    words = "approximation of a heuristic"
    store = tmp_path / "adam.sqlite"
    run = "--steps 5 --sample-rate .1 --noise-multiplier 1 --optimizer adamw --learning-rate .01"
    audit = f"audit --model logistic {run} --models 8 --method gdp --store {store}"
    found = cli.json(audit)
    assert found["optimizer"]["name"] == "adamw"
    assert found["prediction"] == f"an {words}"
    assert 0.0 < found["second_moment"]["noise_share"] < 1.1
    assert any("Adam's second moment" in caveat for caveat in found["caveats"])
    again = cli.json(f"report {store} --method gdp")
    assert again["second_moment"] == found["second_moment"]
    assert again["optimizer"] == found["optimizer"]
    assert words in " ".join(cli(f"report {store} --method gdp").output.split())
    assert json.dumps(again)
