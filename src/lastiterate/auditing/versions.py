"""Versions of what scores may depend on, as installed where a model is trained."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("lastiterate", "numpy", "scipy", "jax", "jaxlib", "torch", "transformers")


def versions() -> dict[str, str]:
    """Python's version, and those of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
