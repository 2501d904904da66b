"""A guarantee for the last iterate alone. Losses must be convex, so that each step brings two trainings closer.

Feldman et al. (2018) showed that the noise of later steps then hides an example that was used in earlier steps.
Altschuler and Talwar (2022) showed that the privacy of long training therefore converges. Bok, Su and Altschuler (2024)
computed the guarantee with trade-off functions. The bound computed here is proved in docs/method.md, "Convex losses".
"""

import math
from dataclasses import dataclass

import numpy as np

from lastiterate.common.errors import BadArgument
from lastiterate.common.types import Floats
from lastiterate.common.validation import number
from lastiterate.privacy.analyses.composition import composition
from lastiterate.privacy.convex.distances import Contraction, geometric_sum
from lastiterate.privacy.convex.windows import FEW_LINES, ConvexPair
from lastiterate.privacy.curve import Pair, PrivacyCurve
from lastiterate.privacy.gaussian_dp import find_mu, find_mu_bracket
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.pairs import NothingPair, pair_of
from lastiterate.privacy.mixtures.solve import each
from lastiterate.run import DPSGD, require_run
from lastiterate.supported_runs import (
    CORRELATED_NOISE,
    GROUPS,
    MOMENTUM,
    NO_OPTIMIZER,
    RELEASES,
    WEIGHT_DECAY,
    WEIGHTS,
    Support,
    require_supported,
)

_TURNS = 3  # number of iterations; after an odd number epsilon is not too low
_ROUNDING = 1e-12  # tolerance for the rounding error of a contraction
_MOST_LENGTHS = 100_000  # largest number of windows compared for full batches


SUPPORT = Support(
    "the convex guarantee",
    frozenset({NO_OPTIMIZER, WEIGHT_DECAY}),
    {
        RELEASES: "it holds for the last iterate alone; use lastiterate.composition",
        CORRELATED_NOISE: "each step needs fresh noise",
        GROUPS: "it protects one example",
        MOMENTUM: "steps with momentum need not contract",
        WEIGHTS: "the contraction already says how much earlier steps count",
    },
)


def convex(
    run: DPSGD,
    *,
    contraction: float | Contraction | None = None,
    diameter: float | None = None,
    learning_rate: float | None = None,
) -> PrivacyCurve:
    """A guarantee for the last iterate if every step brings two models closer. It never exceeds composition.

    Args:
        run: A run with Poisson sampling or full batches, one noise multiplier, and plain SGD. Steps on the other
            examples must contract. For the canary only the clipping norm matters.
        contraction: A step on any batch without the canary multiplies the distance of two models by at most this
            factor. The factor is 1 if losses are convex and smooth and the learning rate is small enough. With L2 decay
            in addition, it is 1 - learning rate * decay. Get the factor from ``lastiterate.contraction_of``, or prove
            it for your losses: clipping of each example breaks the contraction, unless the model has a scalar link or
            gradients never reach the clipping norm.
        diameter: Diameter of a convex set onto which parameters are projected after every step. The default contraction
            is then 1.
        learning_rate: Learning rate of the sum of gradients. It is needed if a diameter is given. The default is the
            learning rate of the optimizer.

    Training with and without the canary must start from the same parameters, and the last step must add noise.
    Conditions that the run violates are refused. Conditions that cannot be checked are stated in docs/method.md.
    """
    require_run(run)
    if contraction is not None and not isinstance(contraction, Contraction):
        contraction = Contraction(number("contraction", contraction, 0.0, 1.0, open_low=True))
    require_supported(run, SUPPORT)
    factor = _factor(run, contraction, diameter)
    most = math.inf if diameter is None else _relative(run, diameter, learning_rate)
    if diameter is None and learning_rate is not None:
        raise ValueError(f"learning_rate is used only with a diameter, got {learning_rate!r} without a diameter")
    if float(run.sample_rate) == 0.0:
        return PrivacyCurve(NothingPair(), "convex", is_guarantee=True)
    every = composition(run).pair
    rate, sigma = float(run.sample_rate), float(run.noise_multiplier)
    pair = _always_in(run, factor.value, most)
    if rate < 1.0:
        pair = ConvexPair(run.steps, rate, sigma, factor.value, most, every, pair)
    if factor.failure > 0.0:
        pair = FailingPair(pair, every, factor.failure)
    return PrivacyCurve(pair, "convex", is_guarantee=True)


