"""Attacks on several released iterates: likelihood ratios of the displacements between releases.

A block is the steps between two released iterates. With plain SGD and weight decay, the share of the previous iterate
that remains after a block is known. The rest of the new iterate is what the block added: noise, natural gradients and
the canary. With momentum, the attack needs all iterates and recovers every gradient from them. Blocks are independent,
so the sum of their log-likelihood ratios is the ratio of all iterates. No attack on linear losses does better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.attacks.attack import Armed, Facts, LikelihoodRatio, References
from lastiterate.common.types import BoolArray, FloatArray
from lastiterate.common.validation import per_step
from lastiterate.privacy.losses.mixture_loss import mixture_of
from lastiterate.privacy.mixtures.law import BLOCKS, Law, law_of, laws_in_order, released_laws
from lastiterate.run import DPSGD
from lastiterate.supported_runs import (
    ADAM,
    AVERAGING,
    BASIC,
    COMBINATIONS,
    LINEAR,
    Support,
    require_supported,
    reveals_every_step,
)

if TYPE_CHECKING:
    from jaxtyping import PyTree

    from lastiterate.training.problem import Canary, Problem


# Likelihood ratios: scores of all released iterates.


def sample_released_scores(
    run: DPSGD, present: BoolArray, generator: np.random.Generator, signal: float = 1.0, noise: float = 1.0
) -> FloatArray:
    """Draw scores with the canary and without it; ``signal`` and ``noise`` are as in ``LikelihoodRatio``."""
    mirrored = run.is_mirrored
    total = np.zeros(present.size)
    for count, law in released_laws(run):
        shown = law.scaled(1.0, law.noise / signal)
        for _ in range(int(count)):
            seen = noise * generator.standard_normal(present.size)
            seen[present] += shown.sample(int(present.sum()), generator) / shown.noise
            if mirrored:
                seen[~present] -= shown.sample(int((~present).sum()), generator) / shown.noise
            total += block_ratio(shown, seen, mirrored=mirrored)
    return total


def released_ratios(run: DPSGD, seen: FloatArray, signal: float = 1.0) -> FloatArray:
    """Return the score of each model. ``seen`` [models, blocks] is what each block added, in units of its noise."""
    total = np.zeros(len(seen))
    blocks: dict[int, tuple[Law, list[int]]] = {}
    for column, law in enumerate(laws_in_order(run)):
        if law is not None:
            blocks.setdefault(id(law), (law, []))[1].append(column)
    for law, columns in blocks.values():
        shown, there = law.scaled(1.0, law.noise / signal), seen[:, columns]
        ratios = block_ratio(shown, there.ravel(), mirrored=run.is_mirrored)
        total += ratios.reshape(there.shape).sum(axis=1)
    return total


def block_ratio(law: Law, seen: FloatArray, *, mirrored: bool) -> FloatArray:
    """Return the log-likelihood ratio of S + N against N, or against -S + N if ``mirrored``, at the values ``seen``.

    S is the canary's part of what a block adds, and N is normal noise, both in units of the noise. S is not negative.
    If the noise is too small to compute with the exact distribution of S, its weights are rounded up. The result is
    then not the exact ratio, but it is still a valid score.
    """
    if law.low == law.high:
        size = law.high / law.noise
        return 2.0 * size * seen if mirrored else size * seen - 0.5 * size**2
    if not seen.size:
        return np.zeros(0)
    mixture = mixture_of(law, up=True)[0]
    farthest = float(np.max(np.abs(seen)))
    low, high = (-farthest, farthest) if mirrored else (float(seen.min()), float(seen.max()))
    loss = mixture.within(low, max(high, low + 1e-9)).loss
    return loss(seen) - loss(-seen) if mirrored else loss(seen)


# Linear score: a projection of the released parameters, in units of the noise.


@dataclass(frozen=True, eq=False)
class LinearScore:
    """The score (-<parameters, weights> - centre) / unit."""

    weights: FloatArray  # one weight per parameter, as a flat array
    centre: float
    unit: float

    def __call__(self, parameters: PyTree) -> FloatArray:
        return (positions_along(self.weights)(parameters) - self.centre) / self.unit


def noise_unit(run: DPSGD) -> float:
    """Return the standard deviation of the noise in one released parameter."""
    weights = require_supported(run, Support("attacks on the last iterate", LINEAR | COMBINATIONS)).effective_weights()
    size = float(np.max(np.abs(weights)))
    return size * law_of(run).noise * run.clip_norm


# Recovered gradients: the gradient of a step from the iterates before and after it.


def recovered_gradients(run: DPSGD, iterates: FloatArray) -> FloatArray:
    """Return the gradients of all steps, [models, steps], from a parameter at all iterates, [models, steps + 1]."""
    sgd = run.optimizer
    assert sgd is not None
    rates = np.broadcast_to(per_step("learning_rate", sgd.learning_rate, run.steps), run.steps)
    if not rates.all():
        raise ValueError("learning_rate must not be 0 at any step for the likelihood ratio: that step shows nothing")
    buffer, found = np.zeros(len(iterates)), np.empty((len(iterates), run.steps))
    for step, rate in enumerate(rates.tolist()):
        before, after = iterates[:, step], iterates[:, step + 1]
        kept = 1.0 - rate * sgd.weight_decay if sgd.decoupled else 1.0
        direction = (kept * before - after) / rate
        gradient = direction
        if sgd.momentum:
            entering = 1.0 if step == 0 else 1.0 - sgd.dampening
            if sgd.nesterov:
                gradient = (direction - sgd.momentum**2 * buffer) / (1.0 + sgd.momentum * entering)
            else:
                gradient = (direction - sgd.momentum * buffer) / entering
            buffer = sgd.momentum * buffer + entering * gradient
        if sgd.weight_decay and not sgd.decoupled:
            gradient = gradient - sgd.weight_decay * before
        found[:, step] = gradient
    return found


_SEVERAL_RELEASES = Support(
    "attacks on several releases",
    BLOCKS.features - {ADAM, AVERAGING},
    {ADAM: "a step of Adam does not reveal the gradient", AVERAGING: "averages are not taken apart"},
)


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of a run. They convert projections of released iterates to what each block added."""

    run: DPSGD
    kept: FloatArray  # share of the iterate before each block that remains after weight decay
    units: FloatArray  # standard deviation of each block's noise in a parameter; infinite if a block adds nothing

    @classmethod
    def of(cls, run: DPSGD) -> Blocks:
        """Return the blocks of a run. Raise an error if the blocks cannot be separated."""
        laws = laws_in_order(require_supported(run, _SEVERAL_RELEASES))
        ends = np.concatenate(([0], run.released_steps())).tolist()
        if _by_gradients(run):
            noise = np.broadcast_to(np.asarray(run.noise_multiplier, np.float64), run.steps)
            return cls(run, np.zeros(run.steps), noise * run.clip_norm)
        rate, decay = (1.0, 0.0) if run.optimizer is None else (run.optimizer.learning_rate, run.optimizer.weight_decay)
        left = 1.0 - decay * np.broadcast_to(np.asarray(rate, np.float64), run.steps)
        kept = np.array([np.prod(left[start:stop]) for start, stop in pairwise(ends)])
        units = [
            np.inf if law is None else noise_unit(run.stretch(start, stop))
            for law, (start, stop) in zip(laws, pairwise(ends), strict=True)
        ]
        return cls(run, kept, np.array(units))

    def added(self, positions: FloatArray) -> FloatArray:
        """Return what each block added. ``positions`` are projections of the initial and the released iterates."""
        if _by_gradients(self.run):
            return recovered_gradients(self.run, -positions) / self.units
        return (positions[:, 1:] - self.kept * positions[:, :-1]) / self.units

    def scores(self, positions: FloatArray, facts: Facts) -> FloatArray:
        """Return the log-likelihood ratios of models. ``facts`` come from ``natural_blocks``."""
        seen = (self.added(positions) - np.array(facts["centres"])) / facts["spread"]
        return released_ratios(self.run, seen, facts["signal"] / facts["spread"])


