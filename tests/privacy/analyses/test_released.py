"""Several released iterates, people with several examples, and examples that are replaced: against independent values.

All of them take some ten seconds.
"""

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

import lastiterate as li
from tests.privacy.contract import Question, violations
from tests.privacy.helpers import references, relative_error
from tests.privacy.released import blocks_of, delta_of_blocks, densities

ANALYSIS = {"composition": li.composition, "iterate": li.last_iterate, "checkpoints": li.last_iterate}


def run_of(row):
    fields = {name: row[name] for name in ("releases", "group_size") if name in row}
    neighbours = "replace" if row["kind"].startswith("replace") else "add-remove"
    return li.DPSGD(row["steps"], row["sample_rate"], row["noise_multiplier"], neighbours=neighbours, **fields)


@pytest.mark.parametrize("row", references("runs"), ids=str)
def test_checkpoints_groups_and_replaced_examples_agree_with_the_reference(row):
    curve = ANALYSIS[row["kind"].split("-")[-1]](run_of(row))
    value = curve.epsilon(row["delta"])
    assert relative_error(value, row["epsilon"]) < 1e-10
    assert curve.delta(value) == pytest.approx(row["delta"], rel=1e-9)
    lower, upper = curve.bracket(row["delta"])
    assert lower < row["epsilon"] < upper < lower + 1e-6 * max(1.0, upper)


WEIGHTED = {
    "weights": [1.0, 0.5, 0.25, 1.0, 2.0, 3.0],
    "sample_rate": [0.1, 0.3, 0.2, 0.1, 0.05, 0.4],
    "noise_multiplier": [1.0, 2.0, 1.5, 0.8, 1.0, 1.2],
}
BRUTE = [
    ("weights, rates and noise that differ", li.DPSGD(6, releases=[2, 3], **WEIGHTED), (2, 3, 6)),
    ("two of them", li.DPSGD(6, releases=2, **WEIGHTED), (3, 6)),
    ("a person", li.DPSGD(4, 0.1, 1.0, releases=2, group_size=3), (2, 4)),
    ("a replaced example", li.DPSGD(6, releases=3, neighbours="replace", **WEIGHTED), (2, 4, 6)),
    ("a replaced person", li.DPSGD(4, 0.1, 1.5, releases=2, group_size=2, neighbours="replace"), (2, 4)),
    ("all iterates of a person", li.DPSGD(3, 0.1, 1.5, releases=3, group_size=2), (1, 2, 3)),
    (
        "all iterates of a replaced person",
        li.DPSGD(3, 0.1, 1.5, releases=3, group_size=2, neighbours="replace"),
        (1, 2, 3),
    ),
    ("replaced, one iterate", li.DPSGD(6, neighbours="replace", **WEIGHTED), (6,)),
    ("decay", li.DPSGD(6, 0.2, 1.0, optimizer=li.SGD(0.5, weight_decay=0.4), releases=2), (3, 6)),
    ("batches of fixed size", li.DPSGD(6, 0.2, 1.0, sampling="fixed", releases=3), (2, 4, 6)),
]


@pytest.mark.parametrize(("run", "ends"), [case[1:] for case in BRUTE], ids=[case[0] for case in BRUTE])
def test_few_steps_agree_with_sums_over_all_they_may_be(run, ends):
    weights = np.ones(run.steps) if run.weights is None else np.asarray(run.weights)
    if run.optimizer is not None:  # decay: from 1 again in every block
        weights = np.concatenate([0.8 ** np.arange(b - a)[::-1] for a, b in zip((0, *ends), ends, strict=False)])
    rates, sigmas = (np.broadcast_to(value, run.steps) for value in (run.sample_rate, run.noise_multiplier))
    blocks = blocks_of(weights, rates, sigmas, ends, run.group_size)
    curve = li.last_iterate(run)
    for epsilon in (0.3, 1.0, 2.5):
        expected = delta_of_blocks(blocks, epsilon, mirrored=run.neighbours == "replace")
        assert curve.delta(epsilon) == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("neighbours", ["add-remove", "replace"])
