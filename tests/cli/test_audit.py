"""``lastiterate audit`` and ``report``: what they print, draw and keep, and with which status they exit."""

import json

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


@pytest.mark.parametrize("option", ["--noise-filter 1,-.4", "--noise-filter 1,.5 --min-separation 3"])
def test_adversarial_draws_know_correlated_noise(cli, here, option):
    fields = json.loads(cli(f"{DRAWN} --learning-rate 0.1 {option} --method last-iterate --json").stdout)
    assert 0.5 * fields["last_iterate"] < fields["empirical"]["last-iterate"] < 1.05 * fields["last_iterate"]
    again = json.loads(cli(f"report {fields['store']} --method last-iterate --json").stdout)
    assert (again["empirical"], again["noise_filter"]) == (fields["empirical"], fields["noise_filter"])


def test_the_usual_training_may_release_checkpoints_and_protect_people(cli, here):
    usual = cli.json(
        "audit --model logistic --attack adversarial --models 100 --method gdp --releases 3 --group-size 2"
    )
    assert (usual["releases"], usual["group_size"], usual["optimizer"]["momentum"]) == (3, 2, 0.0)
    assert usual["composition"] == pytest.approx(8.0, rel=1e-6)
    assert "must be given with other options of the run" in cli.refusal("audit --releases 3 --momentum 0.5")
    (here / "mine.py").write_text(TRAINERS)
    assert "must be given with other" in cli.refusal("audit --trainer mine.py:score --group-size 2 --models 4")


def test_rehearsal_of_adversarial_draws_knows_what_several_releases_show(cli, here):
    rehearsed = json.loads(cli(f"{DRAWN} --releases 2 --method last-iterate --json --dry-run").stdout)
    assert 0.0 < rehearsed["detectable"]["last-iterate"] < 10.0


def test_people_get_a_table_a_picture_and_a_page(cli, here):
    result = cli(f"{DRAWN} --store runs/x.sqlite --name 'my audit'")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) <= 12
    assert lines[0].startswith("my audit: 100 steps")
    order = [
        "guaranteed",
        "predicted",
        "found",
        "Not refuted. This audit would have caught noise below",
        "Files: runs/x",
    ]
    starts = [next(i for i, line in enumerate(lines) if line.startswith(each)) for each in order]
    assert starts == sorted(starts)
    details = cli("report runs/x.sqlite --details").stdout
    for words in (
        "last iterate",
        "heuristic",
        "composition family",
        "95%",
        "Not refuted. Nothing refutes",
        "lower bounds",
    ):
        assert words in details
    assert cli.json("report runs/x.sqlite")["name"] == "my audit"
    assert (here / "runs/x.png").read_bytes().startswith(b"\x89PNG")
    page = (here / "runs/x.html").read_text(encoding="utf-8")
    assert "Not refuted." in page
    assert 'src="http' not in page


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


def test_a_claim_below_the_runs_own_is_remarked_before_training_and_in_the_report(cli, here):
    result = cli(f"{DRAWN} --claim-epsilon 1 --json --store x.sqlite")
    remark = "The claim (epsilon 1 at delta 1e-5) is below the run's own guarantee of 7.047"
    assert result.stderr.startswith(remark)
    assert any(caveat.startswith(remark) for caveat in json.loads(result.stdout)["caveats"])
    assert not cli("report x.sqlite --claim-epsilon 8 --json").stderr


def test_remarks_come_once_nothing_is_left_that_could_be_refused(cli, here):
    cli(f"{DRAWN} --store x.sqlite --json")
    refusal = cli.refusal(f"{DRAWN.replace('3000', 'auto')} --claim-epsilon 1 --store x.sqlite")
    assert "holds another audit" in refusal
    (here / "mine.py").write_text("def train(seed, canary):\n    return [0.0, 1.0]\n")
    run = "--steps 100 --sample-rate 0.1 --noise-multiplier 1 --models 8 --claim-epsilon 1"
    assert "attack must be given" in cli.refusal(f"audit --trainer mine.py:train {run} --store y.sqlite")


def test_above_the_heuristic_fails_only_if_strict(cli, here):
    cli(f"{DRAWN} --store x.sqlite --json")
    for noise in (1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4):
        result = cli(f"report x.sqlite --claim-noise {noise} --json")
        if json.loads(result.stdout)["verdict"] == "above heuristic":
            assert result.exit_code == 0
            assert cli(f"report x.sqlite --claim-noise {noise} --strict --json").exit_code == 1
            return
    pytest.fail("no claim between heuristic and guarantee was found")


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


def test_a_trainers_own_run_is_not_overridden(cli, here):
    (here / "mine.py").write_text(TRAINERS)
    result = cli("audit --trainer mine.py:score --steps 40 --sample-rate 0.1 --noise-multiplier 1")
    assert result.exit_code == 2
    assert "either by options or in" in result.stderr


def test_tests_that_refute_run_whatever_method_is_shown(cli, here):
    cli(f"{DRAWN} --store x.sqlite --json")
    result = cli("report x.sqlite --claim-epsilon 0.5 --method gdp --json")
    assert result.exit_code == 1
    assert list(json.loads(result.stdout)["empirical"]) == ["gdp"]
