"""Stores to begin with, new and killed."""

import shutil

import pytest

from tests.auditing.stores.helpers import begin, chunk


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.sqlite"


@pytest.fixture
def killed(path):
    """A store whose writer was killed with a chunk in its log, copied while it was open."""
    source = path.with_name("source")
    source.mkdir()
    with begin(source / path.name) as store:
        store.add(chunk())
        for ending in ("", "-wal"):
            shutil.copy(f"{store.path}{ending}", f"{path}{ending}")
    shutil.rmtree(source)
    return path
