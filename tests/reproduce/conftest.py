from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from lastiterate.attacks import gradient_space, input_space

COMMON = ["sample_rate", "steps", "noise_multiplier", "last_iterate", "composition"]
FOUND = ["empirical", "confidence", "models"]
SIGNAL = ["signal", "signal_fraction"]


class Idle:
    """An engine that must not be asked to train."""

    def running(self):
        return nullcontext()

    def prepare(self, job):
        raise AssertionError("this was trained before")


def stopped_after(count):
    """A tracker under which Ctrl-C comes after so many items."""

    def track(items):
        yield from items[:count]
        raise KeyboardInterrupt

    return track


@pytest.fixture
def few_references(monkeypatch):
    """Crafters look at few models: these tests see that audits run through, not what they find."""
    for kind, field in ((gradient_space.GradientSpace, "references"), (input_space.InputSpace, "pilots")):
        checked = kind.__post_init__

        def fewer(attack, checked=checked, field=field):
            object.__setattr__(attack, field, 4)
            checked(attack)

        monkeypatch.setattr(kind, "__post_init__", fewer)


@pytest.fixture
def cifar10():
    """What plans for CIFAR-10 need to know of it."""
    return SimpleNamespace(problem=SimpleNamespace(size=50_000))


@pytest.fixture
def small_images(tmp_path):
    """A file with a few images of CIFAR-10's shape."""
    generator = np.random.default_rng(0)
    images, labels = generator.integers(0, 256, (12, 32, 32, 3), np.uint8), np.arange(12) % 10
    file = tmp_path / "images.npz"
    np.savez(file, x_train=images, y_train=labels, x_test=images, y_test=labels)
    return str(file)
