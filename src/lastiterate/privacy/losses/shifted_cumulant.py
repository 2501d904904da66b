"""The cumulant generating function of the privacy loss where steps also carry two trainings back to each other.

A step of convex training (docs/method.md, "Convex losses") is the pair (1 - q) N(a) + q N(a + 1) against N(0), in units
of learning rate times clipping norm: a is the part of the distance that its noise hides. There are many steps, each
with another a, and the distance is random. So M(a, s) = log E exp(s L) is interpolated in a, and

    K(z) = log E exp(sum_t M(a_t, s)),

the mean being over the distance that all a are proportional to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from lastiterate.arrays import FloatArray
from lastiterate.privacy.losses.loss_cumulant import LossCumulant
from lastiterate.privacy.losses.mixture import Points
from lastiterate.privacy.losses.mixture_loss import MixtureLoss
from lastiterate.privacy.losses.step_loss import Loss, Segments, moments_of
from lastiterate.privacy.mixtures.contour import Complex, Unreliable
from lastiterate.privacy.mixtures.distances import Distances, geometric_sum

_NODES = 5  # of the interpolation, at first
_MOST_NODES = 48
_CHECKS = np.array([0.13, 0.47, 0.83])  # where it is compared, in units of the largest a
_ERROR, _ERROR_OF_SLOPES = 1e-11, 1e-6  # of the interpolation, as in `loss_cumulant`
_ERROR_ALONG = 1e-9
_VANISHED = -45.0
_GROUPS = 400  # of steps, whose a are rounded up to the largest of them


@dataclass(frozen=True, eq=False)
class ShiftedCumulant(LossCumulant):
    """K(z) for one direction: ``counts`` are all steps, of the same rate and noise.

    ``shifts`` are what a is for each group of steps at the largest distance, ``group_counts`` how many steps are in a
    group, and ``relative`` the distances in units of the largest, with their log-probabilities.
    """

    shifts: FloatArray = field(kw_only=True)
    group_counts: FloatArray = field(kw_only=True)
    relative: FloatArray = field(kw_only=True)
    log_mass: FloatArray = field(kw_only=True)

    def other_direction(self) -> ShiftedCumulant:
        """Q over P; losses are unbounded here, and nothing can be left out by a cap."""
        return replace(self, remove=False)

    @property
    def _cannot_be_capped(self) -> bool:
        return True

    def largest_loss(self) -> float:
        return math.inf

    def real(self, theta: float) -> tuple[float, float, float]:
        """K, K' and K'' at a real point."""
        if theta not in self._known_moments:
            order = self.order(theta)
            nodes = self._nodes_at(order)
            value, mean, variance = (self._shares(nodes) @ self._moments_at(nodes, order)).T
            mean = mean if self.remove else -mean
            weight = value + self.log_mass
            top = float(weight.max())
            mass = np.exp(weight - top)
            total = float(mass.sum())
            average = float(mass @ mean) / total
            spread = float(mass @ (variance + np.square(mean - average))) / total
            self._known_moments[theta] = math.log(total) + top, average, spread
        return self._known_moments[theta]

    def along(self, theta: float, spacing: float, count: int, fineness: float = 1.0) -> Complex:
        """K(theta + iu) at u = 0, spacing, ..., (count - 1) spacing; on finer grids for comparison."""
        nodes = self._nodes_at(self.order(theta))
        checks = np.array(list(self._logs(self._check_steps, theta, spacing, count, fineness)))
        while nodes <= _MOST_NODES:
            logs = np.array(list(self._logs(self._steps_at(nodes), theta, spacing, count, fineness)))
            result = self._mean_over_distances(nodes, logs)
            counts = (result - result[0].real).real > _VANISHED
            error = np.abs(_cardinal(nodes, _CHECKS) @ logs - checks)[:, counts]
            if np.all(float(self.counts[0]) * error < _ERROR_ALONG):
                return result
            nodes += nodes // 2 + 1
        raise Unreliable

    def _mean_over_distances(self, nodes: int, logs: Complex) -> Complex:
        exponent = self._shares(nodes) @ logs + self.log_mass[:, None]
        top = exponent.real.max(axis=0)
        with np.errstate(divide="ignore"):
            result: Complex = np.log(np.exp(exponent - top).sum(axis=0)) + top
        return result

    def _nodes_at(self, order: float) -> int:
        """How many nodes the interpolation in a needs at a real order; the stronger the tilt, the more."""
        if order not in self._known_nodes:
            truth = moments_of(self._check_steps, order, self._known_checks)
            nodes = _NODES
            while nodes <= _MOST_NODES:
                values = self._moments_at(nodes, order)
                size = np.abs(values).max(axis=0)
                size[0] = max(size[0], size[1])
                error = np.abs(_cardinal(nodes, _CHECKS) @ values - truth).max(axis=0)
                if np.all(error <= (_ERROR, _ERROR_OF_SLOPES, _ERROR_OF_SLOPES) * size):
                    break
                nodes += nodes // 2 + 1
            else:
                raise Unreliable
            self._known_nodes[order] = nodes
        return self._known_nodes[order]

    def _moments_at(self, nodes: int, order: float) -> FloatArray:
        return moments_of(self._steps_at(nodes), order, self._known_tables.setdefault(nodes, {}))

    def _steps_at(self, nodes: int) -> list[Loss]:
        """Steps at the nodes of the interpolation."""
        if nodes not in self._known_steps:
            self._known_steps[nodes] = [self._shifted(place) for place in _places(nodes).tolist()]
        return self._known_steps[nodes]

    @cached_property
    def _check_steps(self) -> list[Loss]:
        return [self._shifted(place) for place in _CHECKS.tolist()]

    def _shifted(self, place: float) -> Loss:
        """The loss of a step whose a is ``place`` times the largest."""
        rate, sigma = float(self.rates[0]), float(self.sigmas[0])
        points = (place * float(self.shifts[0]) + np.array([0.0, 1.0])) / sigma
        mixture = Points(points, np.log([1.0 - rate, rate]))
        return MixtureLoss(mixture, self.remove, self._left_out_of_each, self.cap)

    def _shares(self, nodes: int) -> FloatArray:
        """For each distance, how often M at each node counts in the sum over all steps."""
        if nodes not in self._known_shares:
            relative = self.shifts / self.shifts[0]
            rows = [self.group_counts @ _cardinal(nodes, distance * relative) for distance in self.relative.tolist()]
            self._known_shares[nodes] = np.array(rows)
        return self._known_shares[nodes]

    @cached_property
    def _known_shares(self) -> dict[int, FloatArray]:
        return {}

    @cached_property
    def _known_steps(self) -> dict[int, list[Loss]]:
        return {}

    @cached_property
    def _known_tables(self) -> dict[int, dict[float, Segments]]:
        return {}

    @cached_property
    def _known_checks(self) -> dict[float, Segments]:
        return {}


