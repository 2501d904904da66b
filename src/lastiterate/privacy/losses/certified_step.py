"""One step's factor of a line, with bounds on its errors from quadrature in x, Taylor's series and rounding.

Rounding follows the standard model: every operation has an error of at most half a unit in the last place, and exp, log
and similar functions of one unit. The error of fast Fourier transforms follows Higham (2002), Theorem 24.2, with a
constant that allows for mixed radices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lastiterate.common.types import BoolArray, FloatArray
from lastiterate.privacy.losses.fourier_sums import characteristic
from lastiterate.privacy.losses.loss_cumulant import Certain
from lastiterate.privacy.losses.step_loss import Loss, Nodes, weighted_rise
from lastiterate.privacy.mixtures.fourier import Unreliable

ULP = 2.0**-52
_OF_FFT = 12.0  # Higham has 7 for radix 2; in units of half an ulp times log2 of the size times the norm of the result
_OF_SERIES = math.exp(0.5 * math.pi)  # the sum of the moduli of the coefficients of Taylor's series
_LARGEST_BOUND = math.log(1e-3)  # log of the largest admissible error of quadrature; usually the error is 1e-15
_FINER = 1.3  # ratio of successive frequencies at which errors of masses are summed
_NO_MASS = 1e-24  # mass of one node below which the node is left out


@dataclass(frozen=True, eq=False)
class ProvedStep:
    """exp M(s) along a line: exp(log_total) times a modulus and a phase, with bounds on the errors."""

    log_total: float
    error_of_total: float  # error bound of log_total
    mean: float  # about the mean of the loss under the tilt; mean times u is subtracted from the phase
    log_modulus: FloatArray
    phase: FloatArray
    log_upper: FloatArray  # log of modulus plus the largest error of the complex value


def proved_step(step: Loss | Certain, order: float, spacing: float, count: int) -> ProvedStep:
    """Return exp M(s) with bounds for s = order + iu at u = 0, spacing, ..., (count - 1) spacing."""
    u = spacing * np.arange(count, dtype=np.float64)
    if isinstance(step, Certain):
        value, mean, variance = step.moments(order)
        log_modulus = -0.5 * variance * u * u
        upper = log_modulus + 4.0 * ULP * np.abs(log_modulus)
        return ProvedStep(value, 4.0 * ULP * abs(value), mean, log_modulus, np.zeros(count), upper)
    nodes = step.nodes(order, float(u[-1]))
    log_total, mass = _masses(nodes, order)
    kept = mass > _NO_MASS
    dropped = float(mass[~kept].sum())
    loss, mass = nodes.loss[kept], mass[kept]
    mean = float(mass @ loss)
    quadrature = _bound(step, nodes, order, float(u[-1]), log_total)
    moved, of_masses = _rounding(step, nodes, order, kept)
    of_loss = ULP * float(mass @ (8.0 * np.abs(loss) + 2.0 * moved + 16.0 * np.abs(loss - mean)))
    got = characteristic(loss - mean, mass, spacing, count)
    of_transform = 0.5 * _OF_FFT * math.log2(got.size) * math.sqrt(got.size) * got.norm + 80.0 * got.far
    everywhere = 2.0 * (quadrature + dropped) + got.remainder() + _OF_SERIES * ULP * of_transform
    error = everywhere + _times_distance(mass * (of_masses + float(mass @ of_masses)), loss - mean, u) + of_loss * u
    log_modulus, phase = got.logarithm()
    modulus = np.exp(log_modulus)
    log_upper = np.where(error < modulus, log_modulus + np.log1p(error / modulus), np.log(modulus + error))
    log_upper += 4.0 * ULP * np.abs(log_upper)
    value, off = _log_total(step, nodes, order, log_total, float(of_masses.max()), quadrature)
    return ProvedStep(value, off, mean, log_modulus, phase, log_upper)


def log_moment_bound(step: Loss | Certain, order: float) -> float:
    """Return an upper bound on M(s) at a real s."""
    if isinstance(step, Certain):
        value = step.moments(order)[0]
        return value + 4.0 * ULP * abs(value)
    nodes = step.nodes(order, 0.0)
    log_total, mass = _masses(nodes, order)
    of_mass = float(_rounding(step, nodes, order, mass > _NO_MASS)[1].max())
    return sum(_log_total(step, nodes, order, log_total, of_mass, _bound(step, nodes, order, 0.0, log_total)))


def _masses(nodes: Nodes, order: float) -> tuple[float, FloatArray]:
    """Return log of the sum of the nodes' weights under the tilt, and each node's share of the sum."""
    exponent = nodes.log_weight + order * nodes.loss
    top = float(exponent.max())
    mass = np.exp(exponent - top)
    total = float(mass.sum())
    return top + math.log(total), mass / total


def _rounding(step: Loss, nodes: Nodes, order: float, kept: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return the error of each loss in ulps due to rounding of its x, and the relative error of each mass.

    A node is off by an ulp of x, which moves its loss by L' x ulp and its weight by (|s| L' + |x|) x ulp.
    """
    x, loss = nodes.x[kept], nodes.loss[kept]
    moved = step.moved(x)
    exponents = 4.0 * np.abs(nodes.log_weight[kept]) + abs(order) * (4.0 * np.abs(loss) + moved) + x * x
    if step.density_is_off:
        exponents = exponents + step.density_is_off * moved
    return moved, ULP * (40.0 + exponents)


