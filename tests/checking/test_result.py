"""A result as a table, as JSON, as a JUnit file and as a picture."""

import json
from xml.etree import ElementTree

import pytest

from lastiterate.checking.check_result import CheckResult, Row, cannot_tell, junit, not_checked
from tests.tools.trainers import short

OK = Row("noise", "w\x1b[31m", 1.0, 1.0, 0.9, 1.1, "ok", "", "noise x 0.8")
FAULT = Row("clipping norm", None, 1.5, 1.0, 1.5, float("inf"), "fault", "look here")
UNKNOWN = cannot_tell("participation", 0.1, "too few", "56 models")
UNASKED = not_checked("size of steps", "no weights")


def _result(*rows):
    return CheckResult(short(), rows, 16, 1e-3)


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ((OK, UNASKED), "ok"),
        ((OK, UNKNOWN), "cannot tell"),
        ((UNKNOWN, FAULT, OK), "fault"),
        ((UNASKED,), "not checked"),
    ],
)
def test_a_fault_wins_over_what_cannot_be_told_and_rows_not_checked_do_not_count(rows, verdict):
    result = _result(*rows)
    assert result.verdict == verdict
    assert result.passed is (verdict == "ok")
    assert result.faults == tuple(row for row in rows if row is FAULT)


def test_the_summary_counts_what_passed_and_names_what_was_not_decided():
    assert _result(OK, UNASKED).sentence == "All 1 checks passed."
    assert _result(OK, UNKNOWN).sentence == "1 passed, 1 could not be decided: participation (needs 56 models)."
    assert _result(OK, FAULT, UNKNOWN).sentence == "1 of 3 checks found a fault: clipping norm."
    assert _result(UNASKED).sentence == "Nothing could be checked."


def test_the_smallest_fault_is_in_table_json_and_junit():
    result = _result(OK)
    assert "noise x 0.8" in str(result)
    assert result.to_dict()["rows"][0]["smallest_fault"] == "noise x 0.8"
    assert b"would have found: noise x 0.8" in junit(result)


def test_json_has_every_row_and_no_infinity():
    fields = json.loads(json.dumps(_result(OK, FAULT, UNKNOWN).to_dict(), allow_nan=False))
    assert fields["passed"] is False
    assert fields["rows"][1]["high"] is None
    assert [row["name"] for row in fields["faults"]] == ["clipping norm"]
    known = {"name", "tensor", "measured", "declared", "low", "high", "status", "smallest_fault", "needs", "advice"}
    assert set(fields["rows"][0]) == known


def test_a_junit_file_has_a_case_for_every_row():
    suite = ElementTree.fromstring(junit(_result(OK, FAULT, UNKNOWN, UNASKED)))
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4",
        "failures": "1",
        "errors": "0",
        "skipped": "2",
    }
    assert suite.find("testcase/failure").get("message") == "fault: look here"
    assert [each.get("message") for each in suite.iter("skipped")] == [
        "cannot tell: too few",
        "not checked: no weights",
    ]
