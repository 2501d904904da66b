import lastiterate as li

PLAN = "plan --dataset-size 50000 --epochs 60 --batch-sizes 256,512,4096 --epsilon 6 --delta 1e-5"


def test_rows_hold_noise_and_the_three_analyses_for_each_batch_size_guarantee_first(cli):
    answer = cli.json(PLAN)
    assert answer["dataset_size"] == 50_000
    assert "analysis" not in answer
    assert [(row["analysis"], row["batch_size"]) for row in answer["rows"]] == [
        (name, size) for name in ("composition", "last_iterate") for size in (256, 512, 4096)
    ]
    for row in answer["rows"]:
        run = li.DPSGD.from_batches(50_000, row["batch_size"], 60, row["noise_multiplier"])
        assert (row["steps"], row["sample_rate"]) == (run.steps, run.sample_rate)
        assert row["is_guarantee"] == (row["analysis"] == "composition")
        assert 6.0 - 6e-6 <= row[row["analysis"]] <= 6.0
        for each in ("last_iterate", "composition", "full_batch"):
            assert row[each] == getattr(li, each)(run).epsilon(1e-5)


def test_a_table_for_each_analysis_has_a_row_for_each_batch_size_and_the_heuristic_is_labelled(cli):
    result = cli(PLAN)
    assert result.exit_code == 0
    first, second = _tables(result.stdout)
    for table in (first, second):
        assert [row[0] for row in table] == ["256", "512", "4,096"]
    assert result.stdout.index("by composition (standard)") < result.stdout.index("by last iterate (heuristic)")
    assert [row[5] for row in second] == [row[4] for row in first] == ["6"] * 3
    assert "it predicts, it does not guarantee" in " ".join(result.stdout.split())
    assert "the guarantee is epsilon 6.5388 to 37.734." in " ".join(result.stdout.split())


def _tables(text):
    bodies = [part.split("\n\n")[0] for part in text.split("───\n")[1:]]
    return [[line.split() for line in body.splitlines()] for body in bodies]
