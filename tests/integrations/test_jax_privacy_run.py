"""Runs that configurations of jax-privacy describe; the noise is that which jax-privacy itself adds."""

import math

import jax
import numpy as np
import pytest
from jax_privacy.matrix_factorization import toeplitz
from scipy.stats import chi2

import lastiterate as li
from lastiterate.privacy.mixtures.correlated_noise import filtered_noise, influences
from lastiterate.privacy.mixtures.law import law_of

try:  # jax-privacy 2.2
    from jax_privacy import execution_plan
except ImportError:  # 2.0; a package with neither layout is an error, because skipped tests would hide it
    from jax_privacy.experimental import execution_plan

Bands = getattr(execution_plan, "BandMFConfig", None) or execution_plan.BandMFExecutionPlanConfig
HAS_ACCOUNTANT = "accountant" in Bands.__dataclass_fields__  # 2.0
if HAS_ACCOUNTANT:
    from jax_privacy.accounting import analysis
STRATEGY = np.array([1.0, 0.5, 0.4, 0.2])
DELTA = 1e-5
of_2_0 = pytest.mark.skipif(not HAS_ACCOUNTANT, reason="jax-privacy 2.2 has no accountant in a config, and no DpParams")


def bands(**changes):
    """Return a config in the installed layout. ``epsilon`` calibrates its noise."""
    usual = dict(strategy=STRATEGY, iterations=24, sampling_prob=0.4, noise_multiplier=2.0, l2_clip_norm=3.0)
    given = usual | dict(rescale_to_unit_norm=False) | changes
    epsilon = given.pop("epsilon", None)
    if HAS_ACCOUNTANT:
        given |= dict(epsilon=epsilon, delta=epsilon and DELTA, noise_seed=3)
        return Bands(**given | ({"noise_multiplier": None} if epsilon else {}))
    if "expected_participations" in Bands.__dataclass_fields__:
        share = given.pop("sampling_prob") / len(given["strategy"])
        given["expected_participations"] = share * given["iterations"]
    config = Bands(**given)
    return config.calibrate(epsilon=epsilon, delta=DELTA) if epsilon else config


def plan_of(config):
    if HAS_ACCOUNTANT:
        return config.plan
    return config.make(execution_plan.PerformanceFlags(noise_seed=3))


def test_the_noise_that_jax_privacy_adds_has_the_variance_that_is_predicted():
    config = bands()
    run = li.DPSGD.from_jax_privacy(config, optimizer=li.SGD(np.linspace(1.0, 0.5, 24), momentum=0.5))
    weights = np.asarray(run.effective_weights())
    zeros = np.zeros(20_000, np.float32)
    privatizer = plan_of(config).noise_addition_transform
    state, total, update = privatizer.init(zeros), np.zeros(zeros.size), jax.jit(privatizer.update)
    for weight in weights:
        noise, state = update(zeros, state)
        total += weight * np.asarray(noise, np.float64)
    predicted = (filtered_noise(run, weights) * run.clip_norm) ** 2
    low, high = chi2.ppf([1e-4, 1.0 - 1e-4], zeros.size) / zeros.size
    assert low < total.var() / predicted < high
    assert predicted < 0.6 * np.sum((weights * run.noise_multiplier * run.clip_norm) ** 2)  # correlation matters


def test_the_matrix_of_jax_privacy_gives_the_same_influences():
    run = li.DPSGD.from_jax_privacy(bands(), optimizer=li.SGD(1.0, momentum=0.9))
    with jax.enable_x64(True):
        matrix = np.asarray(toeplitz.inverse_as_streaming_matrix(jax.numpy.asarray(STRATEGY)).materialize(24))
    weights = np.asarray(run.effective_weights())
    assert influences(run, weights)[0] == pytest.approx(matrix.T @ weights, rel=1e-12)
    assert run.noise_multiplier == pytest.approx(2.0 * np.linalg.norm(STRATEGY))


def test_bands_are_a_cycle_of_groups_and_the_guarantee_counts_participations():
    run = li.DPSGD.from_jax_privacy(bands())
    assert (run.steps, run.sample_rate, run.sampling, run.clip_norm) == (24, pytest.approx(0.1), "poisson", 3.0)
    assert (run.min_separation, run.neighbours) == (4, "zero-out" if HAS_ACCOUNTANT else "add-remove")
    law = law_of(run)
    assert (law.counts.tolist(), law.rates.tolist()) == ([6.0], [pytest.approx(0.4)])
    gaussian = li.DPSGD(1, 1.0, 2.0 / math.sqrt(6.0))
    assert li.composition(run).epsilon(DELTA) == pytest.approx(li.composition(gaussian).epsilon(DELTA), rel=1e-9)


def test_one_band_is_plain_dp_sgd_with_the_noise_that_jax_privacy_calibrates():
    config = bands(strategy=np.array([2.0]), epsilon=1.0, sampling_prob=0.1)
    run = li.DPSGD.from_jax_privacy(config)
    assert (run.noise_filter, run.min_separation, run.sample_rate) == (None, 1, pytest.approx(0.1))
    assert li.composition(run).epsilon(DELTA) == pytest.approx(1.0, abs=1e-3)


