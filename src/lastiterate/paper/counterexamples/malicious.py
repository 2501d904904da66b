"""A malicious data set: other people's data make the last iterate reveal every step, without any regulariser.

The canary moves coordinate i at step i only. All other examples are copies of one *repeater*, whose gradient depends
on the parameters and the step (Appendix C of the paper). The repeaters

- reset coordinates of future steps to 0, so that they contain no noise of earlier steps;
- enlarge the value that step i - 1 left in coordinate i - 1, so that later noise does not hide the value.

The paper's encoding ("one-bit") stores whether the coordinate passed a threshold, and restores this bit at every step.
The exact epsilon of one bit per step is far below composition, so this attack cannot match the standard analysis. Our
encoding ("linear") multiplies the coordinate by a large factor, once. It loses no information and matches composition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from lastiterate.attacks.attack import Armed, BringsProblem, Facts, LikelihoodRatio, References, Unknown, Words
from lastiterate.attacks.released_iterates import TELLING_RATE, telling_threshold, total_log_likelihood_ratio
from lastiterate.common.errors import BadArgument
from lastiterate.common.types import FloatArray, Row, Track
from lastiterate.common.validation import number, one_of
from lastiterate.compare_analyses import Answer
from lastiterate.formatting import spell
from lastiterate.labels import METHODS
from lastiterate.paper.counterexamples import setting as shared
from lastiterate.paper.counterexamples.setting import Case, Encoding, Probe, Setting, last_iterate_scores, require_plain
from lastiterate.privacy.analyses.composition import composition
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.distributions import DiscretePair
from lastiterate.run import DPSGD

if TYPE_CHECKING:
    import jax

    from lastiterate.training import Moment, Problem


# One-bit encoding: its exact curve, bounds on epsilon from counts of bits, and its best threshold.

# In the search for the best threshold: thresholds of the first round, thresholds around each of the best in later
# rounds, number of best thresholds, number of rounds.
_COARSE, _FINE, _BEST, _ROUNDS = 1000, 21, 20, 3


def pass_rates(run: DPSGD, threshold: float) -> tuple[float, float]:
    """Return the probability that a bit is set: a if the canary is not in the data, and a + q (b - a) if it is.

    a = P(N(0, sigma^2) >= t) and b = P(N(1, sigma^2) >= t), where the threshold t is in clipping norms.
    """
    noise = float(run.noise_multiplier)
    without, together = float(ndtr(-threshold / noise)), float(ndtr((1.0 - threshold) / noise))
    return without, without + float(run.sample_rate) * (together - without)


def one_bit(run: DPSGD, threshold: float) -> PrivacyCurve:
    """Return the privacy curve of the last iterate with the one-bit encoding. It is no guarantee for the run."""
    return bits(run.steps, *pass_rates(run, number("threshold", threshold)))


def bits(steps: int, without: float, together: float) -> PrivacyCurve:
    """Return the privacy curve of independent bits, set with probability ``without``, or ``together`` with the canary.

    The number of set bits is a sufficient statistic: Binomial(T, a) against Binomial(T, a + q (b - a)).
    """
    count = np.arange(steps + 1)
    pair = DiscretePair(binom.logpmf(count, steps, together), binom.logpmf(count, steps, without))
    return PrivacyCurve(pair, "one_bit", is_guarantee=False)


def epsilon_bounds(
    steps: int, bits_in: FloatArray, bits_out: FloatArray, delta: float, confidence: float
) -> tuple[float, float]:
    """Return a lower and an upper bound on epsilon from the numbers of set bits in models with and without the canary.

    Each bound holds with the given confidence. It uses Clopper-Pearson bounds on the two rates at which bits are set,
    because epsilon grows with the distance between the rates. The lower bound is 0 unless the canary raises the rate.
    """
    from lastiterate.auditing.evidence.error_rates import upper_bound

    def rates(counts: FloatArray) -> tuple[float, float]:
        total, set_, error = steps * counts.size, counts.sum(), 0.5 * (1.0 - confidence)
        return 1.0 - float(upper_bound(total - set_, total, error)), float(upper_bound(set_, total, error))

    (without_low, without_high), (together_low, together_high) = rates(bits_out), rates(bits_in)
    low = bits(steps, without_high, together_low).epsilon(delta) if together_low > without_high else 0.0
    furthest = (without_low, together_high), (without_high, together_low)
    return low, max(bits(steps, *pair).epsilon(delta) for pair in furthest)


def best_threshold(run: DPSGD, delta: float) -> float:
    """Return the threshold with the largest epsilon, in clipping norms.

    Epsilon has several local maxima, so the search refines several of the best thresholds.
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
_BATCH = 1e6  # expected number of repeaters in a batch; it varies by a thousandth
_MOST_COPIES = 2**31 - 1
_FURTHEST = 7.0  # standard deviations; the trainer's normal draws are smaller
_KEPT = 10.0  # size of a bit, in standard deviations of one step's noise
_AMPLIFIED = 100.0  # ratio of one step's amplified noise to the noise of all steps together
# Gauges are additional coordinates that count the repeaters.
_GAUGE = 1000.0  # movement of a gauge per step, in standard deviations of one step's noise
_VECTOR = 32  # the number of parameters is a multiple of this
_ODDS = 8.0  # standard deviations; a larger deviation of a gauge is an error