def _by_gradients(run: DPSGD) -> bool:
    return reveals_every_step(run) and run.optimizer is not None and bool(run.optimizer.momentum)


def expected_ratios(facts: Facts) -> LikelihoodRatio:
    """Return the distribution of these scores that the linear analysis predicts."""
    return LikelihoodRatio(released=True, signal=facts["signal"] / facts["spread"])


def score_unit(facts: Facts) -> str:
    """Return the unit of the score."""
    return "nats of the log-likelihood ratio" if "releases" in facts else "standard deviations of the noise"


def armed_for_releases(run: DPSGD, problem: Problem, canary: Canary, along: FloatArray, facts: Facts) -> Armed:
    """Return an attack with a canary along ``along`` that scores all released iterates."""
    blocks = Blocks.of(run)

    def last(parameters: PyTree) -> FloatArray:
        raise ValueError(f"score must see all {run.release_count} releases, got the last one alone")

    def watch() -> Collected:
        return Collected(positions_along(along), lambda positions: blocks.scores(positions, facts))

    return Armed(problem, canary, last, watch, released_only=True)


def natural_blocks(
    blocks: Blocks, problem: Problem, references: References, models: int, along: FloatArray, signal: float
) -> Facts:
    """Return the visible share of a canary along ``along``, and the centres and spread of models without the canary.

    Each model is trained on the data, and again on no data. Both trainings have the same noise, so the difference is
    the effect of the natural gradients.
    """
    from lastiterate.training.problem import GradientCanary, flatten_one

    nothing = problem.without_examples()
    absent = GradientCanary(np.zeros(along.size, np.float32))
    run, project = blocks.run, positions_along(along)
    silent = run.replace(noise_multiplier=1e-30)
    first = project(flatten_one(problem)[None])
    trained, noise, start = (
        blocks.added(np.concatenate([np.repeat(first, len(seen))[:, None], seen], axis=1))
        for seen in (
            references(run, problem, models=models, seen=project),
            references(run, nothing, absent, models=models, seen=project),
            references(silent, nothing, absent, models=1, seen=project),
        )
    )
    natural = trained - noise
    spread = float(np.sqrt(1.0 + np.mean(natural.var(axis=0, ddof=1))))
    centres = (start[0] + natural.mean(axis=0)).tolist()
    return {"releases": run.release_count, "centres": centres, "spread": spread, "signal": signal}


