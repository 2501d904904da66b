"""Kill nodes, the head and the services of a Ray cluster under audits, and see what is left of these."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np

import lastiterate
from tests.tools import kill_and_resume
from tests.tools.kill_and_resume import trials

SOURCE = str(Path(lastiterate.__file__).parents[1])
TRAINER = """
import random, time
import lastiterate
run = lastiterate.DPSGD(steps=10, sample_rate=0.1, noise_multiplier=1.0)

def train(seed, canary):
    print("noise")
    time.sleep(0.15)
    return random.Random(seed).gauss(2.0 * canary, 1.0)
"""
RUN = ["--sample-rate", "0.2", "--noise-multiplier", "1"]
# Seconds instead of a minute until a lost head is noticed, and instead of a quarter of one for a lost node.
QUICK = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5", "RAY_health_check_period_ms": "1000"}
PATIENT = {"RAY_raylet_start_wait_time_s": "300"}  # on a machine that does other things as well


class Nodes:
    """A cluster of this machine: a head that computes nothing, and two nodes of a core."""

    def __init__(self) -> None:
        os.environ.update(QUICK | PATIENT, PYTHONPATH=SOURCE)  # which Ray's processes read
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.address = str(self._cluster.address)
        self.nodes = [self.add(), self.add()]

    def add(self, path: str | None = None):
        """One more node, whose workers import from another place."""
        return self._cluster.add_node(num_cpus=1, wait=True, env_vars={"PYTHONPATH": path} if path else None)

    def harm(self, what: str) -> None:
        """Kill something with signal 9."""
        head = self._cluster.head_node
        if what == "node":
            kill_with_children(self.nodes.pop().all_processes["raylet"][0].process.pid)
        elif what == "own raylet":
            kill_process(head.all_processes["raylet"][0].process.pid)
        elif what == "gcs":
            kill_process(head.all_processes["gcs_server"][0].process.pid)
        else:
            for processes in list(head.all_processes.values()):
                kill_with_children(processes[0].process.pid)

    def remove(self, node) -> None:
        """Take a node away that nobody misses."""
        self._cluster.remove_node(node, allow_graceful=True)

    def close(self) -> None:
        for node in [self._cluster.head_node, *self._cluster.worker_nodes]:
            node.kill_all_processes(check_alive=False, allow_graceful=False)


def kill_process(process: int) -> None:
    os.kill(process, signal.SIGKILL)


def kill_with_children(process: int) -> None:
    """All at once, as if the machine had gone."""
    children = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True).stdout.split()
    for each in [process, *map(int, children)]:
        try:
            kill_process(each)
        except ProcessLookupError:
            continue


def write_subject(kind: str, folder: Path) -> list[str]:
    """What there is to audit, and the command that audits it."""
    if kind == "trainer":
        (folder / "mine.py").write_text(TRAINER)
        return ["audit", "--trainer", "mine.py:train", "--models", "24"]
    if kind == "digits":
        return ["audit", "--model", "logistic", "--steps", "30", *RUN, "--models", "96"]
    from tests.lm.conftest import SPOKEN, build

    rng = np.random.default_rng(5)
    texts = [" ".join(rng.choice(SPOKEN, 6)) for _ in range(40)]
    (folder / "texts.txt").write_text("\n".join(texts) + "\n")
    build(folder / "model", "Llama", tie_word_embeddings=True)
    return ["audit-lm", "--model", "model", "--text", "texts.txt", "--steps", "20", *RUN, "--models", "5"]


def start(folder: Path, options: list[str], store: Path, *more: str) -> subprocess.Popen[str]:
    os.environ.pop("RAY_ADDRESS", None)
    environment = {**QUICK, "PYTHONPATH": SOURCE}
    return kill_and_resume.start(store, [*options, *more], folder / "cache", cwd=folder, env=environment)


def finish(audit: subprocess.Popen[str], status: int = 0) -> str:
    """What an audit says on stderr, once it has ended with this status."""
    try:
        _, said = audit.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        audit.kill()
        raise AssertionError("the audit does not end") from None
    assert audit.returncode == status, f"status {audit.returncode}: {said}"
    return said


def wait_for_trials(audit: subprocess.Popen[str], store: Path, count: int) -> None:
    while audit.poll() is None and len(trials(store)) < count:
        time.sleep(0.05)
    assert audit.poll() is None, f"the audit ended before the harm: {audit.communicate()}"


def assert_same(store: Path, other: Path) -> None:
    """The same trials, with equal scores up to how sums are split over threads and chunks."""
    one, two = trials(store), trials(other)
    assert [row[:2] for row in one] == [row[:2] for row in two]
    np.testing.assert_allclose([row[2] for row in one], [row[2] for row in two], rtol=1e-3, atol=1e-4)


def survive(nodes: Nodes, kind: str, harm: str, folder: Path) -> str:
    """Do this harm to an audit of this kind, and compare with one that nobody touched; says what came of it."""
    options = write_subject(kind, folder)
    local, store = folder / "local.sqlite", folder / "ray.sqlite"
    finish(start(folder, options, local))
    audit = start(folder, options, store, "--engine", "ray", "--address", nodes.address)
    wait_for_trials(audit, store, 1)
    nodes.harm(harm)
    if harm == "node":
        said = finish(audit)
        assert said == "", said
        assert_same(store, local)
        return "the audit went on; scores are those of the local engine"
    said = finish(audit, 3)
    kept, planned = len(trials(store)), len(trials(local))
    assert 0 < kept < planned
    assert re.fullmatch(rf"Ray's cluster was lost: .*; {kept} of {planned} trials are stored in .*ray.sqlite\n", said)
    said_here = finish(start(folder, options, store))
    assert set(said_here.splitlines()) <= {"noise"}, said_here  # of the trainer, which Ray keeps to itself
    assert_same(store, local)
    return f"status 3 ({said.strip()}); resumed, scores are those of the local engine"
