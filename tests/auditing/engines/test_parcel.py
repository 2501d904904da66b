"""What is sent to a cluster, and what its nodes must agree on; no cluster is needed for that."""

import functools
import importlib
import sys

import pytest

import lastiterate as li
from lastiterate.auditing.engines import worker_fingerprint as node
from lastiterate.auditing.engines.ray_driver import pack
from lastiterate.auditing.experiments.choose import Given, experiment_on

RUN = li.DPSGD(steps=12, sample_rate=0.1, noise_multiplier=1.0)
MAIN = """
import functools
from kit_of_mine.inner import shifted
def train(seed, canary, by=0.0):
    import late_of_mine
    return shifted(by)
class Trains:
    def method(self, seed, canary):
        return shifted(0.0)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "kit_of_mine").mkdir()
    (tmp_path / "kit_of_mine" / "__init__.py").write_text("")
    (tmp_path / "kit_of_mine" / "inner.py").write_text("def shifted(x):\n    return x + 1.0\n")
    (tmp_path / "late_of_mine.py").write_text("")
    (tmp_path / "main_of_mine.py").write_text(MAIN)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("main_of_mine")
    for name in [name for name in sys.modules if name.endswith("_of_mine") or name.startswith("kit_of_mine")]:
        del sys.modules[name]


def sent(trainer):
    experiment = experiment_on(trainer, Given(RUN, None, 2, 0, None, ""))
    return pack(experiment, experiment.craft(None), 1, 1)


@pytest.mark.parametrize("made", ["train", "partial", "method"])
def test_a_trainers_module_goes_along_and_those_that_it_imports_are_compared(module, made, tmp_path):
    made_of = {"train": module.train, "partial": functools.partial(module.train, by=1.0)}
    parcel = sent(made_of.get(made) or module.Trains().method)
    assert set(parcel.program["modules"]) == {"kit_of_mine", "kit_of_mine.inner", "late_of_mine"}
    assert parcel.program["folders"] == [str(tmp_path)]
    found = node.report(parcel.program["modules"])
    assert node.disagreement(parcel.program, found) is None
    (tmp_path / "late_of_mine.py").write_text("1\n")
    assert "module 'late_of_mine'" in node.disagreement(parcel.program, node.report(parcel.program["modules"]))
