"""A short form of ``python -m tests.reliability``: some cases of each part that no other test has (about a minute)."""

import signal
import sys

import pytest

from tests import reliability
from tests.auditing.stores.test_lost import log_removed, moved, replaced_by_a_store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")


@pytest.mark.parametrize(
    "part",
    [
        lambda: reliability.kills(2, seed=2, shares={"trainer": 1, "exact draws": 1}),
        lambda: reliability.signals(
            seed=2, numbers=[signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP], repeat=1, elsewhere=0
        ),
        lambda: reliability.losses(seed=2, kinds=[replaced_by_a_store, moved, log_removed]),
        lambda: reliability.disks(seed=2, count=2),
        lambda: reliability.writers(count=1),
        lambda: reliability.clocks(kinds=("trainer",)),
    ],
    ids=["kills", "signals", "losses", "disks", "writers", "clocks"],
)
def test_nothing_is_lost_and_nothing_left(part):
    rows = part()
    assert [failure for row in rows for failure in row.failures] == []
    assert all(row.cases or row.skipped for row in rows)


def test_what_fails_is_counted_and_shown():
    row = reliability.Row("a part", "what was checked")
    for name, held in (("good", True), ("bad", False)):
        with row.case(name):
            assert held, "no"
    assert (row.cases, len(row.failures), row.outcome) == (2, 1, "1 FAILED")
    assert "FAILED a part, bad: AssertionError" in reliability.table([row])
