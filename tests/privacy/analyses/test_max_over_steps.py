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


SCHEDULE = np.linspace(1.0, 0.1, 30)
OPTIMIZERS = {
    "momentum": li.SGD(momentum=0.9),
    "dampened momentum and averaging": li.SGD(momentum=0.5, dampening=0.3, averaging="uniform"),
    "nesterov": li.SGD(0.1, momentum=0.8, nesterov=True),
    "decay": li.SGD(0.5, weight_decay=0.9),
    "decay and schedule": li.SGD(SCHEDULE, weight_decay=0.9),
    "decoupled decay and momentum": li.SGD(SCHEDULE, momentum=0.9, weight_decay=0.1, decoupled=True),
    "schedule and momentum": li.SGD(SCHEDULE, momentum=0.9),
    "moving average": li.SGD(averaging=0.9),
    "uniform average": li.SGD(averaging="uniform"),
    "schedule": li.SGD(SCHEDULE),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_prefix_has_the_weights_its_optimizer_gives_it(name):
    run = li.DPSGD(steps=30, sample_rate=0.1, noise_multiplier=1.0, optimizer=OPTIMIZERS[name])
    expected = by_looking_at_every_prefix(run, 1e-6)
    assert relative_error(li.max_over_steps(run).epsilon(1e-6), expected) < 1e-10


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


def test_shows_the_papers_non_monotone_case():
    run = li.DPSGD(steps=300, sample_rate=0.01, noise_multiplier=0.6)
    first = li.last_iterate(run.prefix(1)).epsilon(1e-6)
    assert li.last_iterate(run).epsilon(1e-6) < first
    assert li.max_over_steps(run).epsilon(1e-6) >= first


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


@pytest.mark.parametrize("steps", [13, 15])
def test_the_bracket_is_not_narrower_than_that_of_the_longest_prefix(steps):
    run = li.DPSGD(steps, 0.4, 0.002, weights=np.linspace(1.0, 0.317, steps) ** 2)
    (lower, upper), (_, least) = li.max_over_steps(run).bracket(1e-6), li.last_iterate(run).bracket(1e-6)
    assert upper >= least
    assert lower <= max(li.last_iterate(run.prefix(t)).epsilon(1e-6) for t in range(1, steps + 1))