@of_2_0
def test_parameters_of_an_accountant_are_a_run_once_the_steps_are_given():
    parameters = analysis.DpParams(
        noise_multipliers=[(0, 1.0), (5, 2.0)],
        num_samples=1000,
        delta=DELTA,
        batch_size=10,
        batch_size_scale_schedule={3: 2},
        examples_per_user=2,
    )
    run = li.DPSGD.from_jax_privacy(parameters, steps=8)
    assert run.sample_rate.tolist() == [0.01] * 3 + [0.02] * 5
    assert run.noise_multiplier.tolist() == [1.0] * 5 + [2.0] * 3
    assert (run.sampling, run.group_size) == ("poisson", 2)
    fixed = analysis.DpParams(
        noise_multipliers=1.0,
        num_samples=100,
        delta=DELTA,
        batch_size=10,
        sampling_method=analysis.SamplingMethod.FIXED_BATCH_SIZE,
    )
    assert li.DPSGD.from_jax_privacy(fixed, steps=8) == li.DPSGD(8, 0.1, 1.0, "fixed")
    cycles = analysis.DpParams(noise_multipliers=1.0, num_samples=100, delta=DELTA, batch_size=5, cycle_length=4)
    run = li.DPSGD.from_jax_privacy(cycles, steps=8, noise_filter=[1.0, -0.5])
    assert run == li.DPSGD(8, 0.05, 1.0, noise_filter=[1.0, -0.5], min_separation=4)


def test_truncated_batches_are_read_with_the_size_of_the_data_set_and_cost_what_jax_privacy_says():
    sizes = dict(truncated_batch_size=12, num_examples=100)
    run = li.DPSGD.from_jax_privacy(bands(strategy=np.array([1.0]), sampling_prob=0.1, epsilon=2.0, **sizes))
    assert (run.sampling, run.max_batch_size, run.dataset_size) == ("truncated-poisson", 12, 100)
    assert (run.neighbours, run.sample_rate) == ("zero-out", pytest.approx(0.1))
    assert li.composition(run).epsilon(DELTA) == pytest.approx(2.0, abs=1e-3)


@of_2_0
def test_truncated_parameters_of_an_accountant_are_read():
    run = li.DPSGD.from_jax_privacy(parameters(truncated_batch_size=12), steps=8)
    assert run == li.DPSGD(8, 0.1, 1.0, "truncated-poisson", max_batch_size=12, dataset_size=100)


def parameters(**changes):
    usual = dict(noise_multipliers=1.0, num_samples=100, delta=DELTA, batch_size=10)
    return analysis.DpParams(**(usual | changes))


@pytest.mark.parametrize(
    ("make", "given", "words"),
    [
        (lambda: bands(column_normalize=True), {}, "column_normalize must be False"),
        (
            lambda: bands(truncated_batch_size=3, num_examples=100),
            {},
            "truncated_batch_size must be None if the strategy has several bands, got 3",
        ),
        (lambda: bands(l2_clip_norm=math.inf), {}, "l2_clip_norm must be greater than 0 and finite"),
        (bands, {"steps": 3}, f"steps must be None for a {Bands.__name__}"),
        (bands, {"optimizer": "sgd"}, "optimizer must be a lastiterate.SGD, a lastiterate.Adam or None"),
        pytest.param(parameters, {}, "steps must be given for DpParams", marks=of_2_0),
        pytest.param(
            lambda: parameters(noise_multipliers=None), {"steps": 3}, "config must have noise_multipliers", marks=of_2_0
        ),
        pytest.param(
            lambda: parameters(cycle_length=4),
            {"steps": 3},
            "noise_filter must be given if and only if cycle_length",
            marks=of_2_0,
        ),
        pytest.param(
            parameters,
            {"steps": 3, "noise_filter": [1.0]},
            "noise_filter must be given if and only if cycle_length",
            marks=of_2_0,
        ),
        (lambda: 1.0, {}, "config must be jax-privacy's BandMFExecutionPlanConfig, BandMFConfig or DpParams, got 1.0"),
    ],
)
def test_what_cannot_be_read_is_asked_for_or_refused(make, given, words):
    with pytest.raises(ValueError, match=words):
        li.DPSGD.from_jax_privacy(make(), **given)


@pytest.mark.skipif(HAS_ACCOUNTANT, reason="the accountant of jax-privacy 2.0 states the neighbours")
def test_a_known_number_of_examples_means_zero_out_neighbours_and_noise_must_be_known():
    assert li.DPSGD.from_jax_privacy(bands(num_examples=100)).neighbours == "zero-out"
    with pytest.raises(
        ValueError, match=r"noise_multiplier must be given, got None: use the config that calibrate\(\)"
    ):
        li.DPSGD.from_jax_privacy(bands(noise_multiplier=None))
