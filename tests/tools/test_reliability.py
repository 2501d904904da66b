"""A short form of ``python -m tests.tools.reliability``: some cases of each part, about a minute."""

import signal
import sys

import pytest

from tests.auditing.stores.test_lost import folder_gone, log_removed, moved, replaced_by_a_store
from tests.tools import reliability

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")


@pytest.mark.parametrize(
    "part",
    [
        lambda: reliability.kills(3, seed=2, shares={"trainer": 1, "exact draws": 1, "shipped model": 1}),
        lambda: reliability.signals(
            seed=2, numbers=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP], repeat=1, elsewhere=0
        ),
        lambda: reliability.losses(seed=2, kinds=[replaced_by_a_store, moved, folder_gone, log_removed]),
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
