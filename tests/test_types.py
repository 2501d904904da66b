"""Types that say something: the word Any stays rare, and mypy is strict everywhere."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST = 120  # uses of Any in all of src, imports included


def test_any_is_rare():
    uses = {
        str(file.relative_to(ROOT)): len(re.findall(r"\bAny\b", file.read_text()))
        for file in (ROOT / "src").rglob("*.py")
    }
    assert len(uses) > 150
    assert sum(uses.values()) <= MOST, sorted(uses.items(), key=lambda item: -item[1])[:10]


def test_mypy_makes_no_exception_but_for_libraries_without_types():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert settings["strict"] is True
    for override in settings["overrides"]:
        assert set(override) == {"module", "ignore_missing_imports"}
        assert not any(module.startswith("lastiterate") for module in override["module"])


# Untyped or slow to read; nothing that users see is of their types.
OTHERS = ("jax", "equinox", "jaxtyping", "torch", "ray", "rich", "typer", "altair", "transformers", "sklearn", "scipy")

SNIPPET = """
from typing import assert_type

import numpy as np

import lastiterate as li
from lastiterate.common.types import FloatArray
from lastiterate.run import DPSGD

schedule = li.SGD(learning_rate=[0.1, 0.1, 0.01], momentum=0.9)
run = li.DPSGD(steps=3, sample_rate=0.1, noise_multiplier=np.ones(3), optimizer=schedule)
li.DPSGD(steps=3, sample_rate=0.1, noise_multiplier=1, weights=[1, 0.5, 0.25])
li.DPSGD(steps=3, sample_rate="0.1", noise_multiplier=1)  # type: ignore[arg-type]
curve = li.last_iterate(run)
assert_type(curve, li.PrivacyCurve)
assert_type(curve.epsilon(1e-5), float)
assert_type(curve.epsilon([1e-5, 1e-6]), FloatArray)
assert_type(curve.delta(1), float)
assert_type(curve.fnr(np.linspace(0.0, 1.0)), FloatArray)
assert_type(curve.bracket(1e-5), tuple[float, float])
assert_type(li.last_iterate_epsilon(10, 0.1, 1.0, 1e-5), float)
assert_type(li.last_iterate_epsilon([10, 20], 0.1, 1.0, 1e-5), FloatArray)
assert_type(li.calibrate(run, epsilon=8.0, delta=1e-5, analysis=li.composition), DPSGD)
assert_type(li.estimate([1.0], [0.0]), li.Estimate)
assert_type(li.estimate([1.0], [0.0]).epsilon, float)
assert_type(li.Trained(1.0), li.Trained)
li.audit(7, None)  # type: ignore[arg-type]
li.no_such_name  # type: ignore[attr-defined]
"""


def test_users_are_told_their_types(tmp_path):
    (tmp_path / "user.py").write_text(SNIPPET)
    sections = ",".join(f"mypy-{name}.*" for name in (*OTHERS, "dp_accounting", "opacus"))
    (tmp_path / "mypy.ini").write_text(
        f"[mypy]\nstrict = true\nfollow_imports = silent\nmypy_path = {Path(__file__).parents[1] / 'src'}\n"
        f"[{sections}]\nfollow_imports = skip\nignore_missing_imports = true\n"
    )
    command = [sys.executable, "-m", "mypy", "--no-incremental", "--config-file", "mypy.ini", "user.py"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.stdout == "Success: no issues found in 1 source file\n", found.stdout + found.stderr
