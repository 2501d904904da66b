"""What trained models show at all of their released iterates: how far each block between two of them went.

With plain SGD and decay, what is left of the iterate before is known, and the rest is what the block added: noise, what
natural gradients did, and the canary. With momentum that needs all iterates, from which every gradient is known.
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


# Scores by all released iterates: the log of the likelihood ratio of what each block between two of them adds.
#
# Blocks are independent, so that the sum of theirs is the ratio of all: no attack on linear losses does better.


def sample_released_scores(
    run: DPSGD, present: BoolArray, generator: np.random.Generator, signal: float = 1.0, noise: float = 1.0
) -> FloatArray:
    """Draws of the score with the canary and without it, or with the example that replaces it.

    ``signal`` is the share of the canary that the attack sees, ``noise`` what there is of the noise it reckons with.
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
    """Scores of models, by what each block was seen to add, [models, blocks], in units of its noise."""
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
    """The log-likelihood ratio of what a block adds, in units of its noise: S + N against N, or against -S + N.

    S is not negative. Where noise is too little for its exact law, weights are rounded up: a score all the same.
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


# The distinguisher of gradient-space attacks: a projection of the released parameters, in units of the noise.


@dataclass(frozen=True, eq=False)
class LinearScore:
    """score = (-<parameters, weights> - centre) / unit. Descent moves parameters against the canary, hence the sign."""

    weights: FloatArray  # one a parameter, flat
    centre: float
    unit: float

    def __call__(self, parameters: PyTree) -> FloatArray:
        from lastiterate.training.problem import flatten

        along: FloatArray = flatten(parameters).astype(np.float64) @ self.weights
        return (-along - self.centre) / self.unit


def noise_unit(run: DPSGD) -> float:
    """The standard deviation of the noise in one released parameter."""
    size = float(np.max(np.abs(require_basic(run, "attacks", knows=LINEAR).effective_weights())))
    return size * law_of(run).noise * run.clip_norm


# The gradient of a step, recovered from the iterates around it.


def recovered_gradient(
    sgd: SGD, before: FloatArray, after: FloatArray, buffer: FloatArray, rate: float, step: int
) -> tuple[FloatArray, FloatArray]:
    """The gradient that moved a parameter from ``before`` to ``after``, and the momentum buffer then."""
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
    """How positions along a canary at the released iterates become what each block added, in units of its noise.

    Attributes:
        kept: what decay leaves, in each block, of the iterate before it.
        units: the standard deviation of each block's noise in a parameter; infinite where a block adds nothing.
    """

    run: DPSGD
    kept: FloatArray
    units: FloatArray

    @classmethod
    def of(cls, run: DPSGD) -> Blocks:
        """The blocks of a run, once it is known that they can be told apart."""
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
        """From minus the projections of the initial and the released iterates on the canary, [models, releases + 1]."""
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
        """The log-likelihood ratios of models; ``facts`` are those of ``natural_blocks``."""
        seen = (self.added(positions) - np.array(facts["centres"])) / facts["spread"]
        return released_ratios(self.run, seen, facts["signal"] / facts["spread"])


def _by_gradients(run: DPSGD) -> bool:
    return tells_every_step(run) and run.optimizer is not None and bool(run.optimizer.momentum)


def released_facts(blocks: Blocks, natural: FloatArray, centres: FloatArray, signal: float) -> Facts:
    """What a distinguisher of released iterates knows: what the blocks add without the canary, and how that varies.

    Args:
        natural: what models without canary or noise added, [models, blocks], in units of the noise.
        centres: what blocks add on average without the canary.
        signal: the share of the canary that is seen.
    """
    spread = float(np.sqrt(1.0 + np.mean(natural.var(axis=0, ddof=1))))
    return {"releases": blocks.run.release_count, "centres": centres.tolist(), "spread": spread, "signal": signal}


def expected_ratios(facts: Facts) -> LikelihoodRatio:
    """What the linear analysis expects of such scores."""
    return LikelihoodRatio(released=True, signal=facts["signal"] / facts["spread"])


def score_words(facts: Facts) -> str:
    """The score of a gradient-space attack for people."""
    if "releases" not in facts:
        return "displacement along it"
    return f"likelihood ratio of the displacements along it between all {facts['releases']:,} released iterates"


def score_unit(facts: Facts) -> str:
    """In what it is measured."""
    return "nats of the log-likelihood ratio" if "releases" in facts else "standard deviations of the noise"


def armed_for_releases(run: DPSGD, problem: Problem, canary: Canary, along: FloatArray, facts: Facts) -> Armed:
    """An attack by a canary along this direction, which looks at all that a run releases."""
    blocks = Blocks.of(run)

    def last(parameters: PyTree) -> FloatArray:
        raise ValueError(f"score must see all {run.release_count} releases, got the last one alone")

    return Armed(problem, canary, last, lambda: ReleasedWatch(blocks, along, facts), released_only=True)


def natural_blocks(
    blocks: Blocks, problem: Problem, references: References, models: int, along: FloatArray, signal: float
) -> Facts:
    """The facts of a canary along this direction, from models that are trained on the data, and again on nothing.

    The noise of a model has an address, so that the difference of the two is what natural gradients did.
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
    """Minus the projection of each model's parameters: descent moves them against the canary."""

    def project(parameters: PyTree) -> FloatArray:
        from lastiterate.training.problem import flatten

        return -(flatten(parameters).astype(np.float64) @ along)

    return project


class ReleasedWatch:
    """The distinguisher of a chunk of models, which is shown the initial iterate and all that are released."""

    def __init__(self, blocks: Blocks, along: FloatArray, facts: Facts) -> None:
        self._blocks, self._project, self._facts = blocks, positions_along(along), facts
        self._positions: list[FloatArray] = []

    def see(self, step: int, parameters: PyTree) -> None:
        self._positions.append(self._project(parameters))

    def scores(self) -> FloatArray:
        return self._blocks.scores(np.stack(self._positions, axis=1), self._facts)
