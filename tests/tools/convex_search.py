"""Try to break the convex guarantee: exact leakage of small trainings, searched for the worst, against the bound.

`python -m tests.tools.convex_search --trials 20000` draws contracting maps, canaries and runs of at most 8 steps,
changes what leaked most, and prints the largest ratio of exact to guaranteed delta. In one dimension densities are
carried from step to step on a grid, and maps are piecewise linear or the steps of logistic regression with L2; in two,
maps are linear and the last iterate is a mixture of 2^T Gaussians.
"""

import argparse
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

import lastiterate as li

TOLERANCE = 1.5e-3  # of the grids, relative to delta
EPSILONS = (0.0, 0.15, 0.5, 1.2)
_STEP = 0.06  # of the grid, in units of the noise
_LOGISTIC = 0.3  # of all trainings in one dimension
_LEAST = 1e-3  # smaller delta are not resolved by the grid

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """A run, and the contraction that its maps keep."""

    steps: int
    rate: float
    sigma: float
    contraction: float

    def bounds(self) -> Floats:
        """Guaranteed delta at each epsilon."""
        curve = li.convex(li.DPSGD(self.steps, self.rate, self.sigma), contraction=self.contraction)
        return np.array([curve.delta(epsilon) for epsilon in EPSILONS])


@dataclass(frozen=True)
class Training:
    """One training: for each step a continuous map with slopes of at most the contraction, and the canary's gradient.

    Between ``kinks`` the map has constant ``slopes``; the gradient is one number on each side of ``turns``. Where there
    are ``features`` the map is a step of logistic regression with L2 instead, on examples at which the model has the
    value ``kinks``: x -> c x - sum of u (sigmoid(u (x - kink)) - 1/2), with slopes between c - sum u^2 / 4 and c.
    """

    kinks: Floats
    slopes: Floats
    turns: Floats
    gradients: Floats
    features: Floats | None = None

    def moved(self, step: int, x: Floats) -> Floats:
        kinks, slopes = self.kinks[step], self.slopes[step]
        if self.features is not None:
            u = self.features[step]
            pulls: Floats = u @ (expit(u[:, None] * (x - kinks[:, None])) - 0.5)
            return slopes[0] * x - pulls
        pieces = slopes[1:, None] * np.clip(x - kinks[:, None], 0.0, np.append(np.diff(kinks), np.inf)[:, None])
        result: Floats = slopes[0] * np.minimum(x - kinks[0], 0.0) + pieces.sum(axis=0) + slopes[0] * kinks[0]
        return result

    def gradient(self, step: int, x: Floats) -> Floats:
        return np.where(x < self.turns[step], self.gradients[step, 0], self.gradients[step, 1])


def draw_setting(generator: np.random.Generator) -> Setting:
    steps = int(generator.integers(1, 9))
    contraction = float(generator.choice([1.0, generator.uniform(0.2, 1.0), 0.95]))
    rate = float(generator.choice([generator.uniform(0.01, 0.99), 0.05, 0.3]))
    return Setting(steps, rate, float(generator.uniform(0.5, 3.0)), contraction)


def draw_training(setting: Setting, generator: np.random.Generator) -> Training:
    steps, scale = setting.steps, 2.0 * setting.sigma
    slopes = setting.contraction * np.clip(generator.normal(0.7, 0.6, (steps, 4)), -1.0, 1.0)
    gradients = np.where(generator.random((steps, 2)) < 0.8, 1.0, generator.uniform(-1.0, 1.0, (steps, 2)))
    kinks = np.sort(generator.normal(0.0, scale, (steps, 3)), axis=1)
    turns = generator.normal(0.0, scale, steps)
    if generator.random() < _LOGISTIC:
        features = _contracting(generator.normal(0.0, 2.0, (steps, 3)), setting.contraction)
        return Training(kinks, np.full((steps, 1), setting.contraction), turns, gradients, features)
    return Training(kinks, slopes, turns, gradients)


def _contracting(features: Floats, contraction: float) -> Floats:
    """Features small enough for the learning rate: sum u^2 / 4 <= 2 c."""
    squares = np.sum(np.square(features), axis=1, keepdims=True)
    result: Floats = features * np.sqrt(np.minimum(1.0, 8.0 * contraction / squares))
    return result


def changed(training: Training, setting: Setting, generator: np.random.Generator) -> Training:
    """A training like this one."""
    size = 10.0 ** generator.uniform(-2.0, 0.0)
    limit = setting.contraction
    kinks = np.sort(training.kinks + size * generator.normal(size=training.kinks.shape), axis=1)
    if training.features is not None:
        features = _contracting(training.features + size * generator.normal(size=training.features.shape), limit)
        training = replace(training, features=features)
    else:
        slopes = np.clip(training.slopes + size * generator.normal(size=training.slopes.shape), -limit, limit)
        training = replace(training, slopes=slopes)
    gradients = np.clip(training.gradients + size * generator.normal(size=training.gradients.shape), -1.0, 1.0)
    return replace(training, kinks=kinks, gradients=gradients)


