from contextlib import nullcontext
from itertools import product
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

    def prepare(self, experiment, crafted, chunk_size):
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


def audited(**columns):
    """Rows as audits give them, one for each combination of the columns, every number in them another one."""
    combinations = [dict(zip(columns, each, strict=True)) for each in product(*columns.values())]
    return [
        {
            **labels,
            "last_iterate": 2.0 + number,
            "composition": 3.0 + number,
            "empirical": 1.5 + number,
            "confidence": 0.95,
            "models": 12,
            "signal_fraction": 0.5,
        }
        for number, labels in enumerate(combinations)
    ]


def values(layer):
    return layer["data"]["values"]


def assert_shows(panel, rows, x, attacks=None):
    """The panel has both analyses of these rows as lines over ``x``, and as points what was found, all in sight."""
    lines, points = panel["layer"]
    assert (lines["mark"]["type"], points["mark"]["type"]) == ("line", "point")
    for layer in panel["layer"]:
        across, up = (layer["encoding"][axis] for axis in "xy")
        assert (across["field"], up["field"], across["scale"]["type"]) == (x, "epsilon", "log")
        for axis in (across, up):
            low, high = axis["scale"]["domain"]
            assert low < min(row[axis["field"]] for row in values(layer))
            assert max(row[axis["field"]] for row in values(layer)) < high
    for name, label in (("last_iterate", "last iterate (heuristic)"), ("composition", "composition (standard)")):
        assert label in lines["encoding"]["color"]["scale"]["domain"]
        shown = {row[x]: row["epsilon"] for row in values(lines) if row["analysis"] == label}
        assert shown == {row[x]: row[name] for row in rows}
    names = [attacks[row["attack"]] if attacks else "found by the attack" for row in rows]
    assert points["encoding"]["shape"]["scale"]["domain"] == list(dict.fromkeys(names))
    assert [row["found"] for row in values(points)] == names
    assert [row["epsilon"] for row in values(points)] == [row["empirical"] for row in rows]
    assert [row[x] for row in values(points)] == pytest.approx([row[x] for row in rows], rel=0.05)
