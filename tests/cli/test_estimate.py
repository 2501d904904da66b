from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import lastiterate as li
from tests.test_readme import assert_same, blocks

KEYS = [
    "epsilon",
    "method",
    "delta",
    "confidence",
    "threshold",
    "threshold_choice",
    "models_in",
    "models_out",
    "false_positives",
    "false_negatives",
    "fpr_upper",
    "fnr_upper",
    "largest",
    "noise_multiplier",
    "direction",
    "caveats",
    "validity",
]


def write(path, scores_in, scores_out, header="world,score"):
    rows = [f"in,{float(score)!r}" for score in scores_in] + [f"out,{float(score)!r}" for score in scores_out]
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def scores(tmp_path):
    generator = np.random.default_rng(0)
    return write(tmp_path / "scores.csv", generator.normal(3.0, 1.0, 200), generator.normal(size=200))


def test_json_is_the_estimate(cli, scores):
    answer = cli.json(f"estimate {scores} --delta 1e-4 --confidence 0.9 --threshold 1.5")
    assert [key for key in answer if not key.endswith("_reason")] == KEYS
    generator = np.random.default_rng(0)
    found = li.estimate(generator.normal(3.0, 1.0, 200), generator.normal(size=200), 1e-4, 0.9, threshold=1.5)
    assert all(answer[key] == getattr(found, key) for key in KEYS if key != "caveats")
    assert tuple(answer["caveats"]) == found.caveats


def test_defaults_are_those_of_the_function(cli, scores):
    answer = cli.json(f"estimate {scores}")
    assert (answer["delta"], answer["confidence"], answer["threshold_choice"]) == (1e-5, 0.95, "split")
    assert (answer["method"], answer["models_in"]) == ("clopper-pearson", 100)


def test_families_take_the_run_and_need_no_noise(cli, scores):
    answer = cli.json(f"estimate {scores} --method last-iterate --steps 1000 --sample-rate .1 --threshold 1.5")
    assert answer["noise_multiplier"] > 0.0
    batches = "--dataset-size 1000 --batch-size 100 --epochs 100"
    assert cli.json(f"estimate {scores} --method last-iterate {batches} --threshold 1.5") == answer
    predicted = cli.json(f"estimate {scores} --threshold a-priori --steps 1000 --sample-rate .1 --noise-multiplier 1")
    assert predicted["threshold_choice"] == "a-priori"


def test_all_methods_that_are_possible(cli, scores):
    rows = cli.json(f"estimate {scores} --method all")["rows"]
    assert [row["method"] for row in rows] == ["clopper-pearson", "gdp"]
    shuffled = "--steps 100 --sample-rate .1 --sampling shuffled"
    rows = cli.json(f"estimate {scores} --method all {shuffled}")["rows"]
    assert [row["method"] for row in rows] == ["clopper-pearson", "gdp", "last-iterate"]
    rows = cli.json(f"estimate {scores} --method all --steps 1000 --sample-rate .1")["rows"]
    assert [row["method"] for row in rows] == ["clopper-pearson", "gdp", "last-iterate", "composition"]


def test_infinite_values_are_null_with_a_reason(cli, tmp_path):
    file = write(tmp_path / "apart.csv", [math.inf] * 99, [-math.inf] * 99)
    family = f"estimate {file} --method last-iterate --steps 2 --sample-rate .5 --threshold 0"
    answer = cli.json(family)
    assert answer["epsilon"] is None
    assert "without noise" in answer["epsilon_reason"]
    assert answer["noise_multiplier"] == 0.0
    assert "without noise" in " ".join(cli(family).stdout.split())
    same = cli.json(f"estimate {write(file, [0.0], [0.0])} --method gdp")
    assert (same["epsilon"], same["noise_multiplier"]) == (0.0, None)
    one_run = cli.json(f"estimate {file} --method one-run")
    assert one_run["fpr_upper"] is None
    assert one_run["fpr_upper_reason"]


def test_table_states_method_confidence_models_and_what_they_could_have_shown(cli, scores):
    text = " ".join(cli(f"estimate {scores} --threshold uncorrected").stdout.split())
    for words in ("clopper-pearson", "95% confidence (joint", "200 models in", "200 + 200 models", "not a valid bound"):
        assert words in text
    assert "canaries of one run" in " ".join(cli(f"estimate {scores} --method one-run").stdout.split())


FEW = ([1.0, 2.0, 3.0, 2.5], [0.0, 0.1, -1.0, 0.5])


@pytest.mark.parametrize(
    ("options", "status", "verdict"),
    [
        ("--claim-epsilon 0.1", 4, "inconclusive"),
        ("--claim-epsilon 0.1 --threshold 0.7", 4, "inconclusive"),
        ("--claim-epsilon 0.1 --method all", 4, "inconclusive"),
        ("--claim-epsilon 0.1 --strict --threshold uncorrected", 4, "inconclusive"),
        ("--claim-noise 1 --steps 100 --sample-rate .1", 4, "inconclusive"),
        ("--claim-epsilon 0.1 --method one-run", 1, "violation"),
    ],
)
def test_four_models_a_world_refute_nothing_and_confirm_nothing(cli, tmp_path, options, status, verdict):
    file = write(tmp_path / "few.csv", *FEW)
    shown = cli(f"estimate {file} {options} --json")
    assert shown.exit_code == status
    answer = json.loads(shown.stdout)
    assert answer["verdict"] == verdict
    table = cli(f"estimate {file} {options}")
    assert table.exit_code == status
    assert f"{answer['headline']} {answer['reason']}" in " ".join(table.stdout.split())