@dataclass(frozen=True)
class Malicious(BringsProblem):
    """An attack with data that make the last iterate reveal every step.

    Args:
        encoding: "one-bit" (the paper's) or "linear" (ours).
        threshold: one-bit threshold, in clipping norms. None means the best threshold at delta 1e-5.
    """

    encoding: Encoding = "linear"
    threshold: float | None = None

    def __post_init__(self) -> None:
        one_of("encoding", self.encoding, get_args(Encoding))
        if self.threshold is not None:
            number("threshold", self.threshold)
            if self.encoding != "one-bit":
                raise BadArgument(
                    "threshold", f"must be None for the encoding {self.encoding!r}, got {self.threshold!r}"
                )

    def craft(self, run: DPSGD, problem: object, references: References) -> Facts:
        require_plain(run)
        facts: Facts = {"copies": _copies(run, self.encoding)}
        if self.encoding == "one-bit":
            facts["threshold"] = best_threshold(run, _DELTA) if self.threshold is None else self.threshold
        return facts

    def arm(self, run: DPSGD, problem: object, facts: Facts) -> Armed:
        import jax.numpy as jnp

        from lastiterate.training import GradientCanary

        def canary(parameters: object, moment: Moment) -> jax.Array:
            return jnp.where(jnp.arange(_parameters(run)) == moment.step, -run.clip_norm, 0.0)

        return Armed(_problem(run, facts), GradientCanary(canary), Reader(run, facts))

    def expected(self, facts: Facts) -> Unknown | LikelihoodRatio:
        return Unknown() if self.encoding == "one-bit" else LikelihoodRatio()

    def words(self, facts: Facts) -> Words:
        if self.encoding == "one-bit":
            return Words(f"malicious data set, one bit a step at threshold {spell(facts['threshold'])}", "bits set")
        return Words("malicious data set, the value of every step", "nats of the log-likelihood ratio")


def amplification(run: DPSGD) -> float:
    """Return the factor by which the linear encoding multiplies each coordinate, once."""
    return _AMPLIFIED * math.sqrt(run.steps)


def seen(run: DPSGD) -> DPSGD:
    """Return a run whose iterates reveal what the linear encoding reveals. Older steps have slightly more noise.

    The sampling of the repeaters adds about a thousandth of the noise. This is neglected.
    """
    ago = np.arange(run.steps - 1, -1, -1)
    return run.replace(noise_multiplier=run.noise_multiplier * np.sqrt(1.0 + ago / amplification(run) ** 2))


def _copies(run: DPSGD, encoding: Encoding) -> int:
    """Return a number of repeaters at which none is clipped and their number in a batch hardly varies."""
    noise, rate = float(run.noise_multiplier), float(run.sample_rate)
    factor = amplification(run) if encoding == "linear" else 1.0
    others = (_KEPT + _GAUGE * math.sqrt(_VECTOR) + 2.0 * math.sqrt(run.steps)) * noise
    moved = factor * (1.0 + _FURTHEST * noise) + others
    batch = max(_BATCH, 2.0 * moved)
    copies = math.ceil(batch / max(rate, 1e-300))
    if copies > _MOST_COPIES:
        raise BadArgument(
            "sample_rate",
            f"must be at least {batch / _MOST_COPIES:.2g} for a malicious data set of {run.steps} steps, "
            f"got {rate!r}: the data set would need more than {_MOST_COPIES} examples",
        )
    return copies


