import pytest

from lastiterate.paper.reproduce import figure1, figure2

KEYS = ["panel", "steps", "sample_rate", "noise_multiplier", "last_iterate", "composition", "full_batch"]


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


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("figure1 --store x", "--store does not apply to figure1"),
        ("figure3 --data x --models 5", "--data does not apply to figure3: it takes --models"),
        ("figure3 --engine ray", "--engine does not apply to figure3"),
        ("figure2 --address here", "--address and --gpus belong to --engine ray"),
        ("figure2 --scale full", "data must be given at scale full"),
        ("table2 --data nowhere.npz", "nowhere.npz"),
        ("table2 --models 0", "models must be"),
    ],
)
def test_what_cannot_be_done_is_refused(cli, tmp_path, monkeypatch, command, words):
    monkeypatch.chdir(tmp_path)
    assert words in cli.refusal(f"reproduce {command} --json")


def test_ctrl_c_says_how_to_resume(stopped):
    assert "kept: the same command resumes" in stopped("reproduce figure2 --store kept", figure2, "rows")
