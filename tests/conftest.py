"""Shared by all tests: hypothesis draws the same examples every time, however slow the machine."""

import compileall
import os
import shutil
import signal
import tempfile
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
    max_examples=40,
    phases=[Phase.explicit, Phase.generate],  # a failing example is small enough as it is, and shrinking slow
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("lastiterate")


# Why a test may be skipped in CI, which installs every package; anything else that is not there is an error.
MAY_MISS = ("only root", "no Chromium", "only glibc", "jax-privacy 2.", "pipes with names", "/dev/full", "/proc")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """Fail a skipped test where the environment says ``CI=true``, unless this machine cannot run it."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        why = report.longrepr[2]
        if not any(words in why for words in MAY_MISS):
            report.outcome, report.longrepr = "failed", f"CI has what this test needs, but it was skipped: {why}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: many tests wait for processes, browsers and clusters."""
    return (os.cpu_count() or 1) + 1


def pytest_configure(config: pytest.Config) -> None:
    """Compile the package once: hundreds of tests begin programs of their own, which may not keep what they compile."""
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(Path(__file__).parents[1] / "src", quiet=1)


@pytest.fixture
def forbidding():
    """A folder, and a way to set the mode of paths in it; root, who may do everything, is nobody meanwhile."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    user = os.geteuid()

    def forbid(mode: int, *paths: Path) -> None:
        for path in paths:
            path.chmod(mode)
        if user == 0:
            os.seteuid(65534)

    yield folder, forbid
    os.seteuid(user)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    shutil.rmtree(folder)
