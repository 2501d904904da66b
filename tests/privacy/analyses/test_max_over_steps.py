"""The maximum of the heuristic over stopping times, against looking at every one of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lastiterate as li
from tests.privacy.helpers import deltas, relative_error


def by_looking_at_every_prefix(run, delta):
    return max(li.last_iterate(run.prefix(t)).epsilon(delta) for t in range(1, run.steps + 1))


@settings(max_examples=25)
@given(st.integers(1, 250), st.floats(1e-3, 0.5), st.floats(0.4, 3.0), deltas)
def test_equals_the_largest_of_all_prefixes(steps, rate, sigma, delta):
    run = li.DPSGD(steps=steps, sample_rate=rate, noise_multiplier=sigma)
    expected = by_looking_at_every_prefix(run, delta)
    assert relative_error(li.max_over_steps(run).epsilon(delta), expected) < 1e-10


@pytest.mark.parametrize(
    "fields",
    [
        dict(noise_multiplier=np.linspace(0.5, 2.0, 47)),
        dict(noise_multiplier=1.0, sampling="shuffled"),
        dict(noise_multiplier=1.0, weights=np.linspace(1.0, 0.2, 47)),
        dict(noise_multiplier=1.0, sample_rate=np.linspace(0.01, 0.3, 47)),
    ],
    ids=["noise", "shuffled", "weights", "rates"],
)
def test_schedules_of_everything_else(fields):
    run = li.DPSGD(**({"steps": 47, "sample_rate": 0.1} | fields))
    expected = by_looking_at_every_prefix(run, 1e-6)
    assert relative_error(li.max_over_steps(run).epsilon(1e-6), expected) < 1e-10


def test_delta_and_error_rates_are_the_worst_of_all_prefixes():
    run = li.DPSGD(steps=60, sample_rate=0.02, noise_multiplier=0.7)
    curve = li.max_over_steps(run)
    prefixes = [li.last_iterate(run.prefix(t)) for t in range(1, 61)]
    assert curve.delta(1.0) == pytest.approx(max(p.delta(1.0) for p in prefixes), rel=1e-9)
    assert curve.fnr(0.01) == pytest.approx(min(p.fnr(0.01) for p in prefixes), rel=1e-9)
    assert curve.advantage() == pytest.approx(max(p.advantage() for p in prefixes), rel=1e-9)


def test_a_hundred_thousand_steps_take_few_evaluations(monkeypatch):
    from lastiterate.privacy.analyses import max_over_steps as module

    evaluated = []
    original = module._evaluate

    def counting(laws, *rest):
        evaluated.extend(laws)
        return original(laws, *rest)

    monkeypatch.setattr(module, "_evaluate", counting)
    run = li.DPSGD(steps=100_000, sample_rate=0.01, noise_multiplier=1.0)
    assert li.max_over_steps(run).epsilon(1e-6) >= li.last_iterate(run).epsilon(1e-6) - 1e-9
    assert len(evaluated) < 1000


def test_the_bracket_holds_what_rounding_of_weights_cannot_resolve():
    """Neither kernel holds for so little noise: weights are rounded up, and down. Ball arithmetic gives 1115665.84."""
    run = li.DPSGD(14, 0.5, 0.001, weights=0.4 ** np.arange(14))
    lower, upper = li.max_over_steps(run).bracket(0.05)
    assert lower <= 1115665.84 <= upper
    assert lower <= li.max_over_steps(run).epsilon(0.05) <= upper
