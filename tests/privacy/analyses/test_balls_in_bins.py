"""Balls in bins: the guarantee against independent integrals, the reference values, and other samplings."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

import lastiterate as li
from lastiterate.privacy.losses.composition_values import epsilon_of, log_delta_of
from lastiterate.privacy.losses.epoch_density import epoch_density
from lastiterate.privacy.losses.epoch_loss import epoch_cumulant
from tests.privacy.helpers import references, relative_error

ROWS = references("allocation")


def bins(batches, steps, noise, **more):
    return li.DPSGD(steps, 1.0 / batches, noise, sampling="balls-in-bins", **more)


def excess(slope, limit):
    """E max(Y - limit, 0) of the log-normal term Y with mean 1."""
    at = np.log(np.maximum(limit, 1e-300)) / slope
    part = ndtr(0.5 * slope - at) - limit * ndtr(-0.5 * slope - at)
    return np.where(limit > 0.0, part, 1.0 - limit)


def direct_delta(noise, batches, used, epsilon, add):
    """Delta of one epoch with 2 or 3 used batches. The last term is integrated in closed form."""
    slope = 1.0 / noise
    x = np.linspace(-14.0, 14.0 + slope, 100_001 if used == 2 else 501)
    weight = np.exp(-0.5 * x * x) * (x[1] - x[0]) / math.sqrt(2.0 * math.pi)
    term = np.exp(slope * x - 0.5 * slope * slope)
    for _ in range(used - 2):
        term = np.add.outer(term, np.exp(slope * x - 0.5 * slope * slope)).ravel()
        weight = np.multiply.outer(weight, weight).ravel()
    size = math.exp(-epsilon if add else epsilon)
    limit = batches * size - (batches - used) - term  # of the last term
    above = excess(slope, limit) / batches
    if not add:
        return float(weight @ above)
    return float(weight @ (above - (1.0 - limit) / batches)) / size


def directions(run):
    cumulant = epoch_cumulant(run)
    return cumulant, cumulant.other_direction()


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_both_directions_agree_with_references(row):
    batches = row["steps_per_epoch"]
    run = bins(batches, batches * row["epochs"], row["noise_multiplier"])
    values = [epsilon_of(cumulant, math.log(row["delta"]))[0] for cumulant in directions(run)]
    assert values == pytest.approx([row["remove"], row["add"]], rel=1e-8, abs=1e-9)
    curve = li.composition(run)
    assert relative_error(curve.epsilon(row["delta"]), row["epsilon"]) < 1e-9
    lower, upper = curve.bracket(row["delta"])
    assert lower < row["epsilon"] < upper
    assert curve.epsilon(row["delta"]) < li.composition(run.replace(sampling="poisson")).epsilon(row["delta"])


@pytest.mark.parametrize(
    ("noise", "batches", "used", "accuracy"),
    [
        *((0.3, 2, 2, 1e-8), (0.6, 7, 2, 1e-8), (1.0, 2, 2, 1e-8), (2.5, 7, 2, 1e-8), (5.0, 2, 2, 1e-8)),
        *((0.8, 3, 3, 1e-3), (2.0, 50, 3, 1e-4)),
    ],
)
def test_short_epochs_agree_with_direct_integration(noise, batches, used, accuracy):
    for cumulant, add in zip(directions(bins(batches, used, noise)), (False, True), strict=True):
        for epsilon in (0.05, 0.4, 2.0):
            delta = direct_delta(noise, batches, used, epsilon, add)
            if delta > 1e-14:
                value, slope = cumulant.log_delta_of_one(epsilon)
                assert value == pytest.approx(math.log(delta), abs=accuracy)
                found = cumulant.epsilon_of_one(math.log(delta))
                assert found == pytest.approx(epsilon, abs=accuracy / abs(slope))


def test_two_batches_have_the_known_epsilons():
    values = [epsilon_of(cumulant, math.log(1e-5))[0] for cumulant in directions(bins(2, 2, 1.0))]
    assert values == pytest.approx([3.697385, 3.079732], abs=1e-6)


@pytest.mark.parametrize(
    ("noise", "batches", "epochs", "epsilon"), [(1.0, 5, 1, 0.5), (0.8, 4, 3, 2.0), (2.0, 3, 6, 0.7)]
)
def test_simulated_losses_agree(noise, batches, epochs, epsilon):
    generator = np.random.default_rng(33)
    x = noise * generator.standard_normal((50_000, epochs, batches))
    x[..., 0] += 1.0  # by symmetry, the canary is in the first batch
    loss = np.log(np.exp((2.0 * x - 1.0) / (2.0 * noise**2)).mean(axis=2)).sum(axis=1)
    shares = np.maximum(-np.expm1(epsilon - loss), 0.0)
    delta = math.exp(log_delta_of(directions(bins(batches, batches * epochs, noise))[0], epsilon))
    assert abs(shares.mean() - delta) < 4.0 * shares.std() / math.sqrt(shares.size)


@pytest.mark.parametrize(
    ("noise", "epsilon", "known"), [(1.0, 15.0, 1.202905e-53), (1.0, 20.0, 2.64141e-92), (3.0, 6.0, 2.78398e-90)]
)
def test_the_smallest_deltas_of_one_epoch_are_not_lost(noise, epsilon, known):
    """Known values are of an integral over the log of one term, with the other term in closed form."""
    curve = li.composition(bins(2, 2, noise))
    assert curve.delta(epsilon) == pytest.approx(known, rel=1e-5, abs=0.0)
    assert curve.delta(epsilon) > li.last_iterate(bins(2, 2, noise)).delta(epsilon)
    assert curve.epsilon(curve.delta(epsilon)) == pytest.approx(epsilon, rel=1e-9)


def test_one_batch_is_the_gaussian_mechanism_and_one_step_is_poisson():
    assert li.composition(bins(1, 10, 2.0)).epsilon(1e-5) == li.composition(
        bins(
            1,
            10,
            2.0,
        ).replace(sampling="full")
    ).epsilon(1e-5)
    one = bins(100, 1, 1.0)
    assert li.composition(one).epsilon(1e-5) == li.composition(one.replace(sampling="poisson")).epsilon(1e-5)


def test_unfinished_epoch_costs_less_than_a_whole_one():
    values = [li.composition(bins(20, steps, 1.0)).epsilon(1e-5) for steps in (40, 41, 47, 59, 60)]
    assert values == sorted(values)


@pytest.mark.parametrize(("noise", "terms"), [(0.25, 20), (0.6, 500), (1.0, 1023), (100.0, 7)])
def test_density_has_the_moments_of_the_mean(noise, terms):
    density = epoch_density(noise, terms)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    w = density.places(nodes)
    mass = np.exp(density(w)) * (0.5 * np.diff(density.ends)[:, None] * weights)
    variance = math.expm1(noise**-2) / terms
    assert [mass.sum(), (mass * np.exp(w)).sum()] == pytest.approx([1.0, 1.0], abs=1e-12)
    assert (mass * np.exp(2.0 * w)).sum() == pytest.approx(1.0 + variance, rel=1e-12)
    assert density.error < 1e-12


def test_all_analyses_take_the_run():
    run = bins(10, 45, 1.0, optimizer=li.SGD(0.1, momentum=0.5))
    assert li.composition(run).epsilon(1e-5) > li.last_iterate(run).epsilon(1e-5)
    assert li.no_amplification(run).epsilon(1e-5) > li.composition(run).epsilon(1e-5)
    assert li.max_over_steps(run).epsilon(1e-5) >= li.last_iterate(run).epsilon(1e-5)
    shuffled = run.replace(sampling="shuffled")
    assert li.last_iterate(run).epsilon(1e-5) == li.last_iterate(shuffled).epsilon(1e-5)
    everything = bins(10, 45, 1.0, releases=45)
    assert li.last_iterate(everything).epsilon(1e-5) == li.composition(run).epsilon(1e-5)
    assert li.composition(bins(10, 45, 1.0, noise_filter=[1.0, -0.5])).epsilon(1e-5) > 0.0


def test_calibrated_noise_reaches_its_target():
    run = li.calibrate(bins(10, 100, 1.0), epsilon=3.0, delta=1e-5, analysis=li.composition)
    assert 3.0 - 1e-5 < li.composition(run).epsilon(1e-5) <= 3.0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"group_size": 2}, "group_size must be 1 with sampling 'balls-in-bins' for composition, got 2"),
        ({"neighbours": "replace"}, "neighbours must be 'add-remove' or 'zero-out' with sampling 'balls-in-bins'"),
        ({"noise_multiplier": np.linspace(1.0, 2.0, 20)}, "noise_multiplier must be one number with sampling"),
    ],
)
def test_unknown_laws_are_refused_with_a_way_out(change, sentence):
    with pytest.raises(ValueError, match=r"lastiterate\.no_amplification still holds") as refusal:
        li.composition(bins(10, 20, 1.0).replace(**change))
    assert str(refusal.value).startswith(sentence)
    assert li.no_amplification(bins(10, 20, 1.0).replace(**change)).epsilon(1e-5) > 0.0


def test_examples_of_a_group_pick_their_bins_independently():
    run = bins(2, 3, 1.0, group_size=2)
    law = li.privacy.mixtures.law.law_of(run)
    assert (law.constant, law.counts.tolist(), law.rates.tolist()) == (2.0, [2.0], [0.5])


def test_batches_of_an_epoch_are_a_whole_number():
    run = li.DPSGD.from_batches(50_000, 512, 60, 0.7, sampling="balls-in-bins")
    assert (run.steps, run.sample_rate, run.batches_per_epoch) == (5880, 1 / 98, 98)
    assert repr(run).count("batches_per_epoch") == 0
    with pytest.raises(ValueError, match=r"sample_rate must be 1 / \(a whole number of batches\)"):
        li.DPSGD(10, 0.3, 1.0, sampling="balls-in-bins")
    with pytest.raises(ValueError, match=r"batches_per_epoch must be 10 with sample_rate 0\.1, got 11"):
        li.DPSGD(10, 0.1, 1.0, sampling="balls-in-bins", batches_per_epoch=11)
