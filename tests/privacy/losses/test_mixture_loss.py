"""Losses of groups and blocks: against high precision, against each other, and the theorem that they are the worst."""

import math

import mpmath
import numpy as np
import pytest
from scipy.stats import norm

import lastiterate as li
from lastiterate.privacy.losses.certified_bracket import log_moment_bound
from lastiterate.privacy.losses.gaussian_mixture import Points, binomial_points, interpolated
from lastiterate.privacy.losses.mixture_loss import MixtureLoss, Transformed, mixture_of
from lastiterate.privacy.losses.step_loss import moments_of
from lastiterate.privacy.mixtures.law import law_of

X = np.array([-30.0, -8.0, -1.0, 0.0, 0.1, 2.0, 7.5, 30.0])


def log_moment(trials, rate, unit, order, mirrored=False):
    """log E exp(s L) with 30 digits."""
    with mpmath.workdps(30):
        masses = [
            mpmath.binomial(trials, k) * mpmath.mpf(rate) ** k * (1 - mpmath.mpf(rate)) ** (trials - k)
            for k in range(trials + 1)
        ]

        def ratio(x):
            return sum(mass * mpmath.exp(unit * k * x - (unit * k) ** 2 / 2) for k, mass in enumerate(masses))

        def integrand(x):
            other = ratio(-x) ** (1 - order) if mirrored else 1
            return mpmath.npdf(x) * ratio(x) ** order * other

        return float(mpmath.log(mpmath.quad(integrand, [-20, -8, -4, -2, 0, 2, 4, 8, 14, 20, 30])))


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("order", [-1.5, 0.5, 2.0, 6.0])
def test_log_moments_of_a_group_agree_with_high_precision(order, mirrored):
    loss = MixtureLoss(binomial_points(3, 0.1, 0.8), True, -300.0, mirrored=mirrored)
    expected = log_moment(3, 0.1, 0.8, order, mirrored)
    assert moments_of([loss], order)[0, 0] == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert expected <= log_moment_bound(loss, order) <= expected + 1e-10 * max(1.0, abs(expected))


def test_the_transform_the_sum_and_the_polynomials_give_one_loss():
    run = li.DPSGD(10, 0.1, 1.0, optimizer=li.SGD(0.5, weight_decay=0.3))
    law = law_of(run)
    points, is_rounded = mixture_of(law, up=True)
    assert isinstance(points, Points)
    assert not is_rounded
    transformed, polynomials = Transformed(law), interpolated(points, -30.0, 30.0)
    for other in transformed, polynomials:
        for name in ("loss", "slope", "curvature"):
            assert getattr(other.at(X), name) == pytest.approx(getattr(points.at(X), name), rel=1e-9, abs=1e-11)
    assert transformed.unseen == pytest.approx(points.unseen, rel=1e-12)
    for x in (-2.0, 3.0):
        assert transformed.tails(x) == pytest.approx(points.tails(x), rel=1e-9, abs=1e-15)
    assert transformed.far(-40.0) == pytest.approx(points.far(-40.0), rel=1e-5)


def delta_in_the_plane(shifts, others, masses, sigma, epsilon, cells=500):
    """Of mixtures of Gaussians around points of the plane, by a plain sum."""
    axis = np.linspace(-4.0 - 7.0 * sigma, 4.0 + 7.0 * sigma, cells)

    def density(centres):
        return sum(
            mass * np.multiply.outer(norm.pdf(axis, x, sigma), norm.pdf(axis, y, sigma))
            for mass, (x, y) in zip(masses, centres, strict=True)
        )

    p, q, area = density(shifts), density(others), (axis[1] - axis[0]) ** 2
    return max(float(np.maximum(a - math.exp(epsilon) * b, 0.0).sum()) * area for a, b in ((p, q), (q, p)))


@pytest.mark.parametrize("neighbours", ["add-remove", "replace"])
def test_no_gradients_of_a_person_are_worse_than_equal_ones(neighbours):
    """The theorem of docs/method.md, "The worst pair", for people with two examples and gradients at random."""
    random, rate, sigma = np.random.default_rng(0), 0.3, 0.9
    worst = li.composition(li.DPSGD(1, rate, sigma, group_size=2, neighbours=neighbours))
    masses = [(1 - rate) ** 2, rate * (1 - rate), rate * (1 - rate), rate**2]
    for turn in range(12):
        angles, lengths = random.uniform(0.0, 2.0 * math.pi, 4), random.uniform(0.3, 1.0, 4)
        if turn == 0:
            angles, lengths = np.array([0.0, 0.0, math.pi, math.pi]), np.ones(4)  # the worst
        first, second, third, fourth = (lengths[:, None] * np.stack((np.cos(angles), np.sin(angles)), axis=1)).tolist()
        shifts = [(0.0, 0.0), first, second, np.add(first, second)]
        others = [(0.0, 0.0), third, fourth, np.add(third, fourth)]
        if neighbours == "add-remove":
            others = [(0.0, 0.0)] * 4
        for epsilon in (0.2, 1.5):
            found = delta_in_the_plane(shifts, others, masses, sigma, epsilon)
            assert found <= worst.delta(epsilon) * (1.0 + 2e-4)
            if turn == 0:
                assert found == pytest.approx(worst.delta(epsilon), rel=1e-3)