def test_error_rates_of_two_releases_are_those_of_the_best_test_on_a_fine_grid(neighbours):
    run = li.DPSGD(6, releases=2, neighbours=neighbours, **WEIGHTED)
    parts = []
    for block in blocks_of(*(np.asarray(WEIGHTED[name]) for name in WEIGHTED), (3, 6)):
        y = np.linspace(-block[0].max() - 8.0 * block[2], block[0].max() + 8.0 * block[2], 1500)
        parts.append([density * (y[1] - y[0]) for density in densities(block, y, neighbours == "replace")])
    p, q = (np.multiply.outer(*pair).ravel() for pair in zip(*parts, strict=True))
    order = np.argsort(q / np.maximum(p, 1e-300))
    fpr, fnr = np.cumsum(q[order]), 1.0 - np.cumsum(p[order])
    rates = np.array([0.01, 0.2, 0.6, 0.9])
    assert li.last_iterate(run).fnr(rates) == pytest.approx(np.interp(rates, fpr, fnr), abs=1e-5)


def test_a_group_composes_as_dp_accounting_says():
    for steps, rate, sigma, group in (30, 0.05, 0.8, 2), (300, 0.02, 1.5, 3):
        of_group = pld.from_mixture_gaussian_mechanism(
            sigma, range(group + 1), binom.pmf(range(group + 1), group, rate), value_discretization_interval=1e-3
        ).self_compose(steps)
        curve = li.composition(li.DPSGD(steps, rate, sigma, group_size=group))
        for delta in (1e-6, 1e-3):
            assert curve.epsilon(delta) <= of_group.get_epsilon_for_delta(delta) + 1e-6
            assert curve.epsilon(delta) == pytest.approx(of_group.get_epsilon_for_delta(delta), abs=3e-3)


def test_a_replaced_example_composes_as_dp_accounting_says():
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    for steps, rate, sigma in (100, 0.05, 1.0), (1000, 0.01, 0.8), (10, 0.2, 3.0):
        one = pld.from_gaussian_mechanism(
            sigma, sampling_prob=rate, neighboring_relation=relation, value_discretization_interval=1e-3
        ).self_compose(steps)
        curve = li.composition(li.DPSGD(steps, rate, sigma, neighbours="replace"))
        for delta in (1e-6, 1e-3):
            assert curve.epsilon(delta) <= one.get_epsilon_for_delta(delta) + 1e-6
            assert curve.epsilon(delta) == pytest.approx(one.get_epsilon_for_delta(delta), abs=3e-3)
    assert li.composition(li.DPSGD(100, 0.05, 1.0, neighbours="replace")).epsilon(1e-5) == pytest.approx(4.88949, 1e-6)


@pytest.mark.parametrize(
    "fields", [{"group_size": 3}, {"neighbours": "replace"}, {"group_size": 2, "neighbours": "replace"}], ids=str
)
def test_brackets_of_composition_are_proved_for_groups_and_replaced_examples(fields):
    for steps, rate, sigma in (2, 0.01, 0.6), (100, 0.05, 1.0):
        curve = li.composition(li.DPSGD(steps, rate, sigma, **fields))
        lower, upper = curve.bracket(1e-5)
        assert curve.proved == ("lower", "upper")
        assert lower < curve.epsilon(1e-5) < upper < lower + 1e-5 * max(1.0, upper)


@settings(max_examples=8)
@given(st.sets(st.integers(1, 29), max_size=6), st.integers(1, 29), st.floats(0.02, 0.5), st.floats(0.6, 3.0))
def test_epsilon_grows_with_nested_releases_up_to_composition(releases, another, rate, sigma):
    run = li.DPSGD(30, rate, sigma)
    fewer, more = (
        li.last_iterate(run.replace(releases=sorted(some))).epsilon(1e-5) for some in (releases, releases | {another})
    )
    assert fewer <= more + 1e-8 * max(1.0, more)
    assert more <= li.composition(run).epsilon(1e-5) * (1.0 + 1e-8) + 1e-8


@settings(max_examples=12)
@given(
    st.integers(2, 12),
    st.floats(0.02, 0.8),
    st.floats(0.5, 4.0),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 3]),
    st.sampled_from(["add-remove", "replace"]),
    st.sampled_from([1e-9, 1e-5, 1e-2]),
)
def test_the_contract_of_all_curves_holds(steps, rate, sigma, releases, group, neighbours, delta):
    fields = {"releases": min(releases, steps), "group_size": group, "neighbours": neighbours}
    run = li.DPSGD(steps, rate, sigma, optimizer=li.SGD(0.5, weight_decay=0.3), **fields)
    curve = li.last_iterate(run)
    assert not list(violations(Question(curve, delta, 1.0, 0.1, [], tolerance=1e-6, tolerance_of_fnr=1e-6)))
