"""Trainers in files of their own, as users have them."""

import importlib
import sys

import pytest

import lastiterate as li
from lastiterate.auditing.audit_target import find_subject

RUN = li.DPSGD(steps=30, sample_rate=0.1, noise_multiplier=1.0)


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Writes files, by their names and contents, and gives a function of ``mine.py`` as the command line finds it."""
    folder = tmp_path / "code"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)

    def load(name="train", **files):
        for path, content in files.items():
            place = folder / (path.replace("__in__", "/") + ".py")
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(content if isinstance(content, bytes) else content.encode())
        for module in [each for each, held in sys.modules.items() if _is_in(folder, held)]:
            del sys.modules[module]
        importlib.invalidate_caches()
        with monkeypatch.context() as patched:
            patched.setattr(sys, "dont_write_bytecode", True)  # which may be as old as the file that it is of
            return find_subject("", "", f"{folder / 'mine.py'}:{name}", lambda _: RUN).problem

    return load


def _is_in(folder, module):
    file = getattr(module, "__file__", None)
    return file is not None and file.startswith(str(folder))
