"""Shared by all tests: hypothesis draws the same examples every time, however slow the machine."""

import compileall
import os
import signal
from pathlib import Path

os.environ["LASTITERATE_PROGRESS"] = "0"  # no lines of progress on stderr, however slow the machine
os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads wait for each other busily, and tests run in parallel

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell; programs under test inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "lastiterate",
    deadline=None,
    derandomize=True,
    max_examples=60,
    phases=[Phase.explicit, Phase.generate],  # a failing example is small enough as it is, and shrinking slow
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("lastiterate")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: many tests wait for processes, browsers and clusters."""
    return (os.cpu_count() or 1) + 1


def pytest_configure(config: pytest.Config) -> None:
    """Compile the package once: hundreds of tests begin programs of their own, which may not keep what they compile."""
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(Path(__file__).parents[1] / "src", quiet=1)
