"""One cluster of this machine for all tests. Trainers leave notes in files, as they run in other processes."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest

import lastiterate as li
from lastiterate import attacks
from lastiterate.auditing.engines.ray_driver import WorkerDied
from lastiterate.auditing.engines.ray_engine import Ray
from lastiterate.auditing.engines.ray_worker import import_ray
from lastiterate.auditing.experiments.user_trainer import trainer_seed
from lastiterate.data import digits
from lastiterate.training import problems

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


def test_both_engines_agree_on_a_trainer_of_the_users():
    assert_agree(*both(gaussian))


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
