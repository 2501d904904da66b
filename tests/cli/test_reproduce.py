import numpy as np
import pytest

from lastiterate.paper.reproduce import figure1, figure2

KEYS = ["panel", "steps", "sample_rate", "noise_multiplier", "composition", "last_iterate", "full_batch"]


def test_json_holds_every_row_and_draws_nothing(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = cli.json("reproduce figure1 --scale quick")
    assert answer["name"] == "figure1"
    assert {row["panel"] for row in answer["rows"]} == {"a", "b", "c"}
    assert all(list(row)[: len(KEYS)] == KEYS for row in answer["rows"])
    assert answer["rows"] == figure1.rows("quick")
    assert not list(tmp_path.iterdir())


def test_pictures_go_into_the_folder_that_was_asked_for(cli, tmp_path):
    result = cli(f"reproduce figure1 --scale quick --output {tmp_path / 'new'}")
    assert result.exit_code == 0
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["figure1.html", "figure1.png"]
    assert (tmp_path / "new" / "figure1.png").read_bytes().startswith(b"\x89PNG")
    assert "figure1.png" in result.stdout.replace("\n", "")
    assert "heuristic" in result.stdout


def test_ctrl_c_says_how_to_resume(stopped):
    assert "kept: the same command resumes" in stopped("reproduce figure2 --store kept", figure2, "rows")


@pytest.fixture
def features(tmp_path):
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 256, (300, 12), dtype=np.uint8), generator.integers(0, 3, 300)
    np.savez(tmp_path / "f.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    return tmp_path / "f.npz"


def test_a_rehearsal_on_features_tells_models_and_time(cli, features):
    found = cli.json(f"reproduce figure4 --scale cifar10-features --features {features} --models 2 --dry-run")["rows"]
    assert {(row["setting"], row["attack"], row["steps"]) for row in found} == {
        (setting, attack, 125) for setting in ("blank", "natural") for attack in ("mislabelled", "clipbkd")
    }
    assert all(row["models"] == 4 + 96 and row["seconds"] > 0.0 for row in found)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("table2 --features f.npz", "--features FILE.npz and --scale cifar10-features must be given together"),
        ("figure1 --scale cifar10-features --features f.npz", "applies to figure2, figure4, table2, got figure1"),
        ("table2 --scale cifar10-features --features f.npz --data digits", "--data must not be given with --features"),
        ("figure1 --dry-run", "--dry-run applies to figures and tables that train models"),
    ],
)
def test_scales_and_rehearsals_that_do_not_apply_are_refused(cli, words, message):
    assert message in cli.refusal(f"reproduce {words}")
