"""The web page of an audit: all of it in one file, in plain words, whatever the audit contains."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lastiterate.compare_analyses import Answer
from lastiterate.labels import METHODS
from lastiterate.plot import page as plot_page
from lastiterate.plot.audit_charts import page_charts
from lastiterate.plot.page import write_page
from tests.plot.test_audit_charts import ODD, QUICK, fake, infinite, odd


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "audit.html"
    write_page(fake(), path)
    assert [file.name for file in path.parent.iterdir()] == ["audit.html"]
    return path.read_text()


@pytest.fixture
def still(monkeypatch):
    """Pages with the specifications of their pictures, but without images and scripts."""
    monkeypatch.setattr(plot_page, "render", lambda kind, *specs: [b""] * len(specs))
    monkeypatch.setattr(plot_page, "scripts", lambda: "")


@pytest.fixture
def quick(monkeypatch, still):
    """Pages without pictures at all, which other tests look at."""
    monkeypatch.setattr(plot_page, "page_charts", lambda result, width: {})


class Reader(HTMLParser):
    """What a page shows, and what it would load."""

    def __init__(self):
        super().__init__()
        self.words, self.loads, self.open, self.headings = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.loads += [value for name, value in attributes if name in ("src", "href", "srcset", "data")]

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.words.append(data)
        if self.open[-1:] == ["h2"]:
            self.headings.append(data)


def read(page):
    reader = Reader()
    reader.feed(page)
    return reader


def test_a_page_needs_no_network_and_is_a_few_megabytes_at_most(page):
    loads = read(page).loads
    assert len(loads) == 2
    assert all(address.startswith("data:image/svg+xml;base64,") for address in loads)
    assert "@import" not in page
    assert "url(" not in page.partition("</style>")[0]
    assert 500_000 < len(page) < 3_000_000
    assert page.count("window.vegaEmbed=") == 1


def test_a_page_tells_its_story_in_order(page):
    reader = read(page)
    words = " ".join(reader.words)
    order = ["Not refuted.", "May I sign?", "Guaranteed", "Predicted", "Found", "How strong", "Clopper-Pearson"]
    assert sorted(order, key=words.index) == order
    assert reader.headings == ["Scores and errors", "To quote"]
    result = fake()
    said = ["7.4", "7.98", "6.89", "≥ 5.62", "95%", "joint over both error rates", "512", "4.93", "23.4", "1.9"]
    said += ["a-priori: chosen before training", "87.32%", "d' = 1.61", "of the ideal 1.47", result.attack, result.data]
    said += ["225 steps", *result.caveats, "does not prove privacy", "does not guarantee"]
    said += ["lastiterate report runs/digits.sqlite --method clopper-pearson --confidence 0.95 --delta 1e-5"]
    for each in said:
        assert each in words


def specs_in(page):
    return json.loads(re.search(r'id="specs">(.*?)</script>', page)[1])


@pytest.mark.usefixtures("still")
def test_the_specifications_in_a_page_are_those_of_the_pictures(tmp_path):
    result = fake(run=QUICK)
    write_page(result, tmp_path / "page.html")
    written = specs_in((tmp_path / "page.html").read_text())
    for place, width in enumerate((446, 330)):
        charts = page_charts(result, width)
        assert written.keys() == charts.keys()
        for name, chart in charts.items():
            assert len(chart.description) > 40
            assert written[name][place] == json.loads(json.dumps(chart.spec))


@pytest.mark.usefixtures("still")
def test_everything_is_escaped(tmp_path):
    evil = "</script><script>alert('x')</script><b a=\"&"
    result = fake(16, run=QUICK)
    texts = dict(attack=evil, data=evil, caveats=(evil,), reason=evil, score_unit=evil)
    predictions = {**result.predictions, "composition": Answer(None, evil)}
    write_page(replace(result, **texts, predictions=predictions, store=Path(f"runs/{evil}")), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "alert('x')</script>" not in page
    assert page.count("<script") == page.count("</script>") == 3
    assert "<b a=" not in page
    assert " ".join(read(page).words).count("alert('x')") >= 5


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", sorted(ODD))
def test_odd_audits_have_a_page(tmp_path, name):
    result = odd(name)
    write_page(result, tmp_path / "page.html")
    words = " ".join(read((tmp_path / "page.html").read_text()).words)
    assert result.headline in words
    assert result.reason in words
    assert ("No limit on what an attacker can learn" in words) == (result.verdict == "violation")
    for method in result.estimates:
        assert METHODS[method].label in words
    assert "nan" not in words.split()
    assert "None" not in words


@pytest.mark.usefixtures("quick")
def test_infinities_and_undefined_signals_are_words(tmp_path):
    write_page(replace(infinite(), run=QUICK, signal=float("nan")), tmp_path / "page.html")
    words = read((tmp_path / "page.html").read_text()).words
    assert "d' is not defined for these scores" in " ".join(words)
    assert "infinite" in words
    assert not {"inf", "nan", "≥ infinite", "≥ 6.1"} & set(words)
