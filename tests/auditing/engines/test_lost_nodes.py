"""A cluster of several nodes on this machine: other programs on a node, lost nodes, a lost head, signals."""

import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import lastiterate as li
from lastiterate.auditing.engines.ray_driver import check_answer, connect
from lastiterate.auditing.engines.ray_engine import Ray
from tests.tools.lost_nodes import QUICK, Nodes, finish, start, survive, wait_for_trials, write_subject

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning", "ignore:os.fork")

RUN = li.DPSGD(steps=12, sample_rate=0.1, noise_multiplier=1.0)
SOURCE = Path(li.__file__).parents[1]


@pytest.fixture(scope="module")
def nodes():
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("OMP_NUM_THREADS", raising=False)  # of the tests; Ray's workers get their own
        patched.setenv("PYTHONPATH", str(SOURCE))
        for name, value in QUICK.items():
            patched.setenv(name, value)
        found = Nodes()
        yield found
        found.close()


@contextmanager
def one_more(nodes, *path):
    node = nodes.add(os.pathsep.join(map(str, path)))
    try:
        yield
    finally:
        nodes.remove(node)


@pytest.fixture(scope="module")
def other_lastiterate(tmp_path_factory):
    """The folder of a copy whose scores could be others."""
    folder = tmp_path_factory.mktemp("other")
    shutil.copytree(SOURCE / "lastiterate", folder / "lastiterate")
    with (folder / "lastiterate" / "run.py").open("a") as file:
        file.write("\n# another one\n")
    return folder


def audit(nodes, trainer, models=4, store=None):
    engine = Ray(address=nodes.address)
    return li.audit(RUN, trainer, None, models, store=store, engine=engine, methods=["clopper-pearson"], threshold=0.0)


def test_a_node_with_another_lastiterate_is_refused_before_the_first_task(nodes, other_lastiterate, tmp_path):
    def trainer(seed, canary):
        (tmp_path / "called").touch()
        return float(canary)

    with (
        one_more(nodes, other_lastiterate),
        pytest.raises(ValueError, match=r"^node .* must have the lastiterate of this process, \S+ with sources \w{16}"),
    ):
        audit(nodes, trainer, store=tmp_path / "x.sqlite")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def with_helper(tmp_path, monkeypatch):
    """A trainer that imports a module from beside it, and a folder with another module of that name."""
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for folder, shift in ((mine, 0.0), (theirs, 100.0)):
        folder.mkdir()
        (folder / "shifted_by.py").write_text(f"SHIFT = {shift}\ndef shifted(x):\n    return x + SHIFT\n")
    (mine / "its_trainer.py").write_text(
        "from shifted_by import shifted\ndef train(seed, canary):\n    return shifted(seed % 7)\n"
    )
    monkeypatch.syspath_prepend(mine)
    yield importlib.import_module("its_trainer").train, theirs
    for name in ("its_trainer", "shifted_by"):
        sys.modules.pop(name, None)


def test_what_a_trainer_imports_must_be_the_same_on_every_node(nodes, with_helper):
    trainer, theirs = with_helper
    assert max(audit(nodes, trainer).scores_in) < 7.0
    said = r"^node .* must have the same module 'shifted_by' as this process, with digest"
    with one_more(nodes, SOURCE, theirs), pytest.raises(ValueError, match=said):
        audit(nodes, trainer)


def test_an_audit_survives_a_lost_node(nodes, tmp_path):
    assert survive(nodes, "trainer", "node", tmp_path).startswith("the audit went on")


def test_a_lost_head_is_one_sentence_and_status_3_and_the_audit_resumes(nodes, tmp_path):
    came = survive(nodes, "trainer", "head", tmp_path)  # the last one: now there is no cluster
    assert came.startswith("status 3 (Ray's cluster was lost")
    assert came.endswith("resumed, scores are those of the local engine")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_nothing_of_ray_is_left_of_an_audit_that_was_ended(number, status, tmp_path):
    options, store = write_subject("trainer", tmp_path), tmp_path / "x.sqlite"
    with (tmp_path / "mine.py").open("a") as file:
        file.write(f"""
import os, pathlib
def train(seed, canary):
    pathlib.Path({str(tmp_path)!r}, "session").write_text(str(os.getsid(0)))
    time.sleep(0.15)
    return float(canary)
""")
    audit = start(tmp_path, options, store, "--engine", "ray", "--address", "local")
    wait_for_trials(audit, store, 2)
    audit.send_signal(number)
    said = finish(audit, status)
    if number == signal.SIGTERM:
        assert said == f"stopped; the scores so far are in {store}: the same command resumes\n"
    session = (tmp_path / "session").read_text()
    until = time.monotonic() + 20.0
    while (left := subprocess.run(["pgrep", "-a", "-s", session], capture_output=True, text=True).stdout) and (
        time.monotonic() < until
    ):
        time.sleep(0.2)
    assert left == ""


def test_a_head_that_only_its_own_machine_reaches_is_explained(monkeypatch):
    """Ray replaces 127.0.0.1 by the machine's address, and would look there for half a minute."""
    import ray

    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.2")  # where nobody listens

    def answer(listening):
        with listening.accept()[0] as asked:
            asked.sendall(b"\0\0\0\x04\0\0\0\0\0")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=answer, args=(listening,), daemon=True).start()
        port = listening.getsockname()[1]
        words = rf"Ray replaces it by '127\.0\.0\.2', where this cluster does not listen\. .* --port={port}`$"
        with pytest.raises(ValueError, match=words):
            check_answer(f"127.0.0.1:{port}")


def test_a_cluster_with_a_token_is_explained(monkeypatch):
    import ray

    def fail(**options):
        raise ConnectionError("Failed to connect")

    monkeypatch.setattr(ray, "init", fail)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    words = r"Failed to connect\. If the cluster needs a token, .* set RAY_AUTH_MODE=token$"
    with pytest.raises(ValueError, match=words):
        connect("192.0.2.7:6379")
