"""The picture of several audits has a bar for each, whatever they found."""

import json
import math
from dataclasses import replace

import pytest

import lastiterate as li
from lastiterate.auditing.evidence.audit_comparison import ComparedAudit, comparison_table
from lastiterate.plot.chart_file import save
from lastiterate.plot.epsilons import comparison_chart


@pytest.fixture(scope="module")
def result():
    return li.audit(li.DPSGD(100, 0.1, 1.0), None, "adversarial", 200, methods=["clopper-pearson", "gdp"])


def changed(result, **epsilons):
    found = {name: replace(each, epsilon=epsilons.get(name, each.epsilon)) for name, each in result.estimates.items()}
    return replace(result, estimates=found)


def test_infinite_epsilons_and_signals_without_a_value_are_drawn(result, tmp_path):
    odd = replace(changed(result, gdp=math.inf), signal=math.nan, seconds=0.0)
    audits = [ComparedAudit("plain", result), ComparedAudit("odd", odd, ("data",))]
    spec = json.dumps(comparison_chart(audits).to_dict(), allow_nan=False)
    assert '"text": "infinite"' in spec
    assert '"text": "no value"' in spec
    save(comparison_chart(audits), tmp_path / "p.svg")
    assert "odd*: inconclusive" in (tmp_path / "p.svg").read_text(encoding="utf-8")
    assert "inf" in str(comparison_table(audits, details=True))
