"""What a command writes replaces neither its store nor what it reads, whatever the names and links."""

import os

import pytest

from lastiterate.auditing.load_evidence import export
from lastiterate.auditing.stores.store import Store

TRAINER = """
import lastiterate as li
run = li.DPSGD(steps=30, sample_rate=0.1, noise_multiplier=1.0)
def train(seed, canary):
    return seed % 7 + canary
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(TRAINER)
    (tmp_path / "data.npz").write_bytes(b"data")
    (tmp_path / "texts.png").write_bytes(b"texts")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("audit --trainer mine.py:train --store deep/../s.html --output .", "--store and the pictures"),
        ("audit --trainer mine.py:train --store mine.py", "--store and --trainer"),
        ("audit --data data.npz --store data.npz", "--store and --data"),
        ("audit --data data.npz --store hard.sqlite", "--store and --data"),
        ("audit-lm --model m --text texts.png --store texts.sqlite", "the pictures and --text"),
        ("audit-lm --model m --text a --held-out texts.png --store texts.png --json", "--store and --held-out"),
        ("check --trainer mine.py:train --junit mine.py", "--junit and --trainer"),
        ("check --trainer mine.py:train --junit deep/../p.svg --plot p.svg", "--plot and --junit"),
        ("reproduce figure2 --store p.png --output p.png", "--output and --store"),
        ("reproduce table1 --model m --text texts.png --output texts.png", "--output and --text"),
    ],
)
def test_equal_files_are_refused_before_anything_is_done(cli, folder, command, said):
    (folder / "deep").mkdir()
    os.link(folder / "data.npz", folder / "hard.sqlite")
    before = {path.name: path.is_file() and path.read_bytes() for path in folder.iterdir()}
    refusal = cli.refusal(command)
    assert said in refusal
    assert "must be different files" in refusal
    assert {path.name: path.is_file() and path.read_bytes() for path in folder.iterdir()} == before


def test_a_report_and_an_export_leave_the_store_alone(cli, folder):
    audited = cli("audit --trainer mine.py:train --models 4 --method clopper-pearson --store s.csv --json")
    assert audited.exit_code == 0, audited.stderr
    content = (folder / "s.csv").read_bytes()
    (folder / "linked.csv").symlink_to("s.csv")
    os.link(folder / "s.csv", folder / "hard.csv")
    (folder / "hard-report.html").symlink_to("s.csv")
    for command, said in {
        "report s.csv --export s.csv": "--export and STORE",
        "report s.csv --export ./linked.csv": "--export and STORE",
        "report linked.csv --export hard.csv": "--export and STORE",
        "report hard.csv": "the pictures and STORE",
    }.items():
        assert said in cli.refusal(command)
        assert (folder / "s.csv").read_bytes() == content
    with Store.read(folder / "s.csv") as store, pytest.raises(ValueError, match="must differ from the store"):
        export(store, folder / "hard.csv")
