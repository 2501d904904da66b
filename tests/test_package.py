"""What `import lastiterate` brings, and what it does not."""

import subprocess
import sys

import lastiterate as li


def test_public_names_are_there():
    for name in li.__all__:
        assert getattr(li, name) is not None


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


def test_the_heuristic_does_not_load_composition():
    code = (
        "import sys, lastiterate as li; li.last_iterate(li.DPSGD(10, 0.1, 1.0)).epsilon(1e-5); "
        "print([name for name in sys.modules if 'composition' in name or '.losses' in name])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
