"""With what scores are computed: the versions of Python and of the packages that they depend on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("lastiterate", "numpy", "scipy", "jax", "jaxlib", "torch", "transformers")


def versions() -> dict[str, str]:
    """Versions in this process, by name; a package that is not installed has none."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
