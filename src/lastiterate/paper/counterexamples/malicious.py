"""A malicious data set: without a regulariser, other people's data make the last iterate remember every step.

The canary moves coordinate i at step i only. All other examples are copies of one *repeater*, whose gradient depends
on the parameters and the step (Appendix C of the paper). The repeaters

- reset coordinates whose step has not come yet to 0, so that these hold no noise of earlier steps;
- enlarge the value that step i - 1 left in coordinate i - 1, so that later noise does not hide the value.

The paper's encoding ("one-bit") writes whether the coordinate passed a threshold, and rewrites the bit at every step.
The exact epsilon of one bit per step is far below composition, so this attack cannot match the standard analysis. Our
encoding ("linear") multiplies the coordinate by a large factor, once. It loses nothing and matches composition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom

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
from lastiterate.attacks.likelihood_ratio import TELLING_RATE, telling_threshold, total_log_likelihood_ratio
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import number, one_of
from lastiterate.compare_analyses import Answer
from lastiterate.formatting import spell
from lastiterate.paper.counterexamples.setting import (
    Case,
    Encoding,
    Probe,
    Setting,
    last_iterate_scores,
    predict,
    require_plain,
)
from lastiterate.privacy.analyses.composition import composition
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.distributions import DiscretePair
from lastiterate.registry import METHODS
from lastiterate.run import DPSGD

if TYPE_CHECKING:
    from collections.abc import Callable

    import jax

    from lastiterate.common.types import FloatArray, Row, Track
    from lastiterate.training import Moment, Problem


# One-bit encoding: its exact curve, bounds on epsilon from counts of bits, and its best threshold.

_COARSE, _FINE, _BEST, _ROUNDS = 1000, 21, 20, 3  # thresholds at first, around each of the best, number of best, rounds


def pass_rates(run: DPSGD, threshold: float) -> tuple[float, float]:
    """Return the probability that a bit is set, without the canary in the data and with it.

    The threshold t is in clipping norms. The probabilities are a = P(N(0, sigma^2) >= t) without the canary in a batch
    and b = P(N(1, sigma^2) >= t) with it in the batch. With the canary in the data, the probability is a + q (b - a).
    """
    noise = float(run.noise_multiplier)
    without, together = float(ndtr(-threshold / noise)), float(ndtr((1.0 - threshold) / noise))
    return without, without + float(run.sample_rate) * (together - without)


def one_bit(run: DPSGD, threshold: float) -> PrivacyCurve:
    """Return the curve of the last iterate under the one-bit encoding: of this attack, not a guarantee for the run."""
    return bits(run.steps, *pass_rates(run, number("threshold", threshold)))


def bits(steps: int, without: float, together: float) -> PrivacyCurve:
    """Return the curve of independent bits, set at rate ``without`` or, with the canary, at rate ``together``.

    The number of set bits is a sufficient statistic: Binomial(T, a) against Binomial(T, a + q (b - a)).
    """
    count = np.arange(steps + 1)
    pair = DiscretePair(binom.logpmf(count, steps, together), binom.logpmf(count, steps, without))
    return PrivacyCurve(pair, "one_bit", is_guarantee=False)


def epsilon_bounds(
    steps: int, bits_in: FloatArray, bits_out: FloatArray, delta: float, confidence: float
) -> tuple[float, float]:
    """Return a lower and an upper bound on epsilon from the numbers of set bits in models with and without the canary.

    Each bound holds with the confidence. The bits are independent and identically distributed, so the bits of all
    models give Clopper-Pearson bounds on the two rates. Epsilon grows with the distance of the rates. The upper bound
    holds whichever rate is larger. The lower bound counts only bits that the canary sets more often.
    """
    from lastiterate.auditing.evidence.error_rates import upper_bound

    error = 0.5 * (1.0 - confidence)

    def rates(counts: FloatArray) -> tuple[float, float]:
        total, set_ = steps * counts.size, counts.sum()
        return 1.0 - float(upper_bound(total - set_, total, error)), float(upper_bound(set_, total, error))

    (without_low, without_high), (together_low, together_high) = rates(bits_out), rates(bits_in)
    low = bits(steps, without_high, together_low).epsilon(delta) if together_low > without_high else 0.0
    furthest = (without_low, together_high), (without_high, together_low)
    return low, max(bits(steps, *pair).epsilon(delta) for pair in furthest)


def best_threshold(run: DPSGD, delta: float) -> float:
    """Return the threshold with the largest epsilon, in clipping norms.

    Epsilon has a kink wherever the decisive number of set bits changes, and a local maximum between any two kinks. The
    search therefore tries a grid of thresholds, then finer grids around the best ones.
    """
    noise = float(run.noise_multiplier)
    furthest = 2.0 - float(ndtri(min(delta, 0.5)))  # events rarer than delta do not matter
    tried: FloatArray = np.linspace(-3.0 * noise, 1.0 + furthest * noise, _COARSE)
    spacing = tried[1] - tried[0]
    for _ in range(_ROUNDS):
        epsilons = np.array([one_bit(run, threshold).epsilon(delta) for threshold in tried])
        best = tried[np.argsort(-epsilons)[:_BEST]]
        tried = np.unique(best[:, None] + np.linspace(-spacing, spacing, _FINE))
        spacing = 2.0 * spacing / (_FINE - 1)
    return float(best[0])


# Attack: canary, repeaters and distinguisher. Sizes are in units of learning rate times clipping norm, which is the
# canary's effect on a coordinate.

_DELTA = 1e-5  # for the choice of the one-bit threshold if none is given
_BATCH = 1e6  # expected repeaters in a batch: their effect varies by a thousandth
_MOST_COPIES = 2**31 - 1
_FURTHEST = 7.0  # standard deviations; the trainer's normal draws are smaller
_KEPT = 10.0  # size of a bit, in standard deviations of one step's noise
_AMPLIFIED = 100.0  # amplified noise of one step over the noise of all steps together
_GAUGE = 1000.0  # movement of a gauge per step, in standard deviations of one step's noise
_VECTOR = 32  # the number of parameters is a multiple of this
_ODDS = 8.0  # standard deviations; a larger deviation of a gauge is not chance


@dataclass(frozen=True)
class Malicious(BringsProblem):
    """An attack with data that make the last iterate remember every step.

    Args:
        encoding: "one-bit" (the paper's) or "linear" (ours).
        threshold: one-bit threshold, in clipping norms. None: the best threshold at delta 1e-5.
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
    """Return the factor by which the linear encoding multiplies each coordinate, once."""
    return _AMPLIFIED * math.sqrt(run.steps)


def seen(run: DPSGD) -> DPSGD:
    """Return the run that the linear encoding shows: every step, with slightly more noise the older the step is.

    A coordinate also holds the noise of later steps, divided by the amplification. Effects of the repeaters' own
    sampling are left out. They are about a thousandth of the noise.
    """
    ago = np.arange(run.steps - 1, -1, -1)
    noise = run.noise_multiplier * np.sqrt(1.0 + ago / amplification(run) ** 2)
    return run.replace(noise_multiplier=noise)


def _copies(run: DPSGD, encoding: Encoding) -> int:
    """Return the number of repeaters for which none is clipped and their number in a batch hardly varies."""
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
    """Return a problem with one coordinate per step, followed by gauges.

    The gauges count repeaters, to check that their number per batch varies as little as expected.
    """
    import jax.numpy as jnp

    from lastiterate.training import Problem

    unit = require_plain(run) * run.clip_norm
    batch = facts["copies"] * float(run.sample_rate)
    noise, clip = float(run.noise_multiplier), run.clip_norm
    factor, threshold = amplification(run), facts.get("threshold")

    def wanted(value: jax.Array, at: jax.Array, step: jax.Array) -> jax.Array:
        """Return the target of each coordinate for the repeaters of a batch."""
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
        # A clipped repeater would silently spoil the encoding. NaN stops the training instead.
        return jnp.where(jnp.sum(jnp.square(gradient)) <= clip**2, gradient, jnp.nan)

    return Problem(
        np.zeros(_parameters(run), np.float32),
        np.zeros((1, 1), np.float32),
        gradient=repeater,
        multiplicity=np.array([facts["copies"]]),
    )


def _canary(run: DPSGD) -> Callable[[object, Moment], jax.Array]:
    """Return the canary: a gradient of one clipping norm along the coordinate of the step."""
    import jax.numpy as jnp

    return lambda parameters, moment: jnp.where(jnp.arange(_parameters(run)) == moment.step, -run.clip_norm, 0.0)


def _parameters(run: DPSGD) -> int:
    """Return the number of parameters: one per step, and gauges that fill up vector registers.

    Full registers make the trainer several times faster.
    """
    return (run.steps // _VECTOR + 1) * _VECTOR


@dataclass(frozen=True, eq=False)
class Reader:
    """Distinguisher that reads all steps out of the last iterates alone."""

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
        """Raise if the number of repeaters in batches is too far from its expectation.

        Every step moves a gauge by its size times the batch size over the expected batch size.
        """
        run, rate = self.run, float(self.run.sample_rate)
        spread = math.sqrt((1.0 - rate) / (self.facts["copies"] * rate) + 1.0 / _GAUGE**2)
        off = np.abs(gauges / (_GAUGE * float(run.noise_multiplier)) - run.steps) / (spread * math.sqrt(run.steps))
        if np.max(off) > _ODDS:
            raise ArithmeticError(
                f"the number of repeaters in batches is {np.max(off):.1f} standard deviations off what is expected of "
                f"{self.facts['copies']} copies: what they wrote cannot be relied on"
            )


TAKES = ("encoding",)
DEFAULTS = Setting(steps=100, sample_rate=0.01, noise_multiplier=None, delta=1e-5, models=100_000)


def probe(setting: Setting, track: Track = iter) -> Probe:
    """Analyse and audit the requested encoding, or both."""
    run = setting.calibrated_run()
    predictions = predict(run, setting.delta)
    encodings: list[Encoding] = [setting.encoding] if setting.encoding else list(get_args(Encoding))
    cases = tuple(find_epsilon(setting, run, encoding) for encoding in track(encodings))
    rows: list[Row] = [
        {"encoding": case.label, "exact": case.exact.value, "empirical": case.empirical, "models": setting.models}
        for case in cases
    ]
    return Probe("malicious", setting, run, predictions, cases, rows)


def find_epsilon(setting: Setting, run: DPSGD, encoding: Encoding) -> Case:
    """Return the exact epsilon of an encoding, and the lower bound its distinguisher finds in last iterates."""
    if encoding == "one-bit":
        return _one_bit_case(setting, run, best_threshold(run, setting.delta))
    scores = last_iterate_scores(setting, run, Malicious(encoding), "malicious-linear")
    found = _by_composition(setting, run, *scores, telling_threshold(run))
    return Case("linear", Answer(composition(seen(run)).epsilon(setting.delta)), found, METHODS["composition"].label)


def _one_bit_case(setting: Setting, run: DPSGD, threshold: float) -> Case:
    bits_in, bits_out = last_iterate_scores(setting, run, Malicious("one-bit", threshold), "malicious-one-bit")
    exact = one_bit(run, threshold).epsilon(setting.delta)
    low, high = epsilon_bounds(run.steps, bits_in, bits_out, setting.delta, setting.confidence)
    enough = max(1.0, float(binom.isf(TELLING_RATE, run.steps, pass_rates(run, threshold)[0])) + 1.0)
    as_composition = _by_composition(setting, run, bits_in, bits_out, enough - 0.5)
    at_most = Answer(high) if math.isfinite(high) else Answer(None, "no bit was set without the canary")
    return Case("one-bit", Answer(exact), low, "the rates of independent bits", at_most, as_composition)


def _by_composition(
    setting: Setting, run: DPSGD, scores_in: FloatArray, scores_out: FloatArray, threshold: float
) -> float:
    from lastiterate.auditing.evidence.estimate import estimate

    question = setting.delta, setting.confidence, "composition", threshold, run
    return estimate(scores_in, scores_out, *question).epsilon
