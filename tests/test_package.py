"""What `import lastiterate` brings, and what it does not."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import lastiterate as li
from lastiterate.citation import bibtex


def test_import_is_light():
    heavy = ("jax", "torch", "ray", "altair", "vl_convert", "dp_accounting", "opacus", "scipy.stats", "typer")
    code = f"import sys, lastiterate; print([name for name in {heavy!r} if name in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


def test_import_loads_nothing_so_that_the_program_can_answer_ctrl_c_at_once():
    code = "import sys, lastiterate.cli.signals; print('numpy' in sys.modules, 'typer' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "False False"
    assert set(li.__all__) <= set(dir(li))


def loaded_by(code):
    """Return the modules of this package that a program loads."""
    program = f"{code}; import sys; print(*(name for name in sys.modules if name.startswith('lastiterate')))"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    return output.splitlines()[-1].split()


def test_the_heuristic_loads_none_of_the_standard_analysis():
    loaded = loaded_by("import lastiterate as li; li.last_iterate(li.DPSGD(100, 0.1, 1.0)).epsilon(1e-5)")
    assert not [name for name in loaded if "composition" in name or name.startswith("lastiterate.privacy.losses")]
    assert len(loaded) <= 26, loaded


def test_a_quick_command_loads_no_analysis_of_rare_runs():
    options = ["--steps", "100", "--sample-rate", "0.1", "--noise-multiplier", "1", "--delta", "1e-5"]
    loaded = loaded_by(f"from lastiterate.cli.app import app; app({['epsilon', *options]!r}, standalone_mode=False)")
    assert "lastiterate.privacy.analyses.composition" in loaded
    assert not [
        name for name in loaded if name.endswith(("epoch_loss", "truncated_loss", "mixture_loss", "checkpoints"))
    ]
    assert len(loaded) <= 48, loaded


NEEDS_EXTRAS = (  # rooms and modules that cannot be loaded without their extra
    "lm",
    "training",
    "attacks.all_iterates",
    "attacks.gradient_space",
    "attacks.input_space",
    "attacks.one_run",
    "auditing.experiments.shipped_trainer",
    "integrations.dp_accounting",
    "integrations.own_trainer",
    "integrations.transformers",
)
EXTRAS = ("jax", "equinox", "torch", "transformers", "altair", "vl_convert", "sklearn", "starlette", "uvicorn", "ray")
WITHOUT_EXTRAS = f"""
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {(*EXTRAS, "pyarrow", "opacus", "dp_accounting", "jax_privacy")!r}:
            raise ModuleNotFoundError(name, name=name.partition(".")[0])

sys.meta_path.insert(0, Blocked())
for module in sys.argv[1:]:
    importlib.import_module(module)
"""


def test_all_other_modules_are_loaded_without_any_extra():
    source = Path(li.__file__).parent
    names = [".".join(file.relative_to(source).with_suffix("").parts) for file in source.rglob("*.py")]
    own = [name for name in names if name not in ("__main__", "__init__", "plot.renderer")]
    free = [each for each in own if not any(each == room or each.startswith(f"{room}.") for room in NEEDS_EXTRAS)]
    modules = [f"lastiterate.{each.removesuffix('.__init__')}" for each in sorted(free)]
    assert len(modules) > 150
    subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS, *modules], check=True)


def test_one_version_and_one_citation():
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    cited = (root / "CITATION.cff").read_text()
    assert project["version"] == li.__version__
    assert f"\nversion: {li.__version__}\n" in cited
    assert f"## [{li.__version__}]" in (root / "CHANGELOG.md").read_text()
    entries = bibtex()
    assert f"version = {{{li.__version__}}}" in entries["tool"]
    names = re.findall(r"family-names: (.*)\n\s+given-names: (.*)", cited)
    authors = " ".join(re.findall(r"author = \{(.*?)\},\n  book", entries["paper"], re.DOTALL)[0].split())
    assert authors == " and ".join(f"{family}, {given}" for family, given in names)
    printed = subprocess.run([sys.executable, "-m", "lastiterate", "cite"], capture_output=True, text=True, check=True)
    assert printed.stdout == "\n\n".join(entries.values()) + "\n"