def _factor(run: DPSGD, contraction: Contraction | None, diameter: float | None) -> Contraction:
    if contraction is None:
        if diameter is None:
            raise ValueError(
                "contraction or diameter must be given for the convex guarantee, got neither; "
                "lastiterate.contraction_of computes the contraction of some models"
            )
        return Contraction(1.0)
    if run.optimizer is not None and float(run.sample_rate) < 1.0:
        of_decay = abs(1.0 - float(run.optimizer.learning_rate) * run.optimizer.weight_decay)
        if contraction.value < of_decay - _ROUNDING:
            raise BadArgument(
                "contraction",
                f"must be at least |1 - learning_rate * weight_decay| = {of_decay:.6g} with sampled "
                f"batches, got {contraction.value!r}: a batch may be empty, and then only the decay contracts",
            )
    return contraction


def _relative(run: DPSGD, diameter: float, learning_rate: float | None) -> float:
    diameter = number("diameter", diameter, 0.0, open_low=True)
    rate = None if run.optimizer is None else float(run.optimizer.learning_rate)
    if learning_rate is not None:
        given = number("learning_rate", learning_rate, 0.0, open_low=True)
        if rate is not None and rate != given:
            raise BadArgument("learning_rate", f"must be {rate!r} as in the run's optimizer, got {learning_rate!r}")
        rate = given
    if rate is None:
        raise BadArgument("learning_rate", "must be given with a diameter, because the run has no optimizer")
    return diameter / (rate * run.clip_norm)


def _always_in(run: DPSGD, contraction: float, most: float) -> Pair:
    """Return the pair of a canary in every batch. Without a diameter this is the heuristic with weights c^k."""
    lengths = [run.steps]
    if math.isfinite(most):
        count = min(run.steps, _MOST_LENGTHS)
        lengths = np.unique(np.geomspace(1.0, run.steps, count).astype(np.int64)).tolist() + lengths

    def slope(length: int) -> float:
        before = contraction**length * min(geometric_sum(contraction, run.steps - length), most)
        return (before + geometric_sum(contraction, length)) / math.sqrt(geometric_sum(contraction**2, length))

    return pair_of(Law(float(run.noise_multiplier), min(slope(length) for length in lengths)))


@dataclass(frozen=True)
class FailingPair:
    """The pair ``otherwise`` with probability ``failure``, else ``usual``. The adversary knows which one occurred."""

    usual: Pair
    otherwise: Pair
    failure: float

    def epsilon(self, log_delta: Floats) -> Floats:
        return each(lambda value: self._epsilon(float(value)), log_delta)

    def log_delta(self, epsilon: Floats) -> Floats:
        usual = self.usual.log_delta(epsilon) + math.log1p(-self.failure)
        return np.logaddexp(usual, self.otherwise.log_delta(epsilon) + math.log(self.failure))[()]

    def fnr(self, fpr: Floats) -> Floats:
        """Return a lower bound: the pair ``otherwise`` counts as if it had no false negatives."""
        inside = np.minimum(fpr / (1.0 - self.failure), 1.0 - 1e-16)
        missed: Floats = (1.0 - self.failure) * self.usual.fnr(inside[()])
        return missed

    def bracket(self, log_delta: Floats) -> tuple[Floats, Floats]:
        value = self.epsilon(log_delta)
        lower, upper = self.usual.bracket(log_delta)
        width = np.maximum(upper - lower, 1e-9 * np.maximum(1.0, value))
        return np.minimum(lower, value), value + width

    def mu(self, smallest_error: float) -> float:
        return find_mu(self.epsilon, smallest_error, FEW_LINES)

    def mu_bracket(self, smallest_error: float) -> tuple[float, float]:
        return find_mu_bracket(self.epsilon, self.bracket, smallest_error, FEW_LINES)

    def _epsilon(self, log_delta: float) -> float:
        """Return the epsilon of the usual pair at the part of delta that the other pair leaves.

        The other pair's part depends on epsilon, so the solution is iterated. An epsilon that is too low gives an
        epsilon that is too high in the next iteration.
        """
        every = float(self.otherwise.epsilon(np.float64(log_delta)))
        value = float(self.usual.epsilon(np.float64(log_delta)))
        for _ in range(_TURNS):
            log_part = math.log(self.failure) + float(self.otherwise.log_delta(np.float64(value)))
            if log_part >= log_delta:
                return every
            left = log_delta + math.log1p(-math.exp(log_part - log_delta)) - math.log1p(-self.failure)
            value = float(self.usual.epsilon(np.float64(min(left, -1e-300))))
        return min(value, every)