def _problem(run: DPSGD, facts: Facts) -> Problem:
    """Return a problem with one coordinate per step, followed by gauges, which count the repeaters."""
    import jax.numpy as jnp

    from lastiterate.training import Problem

    unit = require_plain(run) * run.clip_norm
    batch = facts["copies"] * float(run.sample_rate)
    noise, clip = float(run.noise_multiplier), run.clip_norm
    factor, threshold = amplification(run), facts.get("threshold")

    def wanted(value: jax.Array, at: jax.Array, step: jax.Array) -> jax.Array:
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

    start, examples = np.zeros(_parameters(run), np.float32), np.zeros((1, 1), np.float32)
    return Problem(start, examples, gradient=repeater, multiplicity=np.array([facts["copies"]]))


def _parameters(run: DPSGD) -> int:
    """Return the number of parameters: one per step, and gauges up to a multiple of 32, which trains much faster."""
    return (run.steps // _VECTOR + 1) * _VECTOR


@dataclass(frozen=True, eq=False)
class Reader:
    """A distinguisher that reads all steps from the last iterates alone."""

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
            raise ArithmeticError(
                f"{int(unclear.sum())} of {unclear.size} bits cannot be read: the malicious examples did not store them"
            )
        bits: FloatArray = np.count_nonzero(past > 0.0, axis=1) + (last >= threshold)
        return bits

    def _check_gauges(self, gauges: FloatArray) -> None:
        """Raise if batches had too many or too few repeaters. Each repeater in a batch moves the gauges equally far."""
        run, rate = self.run, float(self.run.sample_rate)
        spread = math.sqrt((1.0 - rate) / (self.facts["copies"] * rate) + 1.0 / _GAUGE**2)
        off = np.abs(gauges / (_GAUGE * float(run.noise_multiplier)) - run.steps) / (spread * math.sqrt(run.steps))
        if np.max(off) > _ODDS:
            raise ArithmeticError(
                f"the number of malicious examples in batches is {np.max(off):.1f} standard deviations from its "
                f"expectation for {self.facts['copies']} copies: the encoded values are unreliable"
            )


TAKES = ("encoding",)
DEFAULTS = Setting(steps=100, sample_rate=0.01, noise_multiplier=None, delta=1e-5, models=100_000)


def probe(setting: Setting, track: Track = iter) -> Probe:
    """Analyse and audit the requested encoding, or both encodings if none is requested."""
    run = setting.calibrated_run()
    encodings: list[Encoding] = [setting.encoding] if setting.encoding else list(get_args(Encoding))
    cases = tuple(find_epsilon(setting, run, encoding) for encoding in track(encodings))
    rows: list[Row] = [
        {"encoding": case.label, "exact": case.exact.value, "empirical": case.empirical, "models": setting.models}
        for case in cases
    ]
    return Probe("malicious", setting, run, cases, rows)


def find_epsilon(setting: Setting, run: DPSGD, encoding: Encoding) -> Case:
    """Return the exact epsilon of an encoding, and the lower bound that an audit of last iterates finds."""
    delta = setting.delta
    if encoding == "linear":
        scores = last_iterate_scores(setting, run, Malicious(encoding), "malicious-linear")
        found = shared.lower_bound(setting, scores, "composition", telling_threshold(run), run)
        return Case("linear", Answer(composition(seen(run)).epsilon(delta)), found, METHODS["composition"].label)
    threshold = best_threshold(run, delta)
    scores = last_iterate_scores(setting, run, Malicious(encoding, threshold), "malicious-one-bit")
    low, high = epsilon_bounds(run.steps, *scores, delta, setting.confidence)
    enough = max(1.0, float(binom.isf(TELLING_RATE, run.steps, pass_rates(run, threshold)[0])) + 1.0)
    found = shared.lower_bound(setting, scores, "composition", enough - 0.5, run)
    at_most = Answer(high) if math.isfinite(high) else Answer(None, "no bit was set without the canary")
    exact = Answer(one_bit(run, threshold).epsilon(delta))
    return Case("one-bit", exact, low, "the rates of independent bits", at_most, found)
