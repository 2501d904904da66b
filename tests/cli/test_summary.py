"""``lastiterate report --summary``."""

from __future__ import annotations

import json

import pytest


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
    card = json.loads((tmp_path / "s.json").read_text())
    found = cli.json(f"report {store} --method clopper-pearson")
    assert card["verdict"] == found["verdict"]
    assert card["found"][0]["epsilon"] == found["empirical"]["clopper-pearson"]


def test_summaries_that_cannot_be_are_refused(cli, store, tmp_path):
    assert "--summary must end in .html or .md" in cli.refusal(f"report {store} --summary {tmp_path / 's.txt'}")
    assert "print it to PDF" in cli.refusal(f"report {store} --summary {tmp_path / 's.pdf'}")
    said = cli.refusal(f"report {store} {store.with_name('y.sqlite')} --summary {tmp_path / 's.md'}")
    assert "--summary must be given with one store" in said
    link = tmp_path / "link.md"
    link.symlink_to(store)
    assert "must be different files" in cli.refusal(f"report {store} --summary {link}")
