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


def test_the_heuristic_is_the_default(cli):
    answer = cli.json("calibrate --dataset-size 1000 --batch-size 10 --epochs 10 --epsilon 2 --delta 1e-5")
    run = li.calibrate(li.DPSGD(1000, 0.01, 1.0), epsilon=2.0, delta=1e-5)
    assert answer["analysis"] == "last_iterate"
    assert answer["noise_multiplier"] == run.noise_multiplier


def test_table_begins_with_the_noise(cli):
    result = cli("calibrate --steps 1000 --sample-rate 0.01 --epsilon 2 --delta 1e-5")
    assert result.exit_code == 0
    assert result.stdout.startswith("Noise multiplier ")
    assert "predicts, does not guarantee" in " ".join(result.stdout.split())


def test_composition_of_shuffled_batches_cannot_be_calibrated(cli):
    options = "--epsilon 2 --delta 1e-5 --sampling shuffled --analysis composition"
    assert "not valid" in cli.refusal(f"calibrate --steps 100 --sample-rate .1 {options}")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("--epsilon 0 --delta 1e-5", "epsilon"),
        ("--epsilon -1 --delta 1e-5", "epsilon"),
        ("--epsilon nan --delta 1e-5", "epsilon"),
        ("--epsilon 1 --delta 2", "delta"),
        ("--epsilon 1 --delta 1e-5 --analysis rdp", "--analysis"),
        ("--epsilon 1 --delta 1e-5 --noise-multiplier 1", "--noise-multiplier"),
    ],
)
def test_bad_targets_are_refused(cli, options, word):
    assert word in cli.refusal(f"calibrate --steps 100 --sample-rate .1 {options}")
