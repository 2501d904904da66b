"""Tables as text."""

import pytest

from lastiterate.formatting import Table


@pytest.mark.parametrize("width", range(40, 100, 3))
def test_short_words_are_never_cut(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    header = ("audit", "signal", "clopper- pearson", "gdp", "composition", "models", "seconds", "verdict")
    rows = [["a (anytime)", "0.704", "0", "0", "0", "200", "1", "consistent"], ["b", *"1234567"]]
    text = str(Table("two audits", header, rows, set(range(1, 7))))
    assert "consistent" in text
    assert "(anytime)" in text
    assert "models" in text
