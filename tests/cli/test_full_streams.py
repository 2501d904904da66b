"""Exit statuses if nothing can be written: status 1 means a refuted claim and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
GOOD = ["epsilon", "--steps", "10", "--sample-rate", "0.1", "--noise-multiplier", "1", "--delta", "1e-5"]


@pytest.mark.parametrize(
    ("words", "full", "status"),
    [
        (["epsilon", "--steps", "x"], ["stderr"], 2),
        (["no-such-command"], ["stderr"], 2),
        (GOOD, ["stdout"], 3),
        ([*GOOD, "--json"], ["stdout", "stderr"], 3),
        (["--help"], ["stdout", "stderr"], 3),
        (GOOD, ["stderr"], 0),
    ],
)
def test_a_full_stream_never_looks_like_a_refuted_claim(words, full, status):
    with FULL.open("w") as nowhere:
        streams = dict.fromkeys(full, nowhere)
        others = {name: subprocess.DEVNULL for name in ("stdout", "stderr") if name not in full}
        ended = subprocess.run([sys.executable, "-m", "lastiterate", *words], check=False, **streams, **others)
    assert ended.returncode == status


@pytest.mark.parametrize("value", ["x" * 100_000, "x y " * 25_000])
@pytest.mark.parametrize("words", [["epsilon", "--steps"], ["audit", "--data"], ["audit", "--attack"], ["report"]])
def test_long_values_are_cut_in_messages(words, value):
    ended = subprocess.run(
        [sys.executable, "-m", "lastiterate", *words, value], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 2
    assert 200 < len(ended.stderr) < 800
