from __future__ import annotations

import pytest

import lastiterate as li


@pytest.mark.parametrize("analysis", ["last-iterate", "composition", "full-batch"])
def test_noise_reaches_the_target_under_the_chosen_analysis(cli, analysis):
    answer = cli.json(f"calibrate --steps 1000 --sample-rate 0.01 --epsilon 2 --delta 1e-5 --analysis {analysis}")
    name = analysis.replace("-", "_")
    assert answer["analysis"] == name
    assert (answer["epsilon"], answer["delta"]) == (2.0, 1e-5)
    assert 2.0 - 2e-6 <= answer[name] <= 2.0
    run = li.DPSGD(1000, 0.01, answer["noise_multiplier"])
    for each in ("last_iterate", "composition", "full_batch"):
        assert answer[each] == getattr(li, each)(run).epsilon(1e-5)


RUN = "calibrate --steps 1000 --sample-rate 0.01 --epsilon 8 --delta 1e-5"


def test_without_an_analysis_the_guarantee_comes_first_and_the_heuristic_beside_it(cli):
    answer = cli.json(RUN)
    assert "noise_multiplier" not in answer
    assert (answer["steps"], answer["epsilon"], answer["delta"]) == (1000, 8.0, 1e-5)
    guarantee, heuristic = answer["rows"]
    assert (guarantee["analysis"], guarantee["is_guarantee"]) == ("composition", True)
    assert (heuristic["analysis"], heuristic["is_guarantee"]) == ("last_iterate", False)
    assert guarantee["noise_multiplier"] == pytest.approx(0.58626, abs=1e-5)
    assert heuristic["noise_multiplier"] == pytest.approx(0.24381, abs=1e-5)
    assert heuristic["composition"] == pytest.approx(130.935, abs=1e-3)
    for row in answer["rows"]:
        run = li.DPSGD(1000, 0.01, row["noise_multiplier"])
        assert 8.0 - 1e-5 <= row[row["analysis"]] <= 8.0
        assert getattr(li, row["analysis"])(run).is_guarantee == row["is_guarantee"]
        for each in ("last_iterate", "composition", "full_batch"):
            assert row[each] == getattr(li, each)(run).epsilon(1e-5)


def test_rows_are_those_of_either_analysis_asked_for_alone(cli):
    for row in cli.json(RUN)["rows"]:
        alone = cli.json(f"{RUN} --analysis {row['analysis'].replace('_', '-')}")
        assert all(alone[key] == row[key] for key in row if key != "is_guarantee")


@pytest.mark.parametrize("sampling", ["shuffled", "fixed"])
def test_where_composition_refuses_the_guarantee_is_no_amplification(cli, sampling):
    guarantee, heuristic = cli.json(f"{RUN} --sampling {sampling}")["rows"]
    assert (guarantee["analysis"], guarantee["is_guarantee"]) == ("no_amplification", True)
    assert guarantee["no_amplification"] == pytest.approx(8.0, abs=1e-5)
    assert heuristic["analysis"] == "last_iterate"
    assert heuristic["no_amplification"] > 100.0
    for row in (guarantee, heuristic):
        assert row["composition"] is None
        assert "for composition, got" in row["composition_reason"]
    shown = cli(f"{RUN} --sampling {sampling}").stdout
    assert "No composition: sampling must be 'poisson' or 'full'" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_the_table_says_what_the_noise_of_the_heuristic_guarantees(cli):
    result = cli(RUN)
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    guarantee, heuristic = (next(line for line in lines if line[:1] == [word]) for word in ("composition", "last"))
    assert guarantee == ["composition", "(standard)", "0.58626", "8", "2.4311", "2.1696"]
    assert heuristic == ["last", "iterate", "(heuristic)", "0.24381", "130.94", "8", "5.9325"]
    text = " ".join(result.stdout.split())
    assert "it predicts, it does not guarantee. With the heuristic's noise, the guarantee is epsilon 130.94." in text


def test_a_heuristic_that_cannot_be_calibrated_leaves_the_guarantee(cli):
    command = "calibrate --steps 2000000 --sample-rate 0.001 --momentum 0.9 --epsilon 1 --delta 1e-5"
    guarantee, heuristic = cli.json(command)["rows"]
    assert guarantee["composition"] == pytest.approx(1.0, abs=1e-6)
    assert heuristic["noise_multiplier"] is None
    assert "steps must be at most" in heuristic["noise_multiplier_reason"]
    assert heuristic["composition"] is None
    assert heuristic["composition_reason"]
    assert cli(command).exit_code == 0


def test_noise_for_a_guarantee_of_the_last_iterate_of_convex_training(cli):
    answer = cli.json("calibrate --steps 60 --sample-rate 0.1 --epsilon 2 --delta 1e-5 --analysis convex --convex 0.8")
    run = li.DPSGD(60, 0.1, answer["noise_multiplier"])
    assert (answer["analysis"], answer["contraction"]) == ("convex", 0.8)
    assert 2.0 - 0.01 <= answer["convex"] <= 2.0
    assert answer["composition"] > answer["last_iterate"] > 2.0  # linear losses forget nothing, these do
    assert answer["convex"] == li.convex(run, contraction=0.8).epsilon(1e-5)


@pytest.mark.parametrize(
    ("options", "value"),
    [("--mu 1", 1.0), ("--advantage 0.1", 0.1), ("--tpr 0.05 --fpr 0.01", 0.05)],
)
def test_each_kind_of_target_is_reached_from_the_safe_side(cli, options, value):
    command = f"calibrate --steps 100 --sample-rate 0.1 --analysis last-iterate {options}"
    answer = cli.json(command)
    assert value * (1.0 - 1e-5) <= answer["last_iterate"] <= value
    assert answer.get("smallest_error") == (1e-10 if "mu" in answer else None)
    shown = " ".join(cli(command).stdout.split())
    assert ("where both error rates are at least 1e-10" in shown) == ("mu" in answer)
    assert "mu-GDP" not in shown


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("", "got none of them"),
        ("--delta 1e-5 --mu 1", "got --delta and --mu"),
        ("--tpr 0.1", "or --tpr with --fpr; got --tpr"),
        ("--tpr 0.1 --fpr 0.2", "tpr must be above fpr"),
    ],
)
@pytest.mark.parametrize(
    "command",
    ["calibrate --steps 100 --sample-rate 0.1", "plan --dataset-size 100 --epochs 1 --batch-sizes 10,20"],
)
def test_a_bad_combination_of_targets_is_refused_in_one_sentence(cli, command, options, words):
    assert words in cli.refusal(f"{command} {options}")


def test_batch_sizes_are_compared_by_mu(cli):
    command = "plan --dataset-size 1000 --epochs 2 --batch-sizes 10,100 --mu 0.5 --analysis last-iterate"
    rows = cli.json(command)["rows"]
    assert [row["last_iterate"] for row in rows] == pytest.approx([0.5, 0.5], rel=1e-5)
    assert all(row["last_iterate"] <= 0.5 < row["composition"] for row in rows)
    caution = " ".join(cli(command).stdout.split())
    assert "where both error rates are at least 1e-10" in caution
