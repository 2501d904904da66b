"""One cluster of this machine for all tests. Trainers leave notes in files, as they run in other processes."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import warnings

import jax
import numpy as np
import pytest

import lastiterate as li
from lastiterate import attacks
from lastiterate.auditing.audit_target import find_subject
from lastiterate.auditing.engines.ray_driver import WorkerDied
from lastiterate.auditing.engines.ray_engine import Ray
from lastiterate.auditing.engines.ray_worker import import_ray
from lastiterate.auditing.experiments.user_trainer import trainer_seed
from lastiterate.common.errors import TrainingDiverged
from lastiterate.data import digits
from lastiterate.training import problems

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning", "ignore:os.fork")

RUN = li.DPSGD(steps=12, sample_rate=0.1, noise_multiplier=1.0, optimizer=li.SGD(0.02, momentum=0.9))


@pytest.fixture(scope="module", autouse=True)
def ray():
    found = import_ray()
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patched:
        warnings.simplefilter("ignore")
        patched.delenv("OMP_NUM_THREADS", raising=False)  # of the tests; Ray's workers get their own
        found.init(address="local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
    yield found
    found.shutdown()


def gaussian(seed, canary):
    return np.random.default_rng(seed).standard_normal() + 2.0 * canary


class Noted:
    """A trainer that writes down each call, and each arrival in another process."""

    def __init__(self, folder, seconds=0.0):
        self.folder, self.seconds = folder, seconds

    def __call__(self, seed, canary):
        self.note("calls")
        time.sleep(self.seconds)
        return gaussian(seed, canary)

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.note("arrivals")

    def note(self, name):
        with (self.folder / name).open("a") as file:
            file.write(f"{os.getpid()}\n")

    def noted(self, name):
        return (self.folder / name).read_text().split()


class Killed(Noted):
    """Its process dies in mid-audit: once, or whenever it trains that model."""

    always = False

    def __call__(self, seed, canary):
        if seed == trainer_seed(0, 4, True) and (self.always or not (self.folder / "killed").exists()):
            self.note("killed")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(seed, canary)


class AlwaysKilled(Killed):
    always = True


class Broken(Noted):
    def __call__(self, seed, canary):
        super().__call__(seed, canary)
        raise ValueError(f"no model has seed {seed}")


def audit(problem, attack=None, models=24, run=RUN, **options):
    return li.audit(run, problem, attack, models, methods=["clopper-pearson"], threshold=0.0, **options)


def both(problem, attack=None):
    return audit(problem, attack, engine="local"), audit(problem, attack, engine="ray")


def assert_agree(local, ray):
    # Other processes, but the same program on the same machine: what may differ is how sums are split over threads.
    np.testing.assert_allclose(ray.scores_in, local.scores_in, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ray.scores_out, local.scores_out, rtol=1e-4, atol=1e-5)
    assert len(ray.scores_in) == len(ray.scores_out) == 24


def trials(path):
    query = "SELECT model, world, score FROM trials ORDER BY model, world"
    return sqlite3.connect(path).execute(query).fetchall()


@pytest.mark.parametrize(
    "attack",
    [attacks.GradientSpace("quiet", references=4), attacks.AllIterates("zero"), attacks.Adversarial("exact")],
    ids=["quiet", "all-iterates", "exact"],
)
def test_both_engines_agree(attack):
    local, ray = both(problems.logistic(digits()), attack)
    assert_agree(local, ray)
    assert (local.accuracy is None) == (ray.accuracy is None)


def test_workers_are_as_precise_as_the_driver():
    with jax.enable_x64(True):
        local, ray = both(None, attacks.Adversarial("trained"))
    np.testing.assert_allclose(ray.scores_in, local.scores_in, rtol=1e-12)
    assert not np.array_equal(local.scores_in, local.scores_in.astype(np.float32))


def test_both_engines_agree_on_a_trainer_of_the_users():
    assert_agree(*both(gaussian))


def test_both_engines_agree_on_a_trainer_from_a_session():
    namespace = {"__name__": "__main__"}
    exec("import random\ndef train(seed, canary):\n    return random.Random(seed).random() + canary", namespace)
    assert_agree(*both(namespace["train"]))


def test_a_trainers_file_need_not_be_on_other_machines(tmp_path):
    file = tmp_path / "somewhere_else.py"
    file.write_text(
        "import numpy as np\nOFFSET = np.array([2.0, 0.0])\n"
        "def train(seed, canary):\n    return np.random.default_rng(seed).standard_normal(2) + canary * OFFSET\n"
    )
    trainer = find_subject("", "", f"{file}:train", lambda _: RUN).problem
    assert_agree(*both(trainer, attacks.Displacement(np.array([1.0, 0.0]))))


def test_a_killed_worker_costs_time_and_nothing_else(tmp_path):
    trainer = Killed(tmp_path, seconds=0.02)
    found = audit(trainer, None, 24, store=tmp_path / "x.sqlite", engine="ray")
    assert len(trainer.noted("killed")) == 1
    assert len(trials(tmp_path / "x.sqlite")) == 48  # model and world are the table's key: none is there twice
    assert_agree(audit(gaussian, None, 24), found)


def test_a_model_whose_process_dies_every_time_is_named_after_the_retries(tmp_path):
    trainer = AlwaysKilled(tmp_path)
    with pytest.raises(WorkerDied, match="ended, each of 3 times, by an exit, a crash or a kill") as caught:
        audit(trainer, None, 8, store=tmp_path / "x.sqlite", engine=Ray(retries=2))
    assert "the trainer failed on model 4 of world 'in': " in caught.value.__notes__[0]
    assert "of 16 trials are stored in" in caught.value.__notes__[0]
    assert len(trainer.noted("killed")) == 3


def test_what_a_trainer_raises_is_raised_here_and_final(tmp_path):
    trainer = Broken(tmp_path)
    with pytest.raises(ValueError, match="no model has seed") as caught:
        audit(trainer, None, 1, engine="ray")
    assert type(caught.value) is ValueError
    assert str(caught.value) in {f"no model has seed {trainer_seed(0, 0, present)}" for present in (False, True)}
    assert "in __call__" in caught.value.__notes__[0]
    assert caught.value.__cause__ is None
    assert len(trainer.noted("calls")) <= 2


def test_divergence_in_a_worker_is_told_as_if_it_were_here():
    run = RUN.replace(optimizer=li.SGD(1e38))
    with pytest.raises(TrainingDiverged, match=r"^model \d+ \(with(out)? canary\) has parameters that are not finite"):
        audit(None, attacks.Adversarial("trained"), 4, run, engine="ray")


def test_a_trainer_that_cannot_be_sent_is_one_sentence():
    lock = threading.Lock()
    with pytest.raises(ValueError, match="must be picklable, to be sent to other processes"):
        audit(lambda seed, canary: lock, None, 2, engine="ray")


def test_a_job_arrives_once_at_a_worker(tmp_path):
    trainer = Noted(tmp_path)
    audit(trainer, None, 20, engine="ray")
    assert len(trainer.noted("calls")) == 40
    assert len(trainer.noted("arrivals")) <= 2 * len(set(trainer.noted("arrivals")))  # to say its chunk size, too


def test_a_trainer_may_write_to_its_arrays():
    state = np.zeros(3)

    def trainer(seed, canary):
        state[0] += 1.0
        return gaussian(seed, canary)

    assert_agree(*both(trainer))


def test_ctrl_c_begins_no_more_tasks_and_the_same_call_resumes(tmp_path):
    path = tmp_path / "x.sqlite"
    trainer = Noted(tmp_path, seconds=0.1)

    def interrupt():
        while not (path.exists() and len(trials(path)) >= 4):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        audit(trainer, None, 24, store=path, engine="ray")
    kept = trials(path)
    assert 4 <= len(kept) < 24
    time.sleep(0.5)
    called = len(trainer.noted("calls"))
    time.sleep(0.5)
    assert len(trainer.noted("calls")) == called
    found = audit(trainer, None, 24, store=path, engine="ray")
    assert set(kept) < set(trials(path))
    assert_agree(audit(gaussian, None, 24), found)


def test_what_one_engine_began_the_other_finishes(tmp_path):
    path = tmp_path / "x.sqlite"

    def trainer(seed, canary):
        if seed == trainer_seed(0, 10, False) and not (tmp_path / "stopped").exists():
            (tmp_path / "stopped").touch()
            raise RuntimeError("stopped")
        return gaussian(seed, canary)

    with pytest.raises(RuntimeError, match="stopped"):
        audit(trainer, None, 24, store=path)
    assert 0 < len(trials(path)) < 48
    assert_agree(audit(gaussian, None, 24), audit(trainer, None, 24, store=path, engine="ray"))


def test_gpus_and_cores_of_a_task_can_be_set():
    def trainer(seed, canary):
        import os

        return float(len(os.environ.get("CUDA_VISIBLE_DEVICES", ""))) + 10.0 * float(os.environ["OMP_NUM_THREADS"])

    assert set(audit(trainer, None, 2, engine=Ray(gpus=0.5, cpus=2)).scores_in) == {21.0}


@pytest.mark.parametrize("asked", [dict(gpus=2), dict(cpus=3)])
def test_a_task_that_fits_nowhere_is_refused(asked):
    with pytest.raises(ValueError, match="must need at most the 2 CPUs and 1 GPUs of the cluster"):
        audit(gaussian, None, 2, engine=Ray(**asked))


def test_a_cluster_that_was_there_is_left_as_it_is(ray):
    before = ray.get_runtime_context().get_job_id()
    audit(gaussian, None, 2, engine="ray")
    assert ray.is_initialized()
    assert ray.get_runtime_context().get_job_id() == before


def test_a_missing_ray_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r'pip install "lastiterate\[ray\]"$'):
        audit(gaussian, None, 2, engine="ray")


TRAINER = """
import os, pathlib, random, signal, sys
import lastiterate
run = lastiterate.DPSGD(steps=10, sample_rate=0.1, noise_multiplier=1.0)
NOTES = pathlib.Path({folder!r})

