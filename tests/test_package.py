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
