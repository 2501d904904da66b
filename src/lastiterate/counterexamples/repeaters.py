"""The attack of the malicious data set (Appendix C of the paper): canary, repeaters and distinguisher.

The canary moves coordinate i at step i, and at no other. All other examples are copies of one
*repeater*, whose gradient depends on the parameters and the step. Together they

- put coordinates whose step has not come yet back to 0, so that they hold no noise of earlier steps,
- write what step i - 1 left in coordinate i - 1 so large that later noise does not reach it.

The paper writes one bit, whether the coordinate passed a threshold, and rewrites it at every step ("one-bit"). We write
the coordinate itself, once, times a large factor ("linear"), so that nothing is lost. All sizes below are in units of
what the canary does to a coordinate: learning rate times clipping norm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np

from lastiterate.arrays import FloatArray
from lastiterate.attacks.attack import (
    Armed,
    BringsProblem,
    ExpectedScores,
    Facts,
    LikelihoodRatio,
    References,
    Unknown,
    Words,
)
from lastiterate.attacks.likelihood import total_log_likelihood_ratio
from lastiterate.counterexamples.one_bit import best_threshold
from lastiterate.counterexamples.setting import Encoding, require_plain
from lastiterate.run import DPSGD
from lastiterate.values import number, one_of
from lastiterate.wording import spell

if TYPE_CHECKING:
    from collections.abc import Callable

    import jax

    from lastiterate.training import Moment, Problem

_DELTA = 1e-5  # for which the bits' threshold is chosen, where none is given
_BATCH = 1e6  # repeaters in a batch, on average: what they do is random by a thousandth
_MOST_COPIES = 2**31 - 1
_FURTHEST = 7.0  # standard deviations; the trainer's normals end before
_KEPT = 10.0  # a bit's size, in standard deviations of the noise of a step
_AMPLIFIED = 100.0  # a coordinate's factor, in standard deviations of the noise that all steps add
_GAUGE = 1000.0  # the gauge's step, in standard deviations of the noise of a step
_VECTOR = 32  # parameters
_ODDS = 8.0  # standard deviations from which a gauge is not chance


@dataclass(frozen=True)
class Malicious(BringsProblem):
    """Data that make the last iterate remember every step.

    Args:
        encoding: "one-bit" (the paper's) or "linear" (ours).
        threshold: of the bits, in clipping norms. None: the best one at delta 1e-5.
    """

    encoding: Encoding = "linear"
    threshold: float | None = None

    def __post_init__(self) -> None:
        one_of("encoding", self.encoding, get_args(Encoding))
        if self.threshold is not None:
            number("threshold", self.threshold)
            if self.encoding != "one-bit":
                raise ValueError(f"threshold must be None for the encoding {self.encoding!r}, got {self.threshold!r}")

    def craft(self, run: DPSGD, problem: object, references: References) -> Facts:
        require_plain(run)
        facts: Facts = {"copies": _copies(run, self.encoding)}
        if self.encoding == "one-bit":
            facts["threshold"] = best_threshold(run, _DELTA) if self.threshold is None else self.threshold
        return facts

    def arm(self, run: DPSGD, problem: object, facts: Facts) -> Armed:
        from lastiterate.training import GradientCanary

        return Armed(_problem(run, facts), GradientCanary(_canary(run)), Reader(run, facts))

    def expected(self, facts: Facts) -> ExpectedScores:
        return Unknown() if self.encoding == "one-bit" else LikelihoodRatio()

    def words(self, facts: Facts) -> Words:
        if self.encoding == "one-bit":
            return Words(f"malicious data set, one bit a step at threshold {spell(facts['threshold'])}", "bits set")
        return Words("malicious data set, the value of every step", "nats of the log-likelihood ratio")


def amplification(run: DPSGD) -> float:
    """By what a coordinate is multiplied, once, by the linear encoding."""
    return _AMPLIFIED * math.sqrt(run.steps)


def seen(run: DPSGD) -> DPSGD:
    """What the linear encoding shows of a run: every step, with a little more noise, the more the older it is.

    The noise of the steps after it is in a coordinate too, and is divided with it by the amplification. What is left
    out are effects of the repeaters' own sampling, about a thousandth of the noise.
    """
    ago = np.arange(run.steps - 1, -1, -1)
    noise = run.noise_multiplier * np.sqrt(1.0 + ago / amplification(run) ** 2)
    return run.replace(noise_multiplier=noise)


def _copies(run: DPSGD, encoding: Encoding) -> int:
    """How many repeaters there must be, so that none is clipped and their number in a batch hardly varies."""
    noise, rate = float(run.noise_multiplier), float(run.sample_rate)
    factor = amplification(run) if encoding == "linear" else 1.0
    moved = (
        factor * (1.0 + _FURTHEST * noise) + (_KEPT + _GAUGE * math.sqrt(_VECTOR) + 2.0 * math.sqrt(run.steps)) * noise
    )
    batch = max(_BATCH, 2.0 * moved)
    copies = math.ceil(batch / max(rate, 1e-300))
    if copies > _MOST_COPIES:
        raise ValueError(
            f"sample_rate must be at least {batch / _MOST_COPIES:.2g} for a malicious data set of {run.steps} steps, "
            f"got {rate!r}: of so rare examples more than {_MOST_COPIES} would be needed"
        )
    return copies


def _problem(run: DPSGD, facts: Facts) -> Problem:
    """T coordinates, then gauges, which count repeaters and so show whether their number varies as little as hoped."""
    import jax.numpy as jnp

    from lastiterate.training import Problem

    unit = require_plain(run) * run.clip_norm
    batch = facts["copies"] * float(run.sample_rate)
    noise, clip = float(run.noise_multiplier), run.clip_norm
    factor, threshold = amplification(run), facts.get("threshold")

    def wanted(value: jax.Array, at: jax.Array, step: jax.Array) -> jax.Array:
        """Where the repeaters of a batch want each coordinate to be."""
        if threshold is None:
            past = jnp.where(at == step - 1, factor * value, value)
        else:
            passed = value >= jnp.where(at == step - 1, threshold, 0.0)
            past = jnp.where(passed, _KEPT * noise, -_KEPT * noise)
        return jnp.where(at < step, past, 0.0)

    def repeater(parameters: jax.Array, example: object, moment: Moment) -> jax.Array:
        value = parameters / unit
        at = jnp.arange(_parameters(run))
        target = jnp.where(at >= run.steps, value + _GAUGE * noise, wanted(value, at, moment.step))
        gradient = (value - target) * (clip / batch)
        # A clipped repeater would spoil everything in silence; what is not a number stops the training.
        return jnp.where(jnp.sum(jnp.square(gradient)) <= clip**2, gradient, jnp.nan)

    return Problem(
        np.zeros(_parameters(run), np.float32),
        np.zeros((1, 1), np.float32),
        gradient=repeater,
        multiplicity=np.array([facts["copies"]]),
    )


def _canary(run: DPSGD) -> Callable[[object, Moment], jax.Array]:
    """A gradient of one clipping norm along the coordinate of the step."""
    import jax.numpy as jnp

    return lambda parameters, moment: jnp.where(jnp.arange(_parameters(run)) == moment.step, -run.clip_norm, 0.0)


def _parameters(run: DPSGD) -> int:
    """One for each step, and gauges that fill up vector registers: the trainer is several times as fast on these."""
    return (run.steps // _VECTOR + 1) * _VECTOR


@dataclass(frozen=True, eq=False)
class Reader:
    """The distinguisher: reads all steps out of last iterates, and looks at nothing else."""

    run: DPSGD
    facts: Facts

    def __call__(self, parameters: object) -> FloatArray:
        run = self.run
        values = np.asarray(parameters, np.float64) / (require_plain(run) * run.clip_norm)
        self._check_gauges(values[:, run.steps :])
        past, last = values[:, : run.steps - 1], values[:, run.steps - 1]
        threshold = self.facts.get("threshold")
        if threshold is None:
            return total_log_likelihood_ratio(seen(run), np.column_stack((past / amplification(run), last)))
        unclear = np.abs(past) < 0.25 * _KEPT * float(run.noise_multiplier)
        if unclear.any():
            raise ArithmeticError(f"{int(unclear.sum())} bits of {unclear.size} cannot be read: the repeaters failed")
        bits: FloatArray = np.count_nonzero(past > 0.0, axis=1) + (last >= threshold)
        return bits

    def _check_gauges(self, gauges: FloatArray) -> None:
        """Every step moves a gauge by its size times the batch over the expected one."""
        run, rate = self.run, float(self.run.sample_rate)
        spread = math.sqrt((1.0 - rate) / (self.facts["copies"] * rate) + 1.0 / _GAUGE**2)
        off = np.abs(gauges / (_GAUGE * float(run.noise_multiplier)) - run.steps) / (spread * math.sqrt(run.steps))
        if np.max(off) > _ODDS:
            raise ArithmeticError(
                f"the number of repeaters in batches is {np.max(off):.1f} standard deviations off what is expected of "
                f"{self.facts['copies']} copies: what they wrote cannot be relied on"
            )
