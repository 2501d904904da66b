"""dp-accounting's accountant: the heuristic of the events, and a warning that it is one."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    TruncatedSubsampledGaussianDpEvent,
    UnsupportedEventError,
    privacy_accountant_test,
)
from hypothesis import given
from hypothesis import strategies as st

from lastiterate import DPSGD, composition, last_iterate
from lastiterate.formatting import spell_up
from lastiterate.integrations.dp_accounting import LastIterateAccountant, run_from_event
from tests.integrations.conftest import heuristic_warnings

DELTA = 1e-5

pytestmark = pytest.mark.filterwarnings("ignore::lastiterate.HeuristicWarning")


def sampled(rate, noise):
    return PoissonSampledDpEvent(rate, GaussianDpEvent(noise))


class TestStandardConventions(privacy_accountant_test.PrivacyAccountantTest):
    """dp-accounting's own suite for accountants."""

    def _make_test_accountants(self):
        return [LastIterateAccountant(relation) for relation in NeighboringRelation]


def test_plain_gaussians_are_steps_on_all_data():
    accountant = LastIterateAccountant().compose(GaussianDpEvent(4.0), 9)
    assert accountant.run == DPSGD(steps=9, sample_rate=1.0, noise_multiplier=4.0)
    expected = dp_accounting.get_epsilon_gaussian(4.0 / 3.0, DELTA)
    assert accountant.get_epsilon(DELTA) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("relation", [NeighboringRelation.REPLACE_SPECIAL, NeighboringRelation.REPLACE_ONE])
def test_truncated_batches_are_a_run_that_costs_what_dp_accounting_says(relation):
    event = SelfComposedDpEvent(TruncatedSubsampledGaussianDpEvent(100, 0.1, 12, 1.5), 8)
    run = run_from_event(event, relation)
    assert (run.steps, run.sampling, run.max_batch_size, run.dataset_size) == (8, "truncated-poisson", 12, 100)
    theirs = dp_accounting.pld.PLDAccountant(relation).compose(event).get_epsilon(DELTA)
    assert composition(run).epsilon(DELTA) == pytest.approx(theirs, rel=1e-3)
    with pytest.raises(ValueError, match=r"neighbours must be 'zero-out' or 'replace' .* got 'add-remove'"):
        run_from_event(event)


def test_other_events_are_the_run_of_the_accountant():
    assert run_from_event(SelfComposedDpEvent(sampled(0.1, 2.0), 5)) == DPSGD(5, 0.1, 2.0)
    with pytest.raises(UnsupportedEventError):
        run_from_event(SelfComposedDpEvent(LaplaceDpEvent(1.0), 2))
    with pytest.raises(ValueError, match=r"event must be a DpEvent of dp-accounting, got 3"):
        run_from_event(3)


GROUP = st.tuples(st.sampled_from([0.0, 0.05, 0.3, 1.0]), st.floats(0.5, 4.0), st.integers(1, 20))


@given(groups=st.lists(GROUP, min_size=1, max_size=5))
def test_groups_are_the_run_with_their_steps_written_out(groups):
    accountant = LastIterateAccountant()
    for rate, noise, count in groups:
        accountant.compose(sampled(rate, noise), count)
    rates, noises, counts = zip(*groups, strict=True)
    run = DPSGD(sum(counts), np.repeat(rates, counts), np.repeat(noises, counts))
    assert accountant.run.steps == run.steps
    for curve in (last_iterate(run), last_iterate(accountant.run)):
        assert accountant.get_epsilon(DELTA) == pytest.approx(curve.epsilon(DELTA), rel=1e-9, abs=1e-9)
        assert accountant.get_delta(0.5) == pytest.approx(curve.delta(0.5), rel=1e-8, abs=1e-300)


