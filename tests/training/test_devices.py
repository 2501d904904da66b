"""Devices: training runs where JAX and PyTorch are told to, with the same result, and no module names a device."""

import os
import re
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "lastiterate"
TRAIN = """
import sys, jax, numpy as np
import lastiterate as li
from lastiterate.data import digits
from lastiterate.training import train
from lastiterate.training.problems import logistic

assert len(jax.devices()) == 2
run = li.DPSGD(3, sample_rate=0.1, noise_multiplier=1.0, optimizer=li.SGD(0.01))
if sys.argv[1] == "1":
    jax.config.update("jax_default_device", jax.devices()[1])
seen = set()
look = lambda *_: seen.update(device.id for array in jax.live_arrays() for device in array.devices())
found = train(run, logistic(digits()), models=6, chunk_size=2, workers=2, seed=0, on_iterate=look).flat()
print(sorted(seen), found.tobytes().hex())
"""


def trained_on(device):
    """Return the devices that hold arrays during a training, and the bits of the models."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", TRAIN, str(device)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | flags, check=True)
    return done.stdout.rsplit(" ", 1)


def test_jax_trains_on_the_device_that_it_is_told_with_the_same_result():
    (zero, first), (one, second) = trained_on(0), trained_on(1)
    assert (zero, one) == ("[0]", "[1]")
    assert first == second


def test_no_module_chooses_a_device_but_the_default_of_pytorch():
    named = re.compile(r"""(?<!== )["'](cuda|gpu|cpu|mps|tpu|xpu)(:\d+)?["']|\.cuda\(|local_devices|jax\.devices\(""")
    found = {
        f"{file.relative_to(SOURCE)}: {line.strip()}"
        for file in SOURCE.rglob("*.py")
        for line in file.read_text(encoding="utf-8").splitlines()
        if named.search(line)
    }
    assert found == {'lm/text_problem.py: return "cuda" if torch.cuda.is_available() else "cpu"'}