def train(seed, canary):
    (NOTES / "parent").write_text(str(os.getppid()))
    if seed == {killer} and not (NOTES / "killed").exists():
        (NOTES / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    print("noise")
    print("noise", file=sys.stderr)
    return random.Random(seed).gauss(2.0 * canary, 1.0)
"""


def command(folder, *options):
    (folder / "mine.py").write_text(TRAINER.format(folder=str(folder), killer=trainer_seed(0, 4, True)))
    audit = [sys.executable, "-m", "lastiterate", "audit", "--trainer", "mine.py:train", "--models", "12", "--json"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.run(
        [*audit, "--engine", "ray", *options], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


def test_the_command_starts_a_cluster_is_silent_about_it_and_ends_it(tmp_path):
    found = command(tmp_path, "--address", "local")
    assert found.returncode == 0, found.stderr
    assert found.stderr == ""
    assert json.loads(found.stdout)["models"] == 12
    assert (tmp_path / "killed").exists()
    raylet = int((tmp_path / "parent").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(raylet, 0)


def test_an_address_that_does_not_answer_is_one_sentence_at_once(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    began = time.monotonic()
    found = command(tmp_path, "--address", address)
    assert time.monotonic() - began < 20.0
    assert found.returncode == 2
    assert found.stderr == (
        f"address must be the address of a Ray cluster, but nothing answers at {address!r}: Connection refused\n"
    )
    assert found.stdout == ""
