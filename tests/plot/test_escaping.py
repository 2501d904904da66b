"""Hostile texts are drawn, and do nothing: rendered for real."""

import json
import re
from dataclasses import replace
from html import unescape

import pytest

from lastiterate.formatting import printable
from lastiterate.plot.audit_charts import audit_chart
from lastiterate.plot.chart_file import PictureFailed, render, save
from lastiterate.plot.page import write_page
from lastiterate.plot.page_assets import harmless
from tests.plot.test_audit_charts import QUICK, fake

HOSTILE = [
    'quo"ted',
    "back\\slash",
    'out \\" + warn("x") + \\"',
    "ends with \\",
    "${datum.x} {{y}} datum['a.b[0]']",
    "lines\nand\ttabs\r\u2028\u2029end",
    "\x00\x07\x1b[31m\x7f\x9b",
    "\ud800 \ufffe \uffff",
    "</script><script>alert(1)</script><!--",
    "&amp; <b> ]]> '",
    "z̷̧\u202eא😀",
]


def spec_of(text):
    encoding = {
        "x": {"field": "a", "type": "quantitative", "title": text},
        "y": {"field": "n", "type": "nominal", "title": [text, text], "axis": {"labelLimit": 0}},
        "color": {"field": "n", "type": "nominal", "title": text},
        "tooltip": [{"field": "n", "type": "nominal", "title": text}],
    }
    data = {"values": [{"a": 1, "n": text}]}
    mark = {"type": "bar", "tooltip": True}
    return {"data": data, "mark": mark, "encoding": encoding, "title": {"text": text, "subtitle": [text]}}


def test_every_hostile_text_is_drawn_as_it_is():
    images = render("svg", *(harmless(spec_of(text)) for text in HOSTILE))
    for text, image in zip(HOSTILE, images, strict=True):
        drawn = re.sub(" +", " ", unescape(image.decode()))
        shown = re.sub(" +", " ", printable(text))
        assert drawn.count(f">{shown}<") >= 6, text  # title, subtitle, axes, legend and its label
        assert f'aria-label="{shown}: 1; {shown}, {shown}: {shown}' in drawn  # by an expression of Vega-Lite


def test_a_title_with_a_backslash_would_otherwise_end_its_expression():
    with pytest.raises(PictureFailed, match="parse error"):
        render("svg", spec_of(HOSTILE[2]))


def test_a_control_character_would_otherwise_end_the_process_that_draws_and_is_a_sentence():
    with pytest.raises(PictureFailed, match="ended by SIGABRT"):
        render("png", spec_of("\x1b"))


def test_a_hostile_audit_becomes_a_picture_and_a_page(tmp_path):
    text = " ".join(HOSTILE)
    result = replace(fake(16, run=QUICK), attack=text, data=text, score_unit=text, reason=text, caveats=(text,))
    save(audit_chart(result), tmp_path / "audit.png")
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")
    write_page(result, tmp_path / "page.html")
    save(audit_chart(result), tmp_path / "chart.html")
    for name, identity in {"page.html": "specs", "chart.html": "spec"}.items():
        page = (tmp_path / name).read_text()
        assert page.count("<script") == page.count("</script>") == 3
        assert not set("\x00\x07\x1b\x7f\x9b\ud800") & set(page)
        assert json.loads(re.search(rf'id="{identity}">(.*?)</script>', page)[1])