def exact_deltas(training: Training, setting: Setting) -> Floats:
    """Delta of the last iterate at each epsilon, the larger of both directions."""
    sigma = setting.sigma
    reach = setting.steps + 9.0 * sigma * np.sqrt(setting.steps)
    x = np.arange(-reach, reach, _STEP * sigma)
    start = np.zeros(1)
    without = with_canary = None
    for step in range(setting.steps):
        before = start if step == 0 else x
        moved, gradient = training.moved(step, before), training.gradient(step, before)
        plain = np.exp(-0.5 * np.square((x[:, None] - moved) / sigma))
        pushed = np.exp(-0.5 * np.square((x[:, None] - moved - gradient) / sigma))
        plain, pushed = plain / plain.sum(axis=0), pushed / pushed.sum(axis=0)
        mixed = (1.0 - setting.rate) * plain + setting.rate * pushed
        without = plain @ (np.ones(1) if without is None else without)
        with_canary = mixed @ (np.ones(1) if with_canary is None else with_canary)
    assert without is not None
    assert with_canary is not None
    return _deltas(with_canary, without)


def exact_deltas_in_two_dimensions(setting: Setting, generator: np.random.Generator) -> Floats:
    """The same for maps that turn and contract the plane, with gradients in any direction."""
    turn, steps, sigma = generator.uniform(-1.0, 1.0), setting.steps, setting.sigma
    factor = setting.contraction * np.exp(1j * turn)
    gradients = np.exp(1j * generator.choice([turn, 0.0, 1.0]) * np.arange(steps))
    if generator.random() < 0.3:
        gradients = np.exp(2j * np.pi * generator.random(steps))
    centres, mass = np.zeros(1, complex), np.ones(1)
    for step in range(steps):
        centres = np.concatenate((factor * centres, factor * centres + gradients[step]))
        mass = np.concatenate(((1.0 - setting.rate) * mass, setting.rate * mass))
    noise = sigma * np.sqrt(np.sum(setting.contraction ** (2.0 * np.arange(steps))))
    axis = np.arange(-7.0 * noise - steps, 7.0 * noise + steps, 0.08 * noise)
    shape = [np.exp(-0.5 * np.square((axis[:, None] - part) / noise)) for part in (centres.real, centres.imag)]
    plain = np.exp(-0.5 * np.square(axis / noise))
    with_canary, without = (shape[0] * mass) @ shape[1].T, np.outer(plain, plain)
    return _deltas(with_canary / with_canary.sum(), without / without.sum())


def _deltas(first: Floats, second: Floats) -> Floats:
    return np.array(
        [
            max(_positive_part(p - np.exp(epsilon) * q) for p, q in ((first, second), (second, first)))
            for epsilon in EPSILONS
        ]
    )


def _positive_part(values: Floats) -> float:
    """The integral of the positive part of a function that is linear between the points of the last axis."""
    left, right = values[..., :-1], values[..., 1:]
    high = np.maximum(np.maximum(left, right), 0.0)
    crossing = 0.5 * high * high / np.maximum(np.abs(left) + np.abs(right), 1e-300)
    return float(np.where(left * right < 0.0, crossing, 0.5 * np.maximum(left + right, 0.0)).sum())


def largest_ratio(setting: Setting, trials: int, generator: np.random.Generator) -> float:
    """Of exact to guaranteed delta, in so many trainings, half of which change the worst before them."""
    bounds = np.maximum(setting.bounds(), _LEAST)
    worst, training = 0.0, draw_training(setting, generator)
    for trial in range(trials):
        tried = changed(training, setting, generator) if trial % 2 else draw_training(setting, generator)
        ratio = float(np.max(exact_deltas(tried, setting) / bounds))
        if ratio > worst:
            worst, training = ratio, tried
        if trial % 4 == 0:
            flat = exact_deltas_in_two_dimensions(setting, generator)
            worst = max(worst, float(np.max(flat / bounds)))
    return worst


def main() -> None:
    """Search, and print the largest ratio of each setting that exceeds all before it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20_000)
    parser.add_argument("--of-each", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator, worst = np.random.default_rng(options.seed), 0.0
    for _ in range(options.trials // options.of_each):
        setting = draw_setting(generator)
        ratio = largest_ratio(setting, options.of_each, generator)
        if ratio > worst:
            worst = ratio
            print(f"{worst:.5f} {setting}", flush=True)
        if ratio > 1.0 + TOLERANCE:
            raise SystemExit(f"violated: {ratio} {setting}")
    print(f"largest ratio {worst:.5f} in {options.trials} trials")


if __name__ == "__main__":
    main()