def _times_distance(weights: FloatArray, loss: FloatArray, u: FloatArray) -> FloatArray:
    """Return an upper bound on the sum of weights times |exp(iu loss) - 1|, the factor of errors of masses.

    The factor is at most min(2, u |loss|), which rises with u. The sum is computed at some u; for the others the next
    larger one is used.
    """
    knots = u[-1] * _FINER ** -np.arange(math.ceil(math.log(u.size) / math.log(_FINER)) + 1.0)[::-1]
    sums = np.minimum(2.0, knots[:, None] * np.abs(loss)) @ weights
    return 1.000001 * np.where(u > 0.0, sums[np.minimum(np.searchsorted(knots, u), knots.size - 1)], 0.0)


def _log_total(
    step: Loss, nodes: Nodes, order: float, value: float, of_mass: float, quadrature: float
) -> tuple[float, float]:
    """Return log E exp(s L) at a real s, and a bound on its error."""
    if not abs(value) < 0.5:
        if not of_mass + quadrature < 1.0:
            raise Unreliable
        return value, -math.log1p(-of_mass - quadrature) + 4.0 * ULP * abs(value)
    rise = weighted_rise(nodes, order)
    with_canary, without = step.outside
    value = math.log1p(float(rise.sum()) + order * (without - with_canary) - without)
    rise, growth = np.abs(rise), np.abs(np.exp(nodes.log_weight + nodes.loss) - np.exp(nodes.log_weight))
    moved = np.abs(nodes.loss) * 8.0 + 2.0 * step.moved(nodes.x)
    steepness = abs(order) * (rise + abs(order - 1.0) * growth)  # the derivative of the rise by the loss
    sizes = (40.0 + 4.0 * np.abs(nodes.log_weight) + nodes.x**2) * rise + 4.0 * abs(order) * growth
    if step.density_is_off:
        sizes = sizes + step.density_is_off * step.moved(nodes.x) * rise
    # The normal distribution's tails are accurate to an ulp or two, but their end points are rounded.
    tails = abs(order) * (with_canary + without) + without
    rounding = ULP * (float(np.sum(sizes + moved * steepness)) + (8.0 + 2.0 * step.window[1] ** 2) * tails)
    panels = sum(
        factor * _bound(step, nodes, at, 0.0, 0.0)
        for factor, at in ((1.0, order), (1.0 + abs(order), 0.0), (abs(order), 1.0))
    )
    return value, (rounding + panels) / math.exp(value) + ULP * abs(value)


def _bound(step: Loss, nodes: Nodes, order: float, frequency: float, log_unit: float) -> float:
    """Return a bound on the panels' error in units of exp(log_unit)."""
    log_bound = step.log_error(nodes, order, frequency) - log_unit
    if not log_bound < _LARGEST_BOUND:
        raise Unreliable
    return math.exp(log_bound)
