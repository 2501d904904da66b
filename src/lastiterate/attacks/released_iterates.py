"""Attacks on several released iterates: likelihood ratios of the displacements between releases.

A block is the steps between two released iterates. With plain SGD and weight decay, the share of the previous iterate
that remains is known. The rest is what the block added: noise, natural gradients and the canary. With momentum the
attack needs all iterates, from which every gradient can be recovered. Blocks are independent, so that the sum of their
log-likelihood ratios is the ratio of all iterates: no attack on linear losses does better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.attacks.attack import Armed, Facts, LikelihoodRatio, References
from lastiterate.common.types import BoolArray, FloatArray
from lastiterate.common.validation import per_step
from lastiterate.optimizer import SGD, is_adam, is_sgd
from lastiterate.privacy.losses.mixture_loss import mixture_of
from lastiterate.privacy.mixtures.law import Law, law_of
from lastiterate.privacy.mixtures.released_blocks import laws_in_order, released_laws, tells_every_step
from lastiterate.run import DPSGD, LINEAR, require_basic

if TYPE_CHECKING:
    from jaxtyping import PyTree

    from lastiterate.training.problem import Canary, Problem


# Likelihood ratios: scores of all released iterates.


def sample_released_scores(
    run: DPSGD, present: BoolArray, generator: np.random.Generator, signal: float = 1.0, noise: float = 1.0
) -> FloatArray:
    """Draw scores with the canary and without it, or with the example that replaces it.

    ``signal`` is the share of the canary that the attack sees. ``noise`` is the true noise as a share of the noise that
    the attack assumes.
    """
    mirrored = run.neighbours == "replace"
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
    """Return the scores of models from what each block added, [models, blocks], in units of its noise."""
    total = np.zeros(len(seen))
    blocks: dict[int, tuple[Law, list[int]]] = {}
    for column, law in enumerate(laws_in_order(run)):
        if law is not None:
            blocks.setdefault(id(law), (law, []))[1].append(column)
    for law, columns in blocks.values():
        shown, there = law.scaled(1.0, law.noise / signal), seen[:, columns]
        ratios = block_ratio(shown, there.ravel(), mirrored=run.neighbours == "replace")
        total += ratios.reshape(there.shape).sum(axis=1)
    return total


def block_ratio(law: Law, seen: FloatArray, *, mirrored: bool) -> FloatArray:
    """Return the log-likelihood ratio of what a block adds, in units of its noise: S + N against N, or against -S + N.

    S is not negative. If the noise is too small for the exact law of S, its weights are rounded up. The result is still
    a score.
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
    """The score (-<parameters, weights> - centre) / unit. Descent moves against the canary, hence the sign."""

    weights: FloatArray  # one for each parameter, flat
    centre: float
    unit: float

    def __call__(self, parameters: PyTree) -> FloatArray:
        from lastiterate.training.problem import flatten

        along: FloatArray = flatten(parameters).astype(np.float64) @ self.weights
        return (-along - self.centre) / self.unit


def noise_unit(run: DPSGD) -> float:
    """Return the standard deviation of the noise in one released parameter."""
    size = float(np.max(np.abs(require_basic(run, "attacks", knows=LINEAR).effective_weights())))
    return size * law_of(run).noise * run.clip_norm


# Recovered gradients: the gradient of a step from the iterates before and after it.


def recovered_gradient(
    sgd: SGD, before: FloatArray, after: FloatArray, buffer: FloatArray, rate: float, step: int
) -> tuple[FloatArray, FloatArray]:
    """Return the gradient that moved a parameter from ``before`` to ``after``, and the new momentum buffer."""
    if rate == 0.0:
        raise ValueError("learning_rate must not be 0 at any step for the likelihood ratio: that step shows nothing")
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
    return gradient, buffer