def shifted_cumulant(steps: int, rate: float, sigma: float, contraction: float, before: Distances) -> ShiftedCumulant:
    """The direction "remove" of the last ``steps``, before which the two trainings are ``before`` apart.

    The a that cost least fall by the contraction from each step to the one before it (docs/method.md).
    """
    together = -(-steps // _GROUPS)
    first = np.arange(0, steps, together)
    largest = float(before.values[-1])
    scale = contraction**steps * largest / geometric_sum(contraction * contraction, steps)
    return ShiftedCumulant(
        *(np.array([value]) for value in (float(steps), rate, sigma)),
        shifts=scale * contraction ** first.astype(np.float64),
        group_counts=np.minimum(steps - first, together).astype(np.float64),
        relative=before.values / largest,
        log_mass=before.log_mass,
    )


def _places(nodes: int) -> FloatArray:
    """Chebyshev's points between 0 and 1."""
    places: FloatArray = 0.5 - 0.5 * np.cos(math.pi * (np.arange(nodes) + 0.5) / nodes)
    return places


def _cardinal(nodes: int, at: FloatArray) -> FloatArray:
    """The polynomials that are 1 at one node and 0 at all others, by the barycentric formula: a row for each place."""
    places = _places(nodes)
    weights = np.where(np.arange(nodes) % 2 == 0, 1.0, -1.0) * np.sin(math.pi * (np.arange(nodes) + 0.5) / nodes)
    distance = at[:, None] - places
    exact = np.abs(distance) < 1e-14
    terms = weights / np.where(exact, 1.0, distance)
    rows = np.where(exact.any(axis=1)[:, None], exact, terms)
    cardinal: FloatArray = rows / rows.sum(axis=1, keepdims=True)
    return cardinal
