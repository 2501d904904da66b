"""A check as a JUnit file, which continuous integration shows: one test case a row."""

from __future__ import annotations

from xml.etree import ElementTree

from lastiterate.checking.result import CheckResult
from lastiterate.wording import printable


def junit(result: CheckResult) -> bytes:
    """A fault is a failure; what cannot be told, or was not checked, is skipped, and says which of the two."""
    skipped = [row for row in result.rows if row.status in ("cannot tell", "not checked")]
    counts = {"tests": len(result.rows), "failures": len(result.faults), "errors": 0, "skipped": len(skipped)}
    suite = ElementTree.Element("testsuite", {"name": "lastiterate check", **{k: str(v) for k, v in counts.items()}})
    for row in result.rows:
        name = printable(f"{row.name}: {row.tensor}" if row.tensor else row.name)
        case = ElementTree.SubElement(suite, "testcase", {"classname": "lastiterate.check", "name": name})
        numbers = f"measured {row.measured}, declared {row.declared}, interval {row.low} to {row.high}"
        message = printable(f"{row.status}: {row.advice}")
        if row.status == "fault":
            ElementTree.SubElement(case, "failure", {"message": message}).text = numbers
        elif row.status != "ok":
            ElementTree.SubElement(case, "skipped", {"message": message})
    written: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return written
