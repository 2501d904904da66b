from __future__ import annotations

from lastiterate.reproduce import figure1

KEYS = ["panel", "steps", "sample_rate", "noise_multiplier", "last_iterate", "composition", "full_batch"]


def test_json_holds_every_row_and_draws_nothing(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = cli.json("reproduce figure1 --scale quick")
    assert answer["name"] == "figure1"
    assert {row["panel"] for row in answer["rows"]} == {"a", "b", "c"}
    assert all(list(row)[: len(KEYS)] == KEYS for row in answer["rows"])
    assert answer["rows"] == figure1.rows("quick")
    assert not list(tmp_path.iterdir())


def test_full_scale_has_more_rows(cli):
    rows = cli.json("reproduce figure1 --scale full")["rows"]
    assert len(rows) == 3 * figure1._POINTS["full"] > 3 * figure1._POINTS["quick"]


def test_pictures_go_into_the_folder_that_was_asked_for(cli, tmp_path):
    result = cli(f"reproduce figure1 --scale quick --output {tmp_path / 'new'}")
    assert result.exit_code == 0
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["figure1.html", "figure1.png"]
    assert (tmp_path / "new" / "figure1.png").read_bytes().startswith(b"\x89PNG")
    assert "figure1.png" in result.stdout.replace("\n", "")
    assert "heuristic" in result.stdout


def test_one_file_may_be_asked_for_instead(cli, tmp_path):
    assert cli.json(f"reproduce figure1 --scale quick --output {tmp_path / 'mine.svg'}")["name"] == "figure1"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.svg"]
