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