@dataclass(frozen=True, eq=False)
class Blocks:
    """The map from positions along a canary at the released iterates to what each block added, in units of its noise.

    Attributes:
        kept: the share of the iterate before each block that remains after weight decay.
        units: the standard deviation of each block's noise in a parameter; infinite if a block adds nothing.
    """

    run: DPSGD
    kept: FloatArray
    units: FloatArray

    @classmethod
    def of(cls, run: DPSGD) -> Blocks:
        """Return the blocks of a run. Raise if the blocks cannot be separated."""
        laws = laws_in_order(run)
        if run.optimizer is not None and run.optimizer.averaging is not None:
            raise ValueError(
                f"averaging must be None for an attack on {run.release_count} releases, got "
                f"{run.optimizer.averaging!r}: averages are not taken apart"
            )
        if is_adam(run.optimizer):
            raise ValueError(
                f"optimizer must be a lastiterate.SGD for an attack on {run.release_count} releases, got Adam: a step "
                "of it does not tell the gradient"
            )
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
        """Return what each block added.

        ``positions`` are minus the projections of the initial and the released iterates on the canary, [models,
        releases + 1].
        """
        if _by_gradients(self.run):
            return self._gradients(positions) / self.units
        return (positions[:, 1:] - self.kept * positions[:, :-1]) / self.units

    def _gradients(self, positions: FloatArray) -> FloatArray:
        sgd, run = self.run.optimizer, self.run
        assert is_sgd(sgd)
        rates = np.broadcast_to(per_step("learning_rate", sgd.learning_rate, run.steps), run.steps)
        buffer, found = np.zeros(len(positions)), np.empty((len(positions), run.steps))
        for step in range(run.steps):
            before, after = -positions[:, step], -positions[:, step + 1]
            found[:, step], buffer = recovered_gradient(sgd, before, after, buffer, float(rates[step]), step)
        return found

    def scores(self, positions: FloatArray, facts: Facts) -> FloatArray:
        """Return the log-likelihood ratios of models; ``facts`` are those of ``natural_blocks``."""
        seen = (self.added(positions) - np.array(facts["centres"])) / facts["spread"]
        return released_ratios(self.run, seen, facts["signal"] / facts["spread"])


def _by_gradients(run: DPSGD) -> bool:
    return tells_every_step(run) and run.optimizer is not None and bool(run.optimizer.momentum)


def released_facts(blocks: Blocks, natural: FloatArray, centres: FloatArray, signal: float) -> Facts:
    """Return the facts of a distinguisher of released iterates: centre and spread of the blocks without the canary.

    Args:
        natural: what models without canary or noise added, [models, blocks], in units of the noise.
        centres: what each block adds on average without the canary.
        signal: the share of the canary that the attack sees.
    """
    spread = float(np.sqrt(1.0 + np.mean(natural.var(axis=0, ddof=1))))
    return {"releases": blocks.run.release_count, "centres": centres.tolist(), "spread": spread, "signal": signal}


def expected_ratios(facts: Facts) -> LikelihoodRatio:
    """Return what the linear analysis expects of these scores."""
    return LikelihoodRatio(released=True, signal=facts["signal"] / facts["spread"])


def score_words(facts: Facts) -> str:
    """Return the name of the score of a gradient-space attack, for reports."""
    if "releases" not in facts:
        return "displacement along it"
    return f"likelihood ratio of the displacements along it between all {facts['releases']:,} released iterates"


def score_unit(facts: Facts) -> str:
    """Return the unit of the score."""
    return "nats of the log-likelihood ratio" if "releases" in facts else "standard deviations of the noise"


def armed_for_releases(run: DPSGD, problem: Problem, canary: Canary, along: FloatArray, facts: Facts) -> Armed:
    """Return an attack with a canary along ``along`` that scores all released iterates."""
    blocks = Blocks.of(run)

    def last(parameters: PyTree) -> FloatArray:
        raise ValueError(f"score must see all {run.release_count} releases, got the last one alone")

    return Armed(problem, canary, last, lambda: ReleasedWatch(blocks, along, facts), released_only=True)


def natural_blocks(
    blocks: Blocks, problem: Problem, references: References, models: int, along: FloatArray, signal: float
) -> Facts:
    """Return the facts of a canary along ``along``, from models trained on the data, and again on no data.

    A model's noise depends only on its address, so that the two models share their noise. Their difference is what
    natural gradients did.
    """
    from lastiterate.attacks.gradient_space import flatten_one
    from lastiterate.training.problem import GradientCanary

    nothing = replace(problem, examples=None, loss=None, gradient=None, multiplicity=None)
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
    return released_facts(blocks, natural, start[0] + natural.mean(axis=0), signal)


def positions_along(along: FloatArray) -> Callable[[PyTree], FloatArray]:
    """Return a function that computes minus the projection of each model's parameters on ``along``.

    Descent moves parameters against the canary, hence the sign.
    """

    def project(parameters: PyTree) -> FloatArray:
        from lastiterate.training.problem import flatten

        return -(flatten(parameters).astype(np.float64) @ along)

    return project


class ReleasedWatch:
    """The distinguisher of a chunk of models that sees the initial iterate and all released iterates."""

    def __init__(self, blocks: Blocks, along: FloatArray, facts: Facts) -> None:
        self._blocks, self._project, self._facts = blocks, positions_along(along), facts
        self._positions: list[FloatArray] = []

    def see(self, step: int, parameters: PyTree) -> None:
        self._positions.append(self._project(parameters))

    def scores(self) -> FloatArray:
        return self._blocks.scores(np.stack(self._positions, axis=1), self._facts)
