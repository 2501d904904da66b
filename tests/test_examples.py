"""The examples run as they say, and say what they should."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.cli.app import app

EXAMPLES = Path(__file__).parents[1] / "examples"
OPACUS = EXAMPLES / "audit_opacus.py"


@pytest.fixture(scope="module")
def opacus():
    """The names in the example."""
    return runpy.run_path(str(OPACUS))


def test_a_seed_gives_the_same_opacus_model_again(opacus):
    run, attack, train = opacus["run"], opacus["attack"], opacus["train"]
    facts = {"weights": [1.0, 1.0], "centre": 0.0}
    first, again, other = (attack.score(run, facts, train(seed, True).result) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_the_canary_of_the_opacus_example_is_clipped_and_moves_the_model_as_the_linear_analysis_says(opacus):
    run, attack, train = opacus["run"], opacus["attack"], opacus["train"]
    sizes = [np.linalg.norm(tensor) for tensor in attack.canary.values()]
    assert np.linalg.norm(sizes) > 5.0 * run.clip_norm
    facts = {"weights": (sizes / np.linalg.norm(sizes)).tolist(), "centre": 0.0}
    with_it, without = (
        [attack.score(run, facts, train(seed, canary).result) for seed in range(12)] for canary in (True, False)
    )
    expected = run.steps * run.sample_rate / (np.sqrt(run.steps) * run.noise_multiplier)
    assert np.mean(with_it) - np.mean(without) == pytest.approx(expected, abs=4.0 * np.sqrt(2.0 / 12.0))


@pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "fault", "row"),
    [
        *((name, "", None) for name in ("opacus", "torch_func", "jax_privacy", "own", "hf_trainer")),
        *(("opacus", fault, "noise") for fault in ("noise", "bias", "seed")),
        *(("opacus", fault, "clipping norm") for fault in ("clipping", "layers")),
        ("opacus", "momentum", "noise of three steps"),
        ("opacus", "shuffled", "participation over seeds"),
        ("torch_func", "1", "clipping norm"),
        ("jax_privacy", "1", "normalisation"),
        ("own", "1", "noise"),
        ("hf_trainer", "frozen", "noise"),
        ("hf_trainer", "microbatch", "clipping of others"),
    ],
)
def test_the_check_of_an_example_passes_and_finds_each_of_its_faults(name, fault, row, monkeypatch):
    monkeypatch.setenv("FAULT", fault)
    found = CliRunner().invoke(app, ["check", "--trainer", f"{EXAMPLES / f'check_{name}.py'}:train", "--json"])
    assert found.exit_code == (1 if fault else 0), found.output
    assert not row or row in [each["name"] for each in json.loads(found.stdout)["faults"]]


def test_features_made_from_images_are_data_for_an_audit(tmp_path, monkeypatch, capsys):
    from lastiterate.data import load

    images = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(30) % 3
    np.savez(tmp_path / "images.npz", x_train=images, y_train=labels, x_test=images[:9], y_test=labels[:9])
    (tmp_path / "net.py").write_text(
        "import torch\n\ndef net():\n    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.ReLU(), torch.nn.Flatten())\n"
    )
    words = ["images.npz", "features.npz", "net.py:net", "--size", "6", "--largest", "2"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["make_features.py", *words])
    runpy.run_path(str(EXAMPLES / "make_features.py"), run_name="__main__")
    assert "95% of the test images have features of norm at most" in capsys.readouterr().out
    found = load("features.npz", 3.0)
    assert (found.x_train.shape, found.x_train.dtype) == ((30, 80), np.uint8)
    assert 0 < found.x_train.max() < 255


def test_the_table_of_the_ranking_follows_from_its_scores_and_these_from_their_seeds():
    example, docs = runpy.run_path(str(EXAMPLES / "does_it_rank.py")), EXAMPLES.parent / "docs"
    scores = docs / "results" / "ranking.csv"
    page = (docs / "ranking.md").read_text(encoding="utf-8").splitlines()
    runs, inside, outside = example["read"](scores, "linear", "perfect")
    assert len(runs) == 20
    for number, setting in enumerate(example["draw_settings"]()):
        row = example["audit_one"](number, setting, "linear", "perfect", None)
        assert [float(score) for score in row["in"].split()] == pytest.approx(list(inside[number]), rel=1e-5, abs=1e-5)
        assert [float(score) for score in row["out"].split()] == pytest.approx(
            list(outside[number]), rel=1e-5, abs=1e-5
        )
        run = example["run_of"](setting)  # its noise may differ in the last digit from machine to machine
        assert runs[number].replace(noise_multiplier=run.noise_multiplier) == run
        assert runs[number].noise_multiplier == pytest.approx(run.noise_multiplier)
    assert float(li.composition(runs[0]).epsilon(1e-5)) == pytest.approx(8.0, rel=1e-6)
    first, second = (example["table_of"](scores, *audit) for audit in example["AUDITS"][:2])
    assert [line for line in page if line in {*first, *second}] == [*first, *second]
