"""Bad input is exit status 2 and one sentence on stderr, however it is bad."""

import pytest

RUN = "epsilon --steps 10 --sample-rate .1 --noise-multiplier 1 --delta 1e-5"


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (RUN.replace("--steps 10", "--steps 0"), "steps"),
        (RUN.replace("--sample-rate .1", "--sample-rate 0.0_1"), "--sample-rate"),
        (RUN.replace("--steps 10", "--steps 99999999999999999999"), "steps"),
        (RUN.replace("--sample-rate .1", "--sample-rate nan"), "--sample-rate"),
        (RUN.replace("epsilon", "delta").replace("--delta 1e-5", "--epsilon nan"), "epsilon"),
        (f"{RUN} --weights 0,0,0,0,0,0,0,0,0,0", "weights"),
        (f"{RUN} --weights 1 --momentum .9", "optimizer and weights"),
        (f"{RUN} --weight-decay .1", "--learning-rate"),
        (f"{RUN} --optimizer adam --momentum .9", "--momentum belongs to --optimizer sgd, got adam"),
        (f"{RUN} --beta1 .9", "--beta1 belongs to --optimizer adam or adamw, got none"),
        (f"{RUN} --sampling bootstrap", "--sampling"),
        (f"{RUN} --colour", "--colour"),
    ],
)
def test_bad_values_are_refused_in_one_sentence_that_names_them(cli, command, word):
    assert word in cli.refusal(command)


@pytest.mark.parametrize(
    ("target", "word"),
    [
        ("picture.jpg", "picture.jpg"),
        ("missing/picture.png", "missing"),
        ("folder.png", "folder"),
        ("file.txt/picture.png", "file.txt"),
    ],
)
@pytest.mark.parametrize(
    "command", [RUN, "plan --dataset-size 100 --epochs 1 --batch-sizes 10 --epsilon 1 --delta 1e-5"]
)
def test_bad_plot_paths_are_refused_before_computing_and_leave_nothing(
    cli, tmp_path, monkeypatch, command, target, word
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file.txt").touch()
    monkeypatch.setattr("lastiterate.compare_analyses.ask", _unreachable)
    monkeypatch.setattr("lastiterate.calibrate", _unreachable)
    assert word in cli.refusal(f"{command} --plot {target}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.txt", "folder.png"]
    assert not list((tmp_path / "folder.png").iterdir())


def _unreachable(*args, **options):
    pytest.fail("computed before the path was checked")
