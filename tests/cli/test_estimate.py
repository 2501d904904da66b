import json
import time
from pathlib import Path

import numpy as np
import pytest

import lastiterate as li
from lastiterate.auditing.load_evidence import _read_plain, read_scores

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


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("header", ["world,score", "coin,score,note,world"])
def test_a_plain_file_is_read_twice_as_fast_with_the_same_scores(tmp_path, header, ending):
    plain, other = tmp_path / "plain.csv", tmp_path / "other.csv"
    cells = {name: [f"{name}{i}" for i in range(60_000)] for name in ("coin", "note")}
    cells |= {"world": ["in", "out", "out"] * 20_000, "score": [f"{i / 7 - 3000!r}" for i in range(60_000)]}
    rows = zip(*(cells[name] for name in header.split(",")), strict=True)
    text = ending.join([header, *map(",".join, rows)])
    plain.write_text(text, newline="")
    other.write_text(text.replace("out", '"out"'), newline="")
    seconds, found = [], []
    for path in (plain, other):
        began = time.process_time()
        found.append(read_scores(path, one_run="coin" in header))
        seconds.append(time.process_time() - began)
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])
    assert seconds[0] < seconds[1] / 2.0


@pytest.mark.parametrize(
    "row", ["in,1e999", "in,1_0", " in,1", "in,1,2", "in,inf", "in", "", "in,\u0661", "IN,1", '"in",1']
)
def test_files_that_are_not_plain_are_left_to_the_reader_with_messages(tmp_path, row):
    path = tmp_path / "scores.csv"
    path.write_text(f"world,score\nin,1\n{row}\nout,0\n", encoding="utf-8")
    assert _read_plain(path, one_run=False) is None


@pytest.fixture
def examples(tmp_path, monkeypatch):
    """Files of members and non-members of a model that leaks, in the current folder, and one that drifts."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    age = generator.normal(size=2000)
    member = generator.random(2000) < 1.0 / (1.0 + np.exp(-age))
    score = age + 3.0 * member + generator.normal(size=2000)
    drift = np.cumsum(~member) * 4.0 / 1000.0
    for name, values, rows in (("m", score, member), ("n", score, ~member), ("drifts", score + drift, ~member)):
        table = np.column_stack([values, age])[rows]
        np.savetxt(f"{name}.csv", table, fmt="%.17g", delimiter=",", header="score,age", comments="")
    return [score[member], score[~member], age[member, None], age[~member, None]]


ZERO = "estimate --zero-run --members m.csv --non-members"


def test_a_model_that_exists_is_bounded_and_the_result_says_what_it_rests_on(cli, examples):
    answer = cli.json(f"{ZERO} n.csv --odds 1.2 --delta 1e-6 --confidence 0.9")
    found = li.zero_run(*examples, 1e-6, 0.9, odds=1.2)
    assert answer["epsilon"] == found.epsilon > 1.0
    assert (answer["rests_on"], answer["features"]) == (list(found.rests_on), ["age"])
    printed = " ".join(cli(f"{ZERO} n.csv --odds 1.2 --delta 1e-6 --confidence 0.9").stdout.split())
    assert " ".join(found.sentences) in printed


def test_a_refused_result_has_no_bound_and_status_4(cli, examples):
    refused = cli(f"{ZERO} drifts.csv --json")
    assert refused.exit_code == 4
    fields = json.loads(refused.stdout)
    assert fields["epsilon"] is None
    assert "placebo found" in fields["epsilon_reason"]
    assert "No bound: the placebo found" in cli(f"{ZERO} drifts.csv").stdout


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("estimate", "FILE must be given"),
        ("estimate m.csv --odds 2", "--odds needs --zero-run"),
        ("estimate --members m.csv --non-members n.csv", "--zero-run"),
        ("estimate --zero-run --members m.csv", "--non-members"),
        (f"{ZERO} n.csv m.csv", "no others"),
        (f"{ZERO} n.csv --claim-epsilon 1", "no others"),
        (f"{ZERO} n.csv --method gdp", "no others"),
        (f"{ZERO} n.csv --steps 10 --sample-rate 0.1", "no others"),
        (f"{ZERO} n.csv --odds 0.5", "odds must be at least 1"),
        (f"{ZERO} other.csv", "the same columns in the same order, got age and year"),
        (f"{ZERO} plain.csv", "at least one column of features"),
        (f"{ZERO} words.csv", "line 3 must have 2 finite numbers in plain digits"),
        (f"{ZERO} missing.csv", "missing.csv"),
    ],
)
def test_options_and_files_that_do_not_fit_zero_run_are_refused_in_one_sentence(cli, examples, command, words):
    for name, text in (("other", "score,year\n1,2\n"), ("plain", "score\n1\n"), ("words", "score,age\n1,2\n1,old\n")):
        Path(f"{name}.csv").write_text(text, encoding="utf-8")
    assert words in cli.refusal(command)
