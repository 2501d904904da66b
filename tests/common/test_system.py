"""Memory that is freed inside is kept, and given back after."""

import subprocess
import sys
from pathlib import Path

import pytest

from lastiterate.common.system import kept_memory

SCRIPT = """
import resource
import numpy as np
from lastiterate.common.system import kept_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

def work():
    np.ones(2**23)

work()
before = faults()
work()
print(faults() - before)
with kept_memory():
    work()
    before = faults()
    work()
    print(faults() - before)
    inside = resident()
print(inside - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told to keep memory")
def test_freed_memory_is_kept_inside_and_given_back_after():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    asked_again, kept, given_back = map(int, done.stdout.split())
    assert kept < asked_again / 10
    assert given_back > 2**25


def test_where_memory_cannot_be_kept_nothing_happens(monkeypatch):
    monkeypatch.setattr(sys, "platform", "elsewhere")
    with kept_memory():
        assert Path.cwd().exists()