@pytest.mark.parametrize(
    "bad",
    [
        LaplaceDpEvent(1.0),
        SampledWithoutReplacementDpEvent(100, 10, GaussianDpEvent(1.0)),
        PoissonSampledDpEvent(0.1, LaplaceDpEvent(1.0)),
        PoissonSampledDpEvent(0.1, SelfComposedDpEvent(GaussianDpEvent(1.0), 2)),
        GaussianDpEvent(-1.0),
        GaussianDpEvent(math.nan),
        sampled(1.5, 1.0),
        SelfComposedDpEvent(GaussianDpEvent(1.0), -3),
        SelfComposedDpEvent(GaussianDpEvent(1.0), 2.5),
    ],
)
def test_unsupported_events_are_refused_and_change_nothing(bad):
    accountant = LastIterateAccountant().compose(sampled(0.1, 1.0), 10)
    ledger, epsilon = accountant.ledger, accountant.get_epsilon(DELTA)
    event = ComposedDpEvent([sampled(0.1, 1.0), bad])
    assert not accountant.supports(event)
    assert accountant._maybe_compose(event, 1, False).invalid_event is bad
    with pytest.raises(UnsupportedEventError, match="caused by subevent"):
        accountant.compose(event)
    assert accountant.ledger == ledger
    assert accountant.get_epsilon(DELTA) == epsilon
    assert accountant.run.steps == 10


def test_a_step_without_noise_leaks_everything_unless_it_uses_no_data():
    accountant = LastIterateAccountant().compose(sampled(0.1, 1.0), 10)
    epsilon = accountant.get_epsilon(DELTA)
    accountant.compose(sampled(0.0, 0.0))
    assert accountant.get_epsilon(DELTA) == pytest.approx(epsilon, rel=1e-14)
    accountant.compose(sampled(0.1, 0.0))
    assert accountant.get_epsilon(DELTA) == math.inf
    assert accountant.get_delta(10.0) == 1.0
    with pytest.raises(ValueError, match="noise_multiplier must be greater than 0"):
        _ = accountant.run


@pytest.mark.parametrize(
    ("epsilon", "rate", "steps"), [(1.0, 0.01, 1000), (8.0, 0.1, 2500), (0.1, 1.0, 10), (30.0, 0.01, 50)]
)
def test_dp_accounting_calibrates_with_it(epsilon, rate, steps):
    noise = dp_accounting.calibrate_dp_mechanism(
        LastIterateAccountant, lambda noise: SelfComposedDpEvent(sampled(rate, noise), steps), epsilon, DELTA
    )
    run = DPSGD(steps, rate, noise)
    assert last_iterate(run).epsilon(DELTA) <= epsilon
    assert last_iterate(run.replace(noise_multiplier=noise - 2e-6)).epsilon(DELTA) > epsilon  # tolerance: 1e-6


def test_dp_accounting_is_told_once_a_line_what_composition_guarantees(recorded):
    run = DPSGD(1000, 0.01, 1.0)
    for _ in range(3):
        LastIterateAccountant().compose(sampled(0.01, 1.0), 1000).get_epsilon(DELTA)
    LastIterateAccountant().compose(sampled(0.01, 1.0), 1000).get_delta(1.0)
    about = "is what the last-iterate heuristic predicts for 1,000 steps at noise multiplier 1, not a guarantee"
    delta, guaranteed = last_iterate(run).delta(1.0), spell_up(composition(run).delta(1.0), 4)
    assert heuristic_warnings(recorded) == [
        f"epsilon 1.278 at delta 1e-5 {about}: composition guarantees 1.829 if sampling is Poisson",
        f"delta {spell_up(delta, 4)} at epsilon 1 {about}: composition guarantees {guaranteed} if sampling is Poisson",
    ]


@pytest.mark.parametrize("relation", [2, 1, "replace", None, True])
def test_what_is_no_relation_is_refused(relation):
    with pytest.raises(
        ValueError, match=r"^neighboring_relation must be one of NeighboringRelation\.ADD_OR_REMOVE_ONE"
    ):
        LastIterateAccountant(relation)
