"""``lastiterate report A B ...``: audits side by side, those of another run marked, and the worst status of all."""

import json
import shutil

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


@pytest.fixture
def store(cli, tmp_path):
    made = cli(
        f"audit --attack adversarial --models 20 --steps 4 --sample-rate .5 --noise-multiplier 1 "
        f"--method clopper-pearson --store {tmp_path / 'x.sqlite'} --json"
    )
    assert made.exit_code == 0, made.stderr
    return tmp_path / "x.sqlite"


def test_a_summary_is_written_with_its_card(cli, store, tmp_path):
    shown = cli(f"report {store} --method clopper-pearson --summary {tmp_path / 's.html'} --output {tmp_path}")
    assert shown.exit_code == 0, shown.stderr
    assert "s.html" in "".join(shown.stdout.split())  # long paths are wrapped
    assert "print it to PDF" in cli.refusal(f"report {store} --summary {tmp_path / 's.pdf'}")
    card = json.loads((tmp_path / "s.json").read_text())
    found = cli.json(f"report {store} --method clopper-pearson")
    assert card["verdict"] == found["verdict"]
    assert card["found"][0]["epsilon"] == found["empirical"]["clopper-pearson"]