def test_a_claim_of_enough_models_is_judged(cli, scores):
    for claim, status, verdict in ((1.0, 1, "violation"), (3.6, 4, "inconclusive")):
        shown = cli(f"estimate {scores} --claim-epsilon {claim} --threshold 1.5 --json")
        assert (shown.exit_code, json.loads(shown.stdout)["verdict"]) == (status, verdict)
    assert "verdict" not in cli.json(f"estimate {scores}")


def test_scores_of_the_wrong_sign_are_found_by_a_split_and_remarked_otherwise(cli, tmp_path):
    generator = np.random.default_rng(0)
    file = write(tmp_path / "wrong.csv", generator.normal(-3.0, 1.0, 200), generator.normal(size=200))
    found = cli.json(f"estimate {file}")
    assert (found["direction"], found["epsilon"] > 1.0) == (-1, True)
    given = cli.json(f"estimate {file} --threshold 1.5")
    assert (given["direction"], given["epsilon"]) == (1, 0.0)
    for answer, options in ((found, ""), (given, "--threshold 1.5")):
        assert "smaller scores speak for the canary" in answer["caveats"][0]
        assert answer["caveats"][0] in " ".join(cli(f"estimate {file} {options}").stdout.split())
    judged = cli(f"estimate {file} --threshold 1.5 --claim-epsilon 1")
    assert judged.exit_code == 4
    assert "models cannot tell. The sign of the scores seems to be wrong" in " ".join(judged.stdout.split())


@pytest.mark.parametrize("column", ["coin", "canary"])
def test_a_file_of_one_run_may_name_the_coins_and_none_may_be_shared(cli, tmp_path, column):
    def file(coins):
        rows = [f"{'in' if i % 2 else 'out'},{i % 7},{coin}" for i, coin in enumerate(coins)]
        path = tmp_path / "coins.csv"
        path.write_text("\n".join([f"world,score,{column}", *rows]), encoding="utf-8")
        return path

    assert cli(f"estimate {file(range(40))} --method one-run").exit_code == 0
    shared = cli(f"estimate {file([*range(39), 3])} --method one-run")
    assert shared.exit_code == 2
    assert f"coins.csv line 41: {column} '3' is also in line 5." in shared.stderr
    assert "an independent fair coin for each canary" in " ".join(shared.stderr.split())
    of_models = cli(f"estimate {file([*range(39), 3])}")  # a column canary may be any name of models
    assert of_models.exit_code == (2 if column == "coin" else 0)
    unnamed = cli(f"estimate {file([*range(39), ' '])} --method one-run")
    assert unnamed.exit_code == 2
    assert f"coins.csv line 41 must name its {column}" in unnamed.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["world and score", "none"]),
        ("world,points\nin,1\n", ["world and score", "points"]),
        ("world,score\nin,1\nout,abc\n", ["line 3", "'abc'"]),
        ("world,score\nin,1\nout,nan\n", ["line 3", "nan"]),
        ("world,score\nin,1\nout,1_000\n", ["line 3", "1_000"]),
        ("world,score\nin,0x10\nout,1\n", ["line 2", "0x10"]),
        ("world,score\nin,1\nout\n", ["line 3", "'out'"]),
        ("world,score\n1,1\n", ["line 2", "in or out", "'1'"]),
        ("world,score\nin,1\n", ["both worlds", "out"]),
        ("world,score\n", ["both worlds"]),
    ],
)
def test_bad_files_are_refused_in_one_sentence(cli, tmp_path, text, words):
    file = tmp_path / "scores.csv"
    file.write_text(text, encoding="utf-8")
    refusal = cli.refusal(f"estimate {file}")
    assert all(word in refusal for word in words)


def test_the_page_shows_what_is_printed(cli, tmp_path, monkeypatch):
    """Its commands need a file, which its Python makes; so they are run here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    page = blocks("docs/commands/estimate.md")
    names: dict[str, np.ndarray] = {}
    exec(next(block.text for block in page if block.language == "python"), names)
    write(Path("scores.csv"), names["scores_in"], names["scores_out"])
    write(Path("few.csv"), names["scores_in"][:4], names["scores_out"][:4])
    commands = [block for block in page if block.language == "sh"]
    assert len(commands) == 4
    for block in commands:
        result = cli(block.text.removeprefix("lastiterate ").strip())
        kind, expected = block.output
        if kind == "json":
            assert_same(json.loads(result.stdout), json.loads(expected))
        else:
            assert result.stdout == expected


def test_canaries_of_one_run_are_not_taken_for_models(cli, tmp_path):
    file = tmp_path / "scores.csv"
    file.write_text("world,score,coin\nin,1,a\nout,0,b\n", encoding="utf-8")
    assert "choose a one-run method" in cli.refusal(f"estimate {file}")
