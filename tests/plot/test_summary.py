"""The one-page summary: the page, the Markdown and the card say the same, whatever the audit contains."""

import html
import json
import re

import pytest

import lastiterate as li
from lastiterate.attacks import Adversarial
from lastiterate.auditing.evidence.report import report
from lastiterate.auditing.load_evidence import TERMS, card_of, evidence_in
from lastiterate.auditing.stores.store import Store
from lastiterate.formatting import ONE_TRAINING
from lastiterate.plot.summary import write_summary

RUN = li.DPSGD(steps=20, sample_rate=0.2, noise_multiplier=1.0)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("summary") / "exact.sqlite"
    li.audit(RUN, None, Adversarial("exact"), models=60, seed=7, store=path, progress=False)
    return path


@pytest.fixture(scope="module")
def card(path):
    with Store.read(path) as store:
        return card_of(store, report(evidence_in(store)))


def words_of(page):
    return html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL))


def plain(markdown):
    return re.sub(r"\\(.)", r"\1", markdown)


def test_all_three_say_the_same(card, tmp_path):
    write_summary(card, tmp_path / "one.html")
    write_summary(card, tmp_path / "two.md")
    assert json.loads((tmp_path / "one.json").read_text()) == json.loads((tmp_path / "two.json").read_text()) == card
    said = [
        card["headline"],
        card["advice"],
        card["reason"],
        card["trained"],
        card["run_words"],
        card["unit_of_privacy"],
        card["digest"],
    ]
    said += [card["neighbours_words"], card["attack"], *card["caveats"], *TERMS.values(), "Signature"]
    said += [card["strength"]["words"]]
    for each in card["numbers"]:  # the page has tiles, Markdown has sentences
        assert each["text"] in words_of((tmp_path / "one.html").read_text())
    for each in (card["guaranteed"], card["predicted"], card["power"], *card["found"]):
        assert each["words"] in plain((tmp_path / "two.md").read_text())
    for each in said:
        assert each in words_of((tmp_path / "one.html").read_text()), each
        assert each in plain((tmp_path / "two.md").read_text()), each


def test_a_card_has_the_numbers_of_the_audit(card, path):
    with Store.read(path) as store:
        result = report(evidence_in(store))
    assert card["guaranteed"]["epsilon"] == li.composition(RUN).bracket(1e-5)[1]
    assert card["predicted"]["epsilon"] == li.last_iterate(RUN).epsilon(1e-5)
    assert "not a guarantee" in card["predicted"]["words"]
    assert {each["method"]: each["epsilon"] for each in card["found"]} == result.empirical
    for each in card["found"]:
        shown = float(re.search(r"at least ([\d.e-]+)", each["words"])[1])
        assert shown <= each["epsilon"] <= shown * 1.01 + 1e-12
    assert ONE_TRAINING in card["caveats"]
    assert card["seed"] == 7
    assert card["versions"]["lastiterate"]
    assert card["models"] == {"in": 60, "out": 60, "planned": 60}