def positions_along(along: FloatArray) -> Callable[[PyTree], FloatArray]:
    """Return a function for minus the projection on ``along``, since descent moves parameters against the canary."""

    def project(parameters: PyTree) -> FloatArray:
        from lastiterate.training.problem import flatten

        return -(flatten(parameters).astype(np.float64) @ along)

    return project


class Collected:
    """A distinguisher that scores a projection of all iterates that it sees, for a chunk of models."""

    def __init__(self, project: Callable[[PyTree], FloatArray], score: Callable[[FloatArray], FloatArray]) -> None:
        self._project, self._score = project, score
        self._positions: list[FloatArray] = []

    def see(self, step: int, parameters: PyTree) -> None:
        self._positions.append(self._project(parameters))

    def scores(self) -> FloatArray:
        return self._score(np.stack(self._positions, axis=1))


# Likelihood ratios of single steps, for training with no gradients other than the canary.

TELLING_RATE = 0.1  # false positive rate; bounds of composition methods are within 1% of the best from 0.06 to 0.2
DRAWS = 50_000  # scores without the canary, to choose a threshold


def log_likelihood_ratio(run: DPSGD, observed: FloatArray, step: int) -> FloatArray:
    """Return the log-likelihood ratio of one step: presence against absence of the canary.

    ``observed`` is the noisy sum of the step's gradients along the canary, in clipping norms.
    """
    require_supported(run, Support("likelihood ratios of single steps", BASIC))
    rate = float(np.broadcast_to(run.sample_rate, run.steps)[step])
    noise = float(np.broadcast_to(run.noise_multiplier, run.steps)[step])
    loss = (2.0 * observed - 1.0) / (2.0 * noise**2)
    with np.errstate(divide="ignore"):
        ratio: FloatArray = np.logaddexp(np.log1p(-rate), np.log(rate) + loss)
    return ratio


def total_log_likelihood_ratio(run: DPSGD, observed: FloatArray) -> FloatArray:
    """Return the sum of the log-likelihood ratios of all steps. ``observed`` has the axes [models, steps]."""
    total = np.zeros(len(observed))
    for step in range(run.steps):
        total += log_likelihood_ratio(run, observed[:, step], step)
    return total


def sample_likelihood_ratios(
    run: DPSGD, present: FloatArray, generator: np.random.Generator, signal: float = 1.0, noise: float = 1.0
) -> FloatArray:
    """Draw scores with and without the canary. The canary is multiplied by ``signal``, and the noise by ``noise``."""
    here = np.asarray(present, bool)
    total = np.zeros(here.size)
    rates, noises = (np.broadcast_to(value, run.steps) for value in (run.sample_rate, run.noise_multiplier))
    for step in range(run.steps):
        taken = here & (generator.random(here.size) < rates[step])
        seen = signal * taken + noise * noises[step] * generator.standard_normal(here.size)
        total += log_likelihood_ratio(run, seen, step)
    return total


@lru_cache(maxsize=8)
def telling_threshold(run: DPSGD) -> float:
    """Return a threshold whose false positive rate is about ``TELLING_RATE``, estimated from random scores."""
    drawn = sample_likelihood_ratios(run, np.zeros(DRAWS, bool), np.random.default_rng(0))
    return float(np.quantile(drawn, 1.0 - TELLING_RATE))
