"""The real command, in processes of its own, and what is in its store after it was stopped in every way."""

import signal
import time

import pytest

from tests.tools.kill_and_resume import OPTIONS, TRAINER, compare, finish, run_killed, run_undisturbed, start, trials

SMALL = [*OPTIONS, "--models", "96", "--steps", "200"]
QUICK = ["--method", "clopper-pearson"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("audits")


@pytest.fixture(scope="module")
def undisturbed(folder):
    return run_undisturbed(folder, SMALL)


@pytest.fixture
def slow(tmp_path):
    """Options of an audit that is quick to start and takes its time."""
    (tmp_path / "slow.py").write_text(TRAINER)
    return ["audit", "--trainer", f"{tmp_path / 'slow.py'}:train", "--models", "40", *QUICK]


def wait_for_trials(audit, store, count=1):
    while len(trials(store)) < count:
        assert audit.poll() is None, audit.communicate()
        time.sleep(0.02)


def test_an_audit_that_was_killed_twice_equals_an_undisturbed_one(folder, undisturbed):
    store, kills = run_killed(folder, SMALL, undisturbed, 2, seed=0)
    assert len(kills) == 2
    compare(undisturbed.store, store)


def test_ctrl_c_says_how_to_resume_and_the_same_command_does(tmp_path, slow):
    store, untouched = tmp_path / "x.sqlite", tmp_path / "untouched.sqlite"
    audit = start(store, slow, tmp_path)
    wait_for_trials(audit, store, 5)
    audit.send_signal(signal.SIGINT)
    output, errors = audit.communicate()
    assert audit.returncode == 130
    assert output == ""
    assert errors.strip() == f"stopped; the scores so far are in {store}: the same command resumes"
    kept = trials(store)
    assert 5 <= len(kept) < 80
    finish(start(store, slow, tmp_path))
    finish(start(untouched, slow, tmp_path))
    assert set(kept) < set(trials(store))
    compare(untouched, store, *QUICK)


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_ctrl_c_while_it_starts_is_no_traceback_and_leaves_nothing_damaged(tmp_path, undisturbed, share):
    """How far it is by then depends on the machine; it may even be done."""
    store = tmp_path / "x.sqlite"
    audit = start(store, SMALL, tmp_path)
    time.sleep(share * undisturbed.start_up)
    audit.send_signal(signal.SIGINT)
    _, errors = audit.communicate()
    assert audit.returncode in (0, 130, -signal.SIGINT)
    assert "Traceback" not in errors
    assert not store.exists() or set(trials(store)) <= set(trials(undisturbed.store))
