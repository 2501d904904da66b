"""``lastiterate report A B ...``: audits side by side, those of another run marked, and the worst status of all."""

import json
import shutil
from functools import partial

import numpy as np
import pytest

import lastiterate as li

RUN = li.DPSGD(100, 0.1, 1.0)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Audits whose scores are drawn: of a run, of another seed, of another noise, open-ended, and unfinished."""
    folder = tmp_path_factory.mktemp("drawn")
    li.audit(RUN, None, "adversarial", 3000, store=folder / "first.sqlite")
    li.audit(RUN, None, "adversarial", 3000, 1, store=folder / "again.sqlite")
    li.audit(RUN.replace(noise_multiplier=2.0), None, "adversarial", 3000, store=folder / "noisy.sqlite")
    li.audit(RUN, None, "adversarial", 3000, store=folder / "open.sqlite", validity="anytime")
    li.audit(RUN, None, "adversarial", 4, store=folder / "few.sqlite")
    return folder


@pytest.fixture
def here(drawn, tmp_path, monkeypatch):
    for store in drawn.glob("*.sqlite"):
        shutil.copy(store, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def rows(cli, command):
    return json.loads(cli(f"report {command} --json").stdout)["rows"]


def test_a_row_has_all_that_a_report_of_that_store_alone_has(cli, here):
    for name, row in zip(("first", "noisy"), rows(cli, "first.sqlite noisy.sqlite"), strict=True):
        alone = json.loads(cli(f"report {name}.sqlite --json").stdout)
        assert row == {"name": name, "differs": row["differs"], "validity": "fixed"} | alone


def test_runs_that_differ_and_open_ended_audits_are_marked(cli, here):
    found = rows(cli, "first.sqlite again.sqlite noisy.sqlite open.sqlite")
    assert [row["differs"] for row in found] == [[], [], ["noise_multiplier"], []]
    assert [row["validity"] for row in found] == ["fixed", "fixed", "fixed", "anytime"]
    printed = cli("report first.sqlite again.sqlite noisy.sqlite open.sqlite --method gdp --details").stdout
    assert "* noisy is not comparable with first: noise_multiplier 2 instead of 1." in printed
    for line in ("first ", "again ", "noisy* ", "open (anytime) "):
        assert f"\n{line}" in printed
    assert "Anytime: these bounds hold at every time" in printed
    assert "The heuristic predicts, it does not guarantee." in printed


def score(numbers, seed, canary):
    return float(numbers.sum() + canary + np.random.default_rng(seed).standard_normal())


def test_other_data_are_marked_even_if_they_are_called_the_same(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, numbers in (("a", np.ones(3)), ("b", np.ones(3)), ("c", np.zeros(3))):
        li.audit(RUN, partial(score, numbers), models=4, store=f"{name}.sqlite", data="numbers")
    assert [row["differs"] for row in rows(cli, "a.sqlite b.sqlite c.sqlite")] == [[], [], ["data"]]


def test_several_audits_are_one_picture_and_one_page(cli, here):
    result = cli("report first.sqlite noisy.sqlite")
    assert result.exit_code == 0
    assert result.stdout.endswith("Picture: first-compared.png\nPicture: first-compared.html\n")
    assert (here / "first-compared.png").read_bytes().startswith(b"\x89PNG")
    assert "not comparable" in (here / "first-compared.html").read_text(encoding="utf-8")
    assert cli("report noisy.sqlite first.sqlite --json --output new").exit_code == 0
    assert sorted(path.name for path in (here / "new").iterdir()) == ["noisy-compared.html", "noisy-compared.png"]


@pytest.mark.parametrize(
    ("command", "verdicts", "status"),
    [
        ("first.sqlite again.sqlite --claim-noise 1", ["consistent", "consistent"], 0),
        ("first.sqlite few.sqlite --claim-noise 1", ["consistent", "inconclusive"], 4),
        ("first.sqlite few.sqlite", ["consistent", "inconclusive"], 0),
        ("first.sqlite few.sqlite --strict", ["consistent", "inconclusive"], 4),
        ("few.sqlite first.sqlite noisy.sqlite --claim-noise 2", ["inconclusive", "violation", "consistent"], 1),
    ],
)
def test_the_status_is_the_worst_of_all(cli, here, command, verdicts, status):
    assert [row["verdict"] for row in rows(cli, command)] == verdicts
    assert cli(f"report {command} --json").exit_code == status


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("first.sqlite noisy.sqlite --export s.csv", "--export must be given with one store, got 2 stores"),
        ("first.sqlite ./first.sqlite", "STORE must be different files, got 'first.sqlite' and"),
        ("first.sqlite none.sqlite", "nothing is at 'none.sqlite'"),
        ("first.sqlite open.sqlite --threshold corrected", "(the store 'open.sqlite')"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(cli, here, command, words):
    before = sorted(here.iterdir())
    assert words in cli.refusal(f"report {command}")
    assert sorted(here.iterdir()) == before


def test_stores_of_one_name_are_told_apart_by_their_folders(cli, here):
    (here / "other").mkdir()
    shutil.copy("noisy.sqlite", "other/first.sqlite")
    found = rows(cli, "first.sqlite other/first.sqlite")
    assert [row["name"] for row in found] == ["first.sqlite", "other/first.sqlite"]


def test_pictures_replace_no_store(cli, here):
    shutil.copy("noisy.sqlite", "first-compared.png")
    assert "must be different files" in cli.refusal("report first.sqlite first-compared.png")
