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

from lastiterate.arrays import FloatArray
from lastiterate.attacks.attack import Armed, Facts, LikelihoodRatio, References
from lastiterate.attacks.linear_score import noise_unit
from lastiterate.attacks.recovered import recovered_gradient
from lastiterate.attacks.released_scores import released_ratios
from lastiterate.optimizer import SGD, Adam
from lastiterate.privacy.mixtures.released import laws_in_order, tells_every_step
from lastiterate.run import DPSGD
from lastiterate.values import per_step

if TYPE_CHECKING:
    from jaxtyping import PyTree

    from lastiterate.training.problem import Canary, Problem


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
        if isinstance(run.optimizer, Adam):
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
        assert isinstance(sgd, SGD)
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
    from lastiterate.attacks.drift import flatten_one
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
