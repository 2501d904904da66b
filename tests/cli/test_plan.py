from __future__ import annotations

import pytest

import lastiterate as li

PLAN = "plan --dataset-size 50000 --epochs 60 --batch-sizes 256,512,4096 --epsilon 6 --delta 1e-5"


def test_rows_hold_noise_and_the_three_analyses_for_each_batch_size(cli):
    answer = cli.json(PLAN)
    assert answer["dataset_size"] == 50_000
    assert answer["analysis"] == "last_iterate"
    assert [row["batch_size"] for row in answer["rows"]] == [256, 512, 4096]
    for row in answer["rows"]:
        run = li.DPSGD.from_batches(50_000, row["batch_size"], 60, row["noise_multiplier"])
        assert (row["steps"], row["sample_rate"]) == (run.steps, run.sample_rate)
        assert 6.0 - 6e-6 <= row["last_iterate"] <= 6.0
        assert row["composition"] == li.composition(run).epsilon(1e-5)
        assert row["full_batch"] == li.full_batch(run).epsilon(1e-5)


def test_smaller_batches_cost_composition_more_at_the_same_heuristic(cli):
    """The paper's point in Tables 1 and 2."""
    composition = [row["composition"] for row in cli.json(PLAN)["rows"]]
    assert composition == sorted(composition, reverse=True)
    assert composition[0] > 1.5 * composition[-1]


def test_plan_by_composition(cli):
    answer = cli.json(
        "plan --dataset-size 1000 --epochs 10 --batch-sizes 50 --epsilon 3 --delta 1e-5 --analysis composition"
    )
    assert answer["rows"][0]["composition"] == pytest.approx(3.0, rel=1e-6)


def test_shuffled_plan_has_no_composition_and_says_why(cli):
    answer = cli.json(f"{PLAN} --sampling shuffled")
    assert all(row["composition"] is None and row["composition_reason"] for row in answer["rows"])
    assert "no amplification" in " ".join(cli(f"{PLAN} --sampling shuffled").stdout.split())


def test_table_has_a_row_for_each_batch_size_and_labels_the_heuristic(cli):
    result = cli(PLAN)
    assert result.exit_code == 0
    assert [row[0] for row in _table(result.stdout)] == ["256", "512", "4,096"]
    assert "predicts" in result.stdout


def test_table_rounds_noise_up_since_less_would_miss_the_target(cli):
    exact = [row["noise_multiplier"] for row in cli.json(PLAN)["rows"]]
    shown = [float(row[3]) for row in _table(cli(PLAN).stdout)]
    assert all(needed <= rounded <= needed * 1.0002 for needed, rounded in zip(exact, shown, strict=True))


def _table(text):
    body = text.split("───\n")[1].split("\n\n")[0]
    return [line.split() for line in body.splitlines()]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (("256,512,4096", "256,x"), "--batch-sizes"),
        (("256,512,4096", "256,,512"), "--batch-sizes"),
        (("256,512,4096", "0"), "batch_size"),
        (("256,512,4096", "60000"), "batch_size"),
        (("--epochs 60", "--epochs 0"), "epochs"),
        (("50000", "0"), "dataset_size"),
        (("--epsilon 6", "--epsilon -6"), "epsilon"),
        (("--delta 1e-5", "--delta 0"), "delta"),
        (("--epochs 60", ""), "--epochs"),
    ],
)
def test_bad_plans_are_refused(cli, change, word):
    assert word in cli.refusal(PLAN.replace(*change))
