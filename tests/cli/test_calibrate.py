"""Targets of ``calibrate`` and ``plan`` on the command line."""

import pytest


@pytest.mark.parametrize(
    ("options", "value"),
    [("--mu 1", 1.0), ("--advantage 0.1", 0.1), ("--tpr 0.05 --fpr 0.01", 0.05)],
)
def test_each_kind_of_target_is_reached_from_the_safe_side(cli, options, value):
    command = f"calibrate --steps 100 --sample-rate 0.1 --sampling shuffled --analysis last-iterate {options}"
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


def test_batch_sizes_are_compared_by_advantage(cli):
    command = "plan --dataset-size 1000 --epochs 10 --batch-sizes 50,100 --advantage 0.2 --analysis last-iterate"
    rows = cli.json(command)["rows"]
    assert [row["last_iterate"] for row in rows] == pytest.approx([0.2, 0.2], rel=1e-5)
    assert all(row["last_iterate"] <= 0.2 < row["composition"] for row in rows)
