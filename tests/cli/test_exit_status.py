"""Every exit status, each from a real process: 1 means refuted and nothing else, 0 means judged."""

import os
import subprocess
import sys

import pytest

TRAINERS = """
import os, sys
import numpy as np
import lastiterate as li

run = li.DPSGD(steps=30, sample_rate=0.1, noise_multiplier=1.0)
calls = []


def correct(seed, canary):
    generator = np.random.default_rng(seed)
    batches = canary * (generator.random(30) < 0.1)
    return float(np.sum(batches + generator.standard_normal(30)))


def on_the_7th(failure):
    def train(seed, canary):
        calls.append(seed)
        if len(calls) == 7:
            failure()
        return correct(seed, canary)

    return train


def refuse():
    raise ValueError("my own mistake")


leaking = lambda seed, canary: 10.0 * canary + np.random.default_rng(seed).standard_normal()
beyond = lambda seed, canary: 0.66 * canary + np.random.default_rng(seed).standard_normal()
deaf = lambda seed, canary: np.random.default_rng(seed).standard_normal()
leaves_0 = on_the_7th(lambda: sys.exit(0))
value_error = on_the_7th(refuse)
divides = on_the_7th(lambda: 1 / 0)
interrupted = on_the_7th(lambda: os.kill(os.getpid(), 2))
not_a_number = lambda seed, canary: float("nan")
no_score = lambda seed, canary: "high"
other_steps = lambda seed, canary: li.Trained(0.0, steps=10)
"""
RUN = "--steps 100 --sample-rate 0.1 --noise-multiplier 1 --delta 1e-5"
FEW = "\n".join(["world,score", *(f"{world},{i + 9 * (world == 'in')}" for world in ("in", "out") for i in range(4))])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("statuses")
    (folder / "mine.py").write_text(TRAINERS)
    (folder / "broken.py").write_text("import nothing_of_this_name\n")
    (folder / "few.csv").write_text(FEW)
    (folder / "junk.sqlite").write_text("no store")
    return folder


def start(folder, command):
    return subprocess.Popen(
        [sys.executable, "-m", "lastiterate", *command.split()],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def trainer(name, options="--models 40"):
    return f"audit --trainer mine.py:{name} --method clopper-pearson {options} --store {name}.sqlite --json"


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        (f"epsilon {RUN}", 0, ""),
        (trainer("correct", "--models 100"), 0, ""),
        (trainer("leaking"), 1, ""),
        ("epsilon --steps 0 --sample-rate .1 --noise-multiplier 1 --delta 1e-5", 2, "steps must be"),
        ("report junk.sqlite", 2, "must be the store of an audit"),
        ("audit --trainer nowhere.py:train", 2, "must be in a file that exists"),
        (trainer("other_steps"), 2, "made 10 steps, but the run declares 30"),
        (trainer("leaves_0"), 3, "6 of 80 trials are stored in leaves_0.sqlite"),
        (trainer("value_error"), 3, 'raise ValueError("my own mistake")'),
        (trainer("not_a_number"), 3, "got nan from the trainer"),
        (trainer("no_score"), 3, "the trainer must return a number"),
        ("audit --trainer broken.py:train", 3, "nothing_of_this_name"),
        ("audit --trainer mine.py:divides --dry-run --models 4 --seed 7", 0, ""),
        (trainer("deaf", "--models 4 --claim-epsilon 0.1"), 4, "below the run's own guarantee"),
        (trainer("deaf", "--models 4 --claim-epsilon 0.1 --strict"), 4, ""),
        (trainer("beyond", "--models 6000 --strict"), 1, ""),
        ("estimate few.csv --claim-epsilon 0.1", 4, ""),
        (trainer("interrupted"), 130, "the same command resumes"),
    ],
)
def test_statuses(folder, command, status, said):
    process = start(folder, command)
    output, errors = process.communicate()
    assert process.returncode == status, errors
    assert said in errors
    assert "lastiterate/auditing" not in errors  # the user's lines, not ours
    if status in (2, 3):
        assert output == ""


@pytest.mark.parametrize("command", [f"epsilon {RUN}", f"epsilon {RUN} --json", "--help"])
def test_a_broken_pipe_is_quiet_and_says_neither_done_nor_refuted(folder, command):
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run(
        [sys.executable, "-m", "lastiterate", *command.split()], stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert (process.returncode, process.stderr) == (3, b"")


@pytest.mark.parametrize(("output", "status"), [([], 0), (["--output", "pictures"], 2)])
def test_without_libraries_for_pictures_a_report_is_still_a_report_and_pictures_are_refused_first(
    folder, output, status
):
    store = f"plain{status}.sqlite"
    command = ["audit", "--trainer", "mine.py:correct", "--models", "8", "--store", store, *output]
    code = f"import sys\nsys.modules['altair'] = None\nfrom lastiterate.cli.app import app\napp({command!r})"
    process = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert process.returncode == status, process.stderr
    assert "plots need altair" in (process.stdout if status == 0 else process.stderr)
    assert ("guaranteed  " in process.stdout) == (status == 0)
    assert (folder / store).exists() == (status == 0)
