"""Truncated Poisson sampling, against the enumeration of all batches of tiny data sets and dp-accounting."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import binom, norm

import lastiterate as li
from lastiterate.privacy.mixtures.law import full_batches, participation_rate

X = np.linspace(-15.0, 15.0, 30_001)


def truncated(steps, rate, sigma, size, most, **more):
    return li.DPSGD(steps, rate, sigma, "truncated-poisson", dataset_size=size, max_batch_size=most, **more)


def batches(size, most, rate):
    """Return all batches of a tiny data set after truncation, with their probabilities."""
    found = {}
    for drawn in itertools.product((False, True), repeat=size):
        members = tuple(np.flatnonzero(drawn))
        chance = rate ** len(members) * (1.0 - rate) ** (size - len(members))
        kept = list(itertools.combinations(members, min(most, len(members))))
        for batch in kept:
            found[batch] = found.get(batch, 0.0) + chance / len(kept)
    return found


def density(gradients, sigma, of_batches):
    return sum(chance * norm.pdf(X, sum(gradients[i] for i in batch), sigma) for batch, chance in of_batches.items())


def delta_of(p, q, epsilon):
    return float(np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0.0), X))


@pytest.mark.parametrize(("size", "most", "rate"), [(4, 2, 0.5), (4, 1, 0.3), (5, 3, 0.6)])
def test_rates_are_those_of_all_batches(size, most, rate):
    run, every = truncated(1, rate, 1.0, size, most), batches(size, most, rate)
    assert participation_rate(run) == pytest.approx(sum(c for b, c in every.items() if 0 in b), rel=1e-12)
    others = sum(chance for b, chance in batches(size - 1, size, rate).items() if len(b) >= most)
    full, full_rate = full_batches(run)
    assert full == pytest.approx(others, rel=1e-12)
    drawn = binom.pmf(np.arange(most, size), size - 1, rate)
    expected = drawn @ (rate * most / (np.arange(most, size) + 1.0)) / drawn.sum()
    assert full_rate == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("size", "most", "rate", "sigma"), [(4, 2, 0.5, 1.0), (4, 1, 0.3, 0.7)])
@pytest.mark.parametrize("neighbours", ["zero-out", "replace"])
def test_no_gradients_of_a_tiny_data_set_exceed_the_guarantee(size, most, rate, sigma, neighbours):
    """Both directions, with all gradients of -1, 0 and 1 of the other examples."""
    curve = li.composition(truncated(1, rate, sigma, size, most, neighbours=neighbours))
    every, largest = batches(size, most, rate), dict.fromkeys((0.3, 1.0, 2.0), 0.0)
    for others in itertools.combinations_with_replacement((-1.0, 0.0, 1.0), size - 1):
        changed = (0.0,) if neighbours == "zero-out" else (-1.0, 0.0)
        p, *qs = (density((own, *others), sigma, every) for own in (1.0, *changed))
        for q, epsilon in itertools.product(qs, largest):
            largest[epsilon] = max(largest[epsilon], delta_of(p, q, epsilon), delta_of(q, p, epsilon))
    for epsilon, delta in largest.items():
        assert delta <= curve.delta(epsilon) * (1.0 + 1e-6)
    assert largest[1.0] > 0.1 * curve.delta(1.0)


def test_one_step_is_the_mixture_of_its_two_kinds():
    run = truncated(1, 0.3, 1.0, 6, 2)
    full, full_rate = full_batches(run)

    def of(rate, centre):
        return (1.0 - rate) * norm.pdf(X) + rate * norm.pdf(X, centre)

    for epsilon in (0.0, 0.7, 2.0):
        usual = max(delta_of(of(0.3, 1.0), of(0.3, 0.0), epsilon), delta_of(of(0.3, 0.0), of(0.3, 1.0), epsilon))
        delta = (1.0 - full) * usual + full * delta_of(of(full_rate, 2.0), of(full_rate, -2.0), epsilon)
        assert li.composition(run).delta(epsilon) == pytest.approx(delta, rel=1e-5)


@pytest.mark.parametrize(
    ("steps", "rate", "sigma", "size", "most", "delta", "neighbours"),
    [
        (100, 0.01, 1.0, 50_000, 520, 1e-5, "zero-out"),
        (10, 0.1, 2.0, 100, 10, 1e-5, "replace"),
        (200, 0.002, 0.8, 5000, 24, 1e-7, "zero-out"),
    ],
)
def test_the_guarantee_is_within_the_bracket_of_dp_accounting(steps, rate, sigma, size, most, delta, neighbours):
    run = truncated(steps, rate, sigma, size, most, neighbours=neighbours)
    replace_one = dp_accounting.NeighboringRelation.REPLACE_ONE
    relation = {"zero-out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL, "replace": replace_one}[neighbours]
    full, full_rate = full_batches(run)
    bounds = []
    for pessimistic in (False, True):
        fine = dict(value_discretization_interval=2e-3, pessimistic_estimate=pessimistic, use_connect_dots=pessimistic)
        usual = pld.from_gaussian_mechanism(sigma, sampling_prob=rate, neighboring_relation=relation, **fine)
        more = pld.from_gaussian_mechanism(
            sigma / 2.0, sampling_prob=full_rate, neighboring_relation=replace_one, **fine
        )
        bounds.append(more.compute_mixture(usual, full).self_compose(steps).get_epsilon_for_delta(delta))
    assert bounds[0] <= li.composition(run).epsilon(delta) <= bounds[1] + 1e-5
    theirs = pld.from_truncated_subsampled_gaussian_mechanism(
        size, rate, most, sigma, value_discretization_interval=2e-3, neighboring_relation=relation
    ).self_compose(steps)
    assert theirs.get_epsilon_for_delta(delta) == pytest.approx(bounds[1], rel=1e-6)


def test_batches_that_are_hardly_ever_full_cost_what_poisson_sampling_costs():
    poisson = li.composition(li.DPSGD(1000, 0.01, 1.0)).epsilon(1e-5)
    costs = [li.composition(truncated(1000, 0.01, 1.0, 50_000, most)).epsilon(1e-5) for most in (1000, 700, 640, 600)]
    assert costs[0] == pytest.approx(poisson, rel=1e-9)
    assert costs[0] <= costs[1] + 1e-9 < costs[2] < costs[3]
    lower, upper = li.composition(truncated(1000, 0.01, 1.0, 50_000, 600)).bracket(1e-5)
    assert lower < costs[3] < upper < lower + 4e-6
    no_limit = truncated(1000, 0.01, 1.0, 500, 500)
    assert li.composition(no_limit).epsilon(1e-5) == li.composition(li.DPSGD(1000, 0.01, 1.0)).epsilon(1e-5)


def test_the_heuristic_has_the_rate_of_participation():
    run = truncated(1000, 0.01, 1.0, 50_000, 500)
    rate = float(np.minimum(np.arange(50_001), 500) @ binom.pmf(np.arange(50_001), 50_000, 0.01)) / 50_000
    expected = li.last_iterate(li.DPSGD(1000, rate, 1.0)).epsilon(1e-5)
    assert li.last_iterate(run).epsilon(1e-5) == pytest.approx(expected, rel=1e-9)
