"""A guarantee for the last iterate alone if losses are convex: each step then brings two trainings closer.

Feldman et al. (2018) showed that the noise of later steps then hides an example of earlier steps. Altschuler and Talwar
(2022) showed that therefore the privacy of long training converges. Bok, Su and Altschuler (2024) computed the
guarantee with trade-off functions. The proof of the bound computed here is in docs/method.md, "Convex losses".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.common.validation import number
from lastiterate.optimizer import is_sgd
from lastiterate.privacy.analyses.composition import composition
from lastiterate.privacy.convex.distances import Contraction, geometric_sum
from lastiterate.privacy.convex.windows import ConvexPair
from lastiterate.privacy.curve import Pair, PrivacyCurve
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.pairs import NothingPair, pair_of
from lastiterate.privacy.mixtures.solve import each
from lastiterate.run import DPSGD, require_run

if TYPE_CHECKING:
    from lastiterate.common.types import Floats

_TURNS = 3  # iterations; an odd number ends on the safe side
_ROUNDING = 1e-12  # of a contraction
_MOST_LENGTHS = 100_000  # windows of full batches that are compared


def convex(
    run: DPSGD,
    *,
    contraction: float | Contraction | None = None,
    diameter: float | None = None,
    learning_rate: float | None = None,
) -> PrivacyCurve:
    """A guarantee for the last iterate if every step brings two models closer; never above composition.

    Args:
        run: A run with Poisson sampling or full batches, one noise multiplier, and plain SGD. The other examples must
            contract; for the canary only the clipping norm matters.
        contraction: For any batch without the canary, a step brings two models closer at least by this factor. The
            factor is 1 if losses are convex and smooth and the learning rate is small enough. With L2 decay in
            addition, it is 1 - learning rate times decay. Get the factor from ``lastiterate.contraction_of``, or prove
            it for your losses: clipping of each example breaks it unless the model has a scalar link or gradients never
            reach the norm.
        diameter: Diameter of a convex set onto which parameters are projected after every step. The default contraction
            is then 1.
        learning_rate: Learning rate of the sum of gradients, needed with a diameter. The default is the optimizer's.

    Both worlds begin at the same parameters, and the last step has noise. Conditions that the run violates are refused;
    the conditions that a run cannot show are stated in docs/method.md.
    """
    require_run(run)
    if contraction is not None and not isinstance(contraction, Contraction):
        contraction = Contraction(number("contraction", contraction, 0.0, 1.0, open_low=True))
    _require_convergent(run)
    factor = _factor(run, contraction, diameter)
    most = math.inf if diameter is None else _relative(run, diameter, learning_rate)
    if diameter is None and learning_rate is not None:
        raise ValueError(f"learning_rate belongs to a diameter, which must be given too, got {learning_rate!r} alone")
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


def _require_convergent(run: DPSGD) -> None:
    """Refuse a run that the proof does not cover, naming the condition."""
    if not run.amplifies:
        raise ValueError(f"sampling must be 'poisson' or 'full' for the convex guarantee, got {run.sampling!r}")
    if run.noise_filter is not None:
        raise ValueError("noise_filter must be None for the convex guarantee, got one: each step needs fresh noise")
    if run.release_count > 1:
        raise ValueError(
            f"releases must be None for the convex guarantee, got {run.release_count}: it holds for the last iterate "
            "alone; use lastiterate.composition"
        )
    if run.group_size > 1:
        raise ValueError(f"group_size must be 1 for the convex guarantee, got {run.group_size}: it is one example's")
    if run.neighbours == "replace":
        raise ValueError("neighbours must be 'add-remove' or 'zero-out' for the convex guarantee, got 'replace'")
    for name in ("noise_multiplier", "sample_rate"):
        if np.ndim(getattr(run, name)):
            raise ValueError(f"{name} must be one number for the convex guarantee, got one for each step")
    if run.weights is not None and np.ndim(run.weights):
        raise ValueError(
            "weights must be None for the convex guarantee: how steps are forgotten is told by the contraction"
        )
    optimizer: object = run.optimizer
    if optimizer is None:
        return
    if not is_sgd(optimizer):
        raise ValueError(f"optimizer must be plain SGD for the convex guarantee, got {type(optimizer).__name__}")
    if optimizer.momentum:
        raise ValueError(f"momentum must be 0 for the convex guarantee, got {optimizer.momentum}: it need not contract")
    if optimizer.averaging is not None:
        raise ValueError(f"averaging must be None for the convex guarantee, got {optimizer.averaging!r}")
    if np.ndim(optimizer.learning_rate):
        raise ValueError("learning_rate must be one number for the convex guarantee, got one for each step")


def _factor(run: DPSGD, contraction: Contraction | None, diameter: float | None) -> Contraction:
    if contraction is None:
        if diameter is None:
            raise ValueError(
                "contraction or diameter must be given for the convex guarantee, got neither; "
                "lastiterate.contraction_of knows the contraction of some problems"
            )
        return Contraction(1.0)
    if is_sgd(run.optimizer) and float(run.sample_rate) < 1.0:
        of_decay = abs(1.0 - float(run.optimizer.learning_rate) * run.optimizer.weight_decay)
        if contraction.value < of_decay - _ROUNDING:
            raise ValueError(
                f"contraction must be at least |1 - learning_rate * weight_decay| = {of_decay:.6g} with sampled "
                f"batches, got {contraction.value!r}: a batch may be empty, and then nothing else contracts"
            )
    return contraction


def _relative(run: DPSGD, diameter: float, learning_rate: float | None) -> float:
    """Return the diameter in units of learning rate times clipping norm."""
    diameter = number("diameter", diameter, 0.0, open_low=True)
    rate = None if run.optimizer is None else float(run.optimizer.learning_rate)
    if learning_rate is not None:
        given = number("learning_rate", learning_rate, 0.0, open_low=True)
        if rate is not None and rate != given:
            raise ValueError(f"learning_rate must be that of the run's optimizer, {rate!r}, got {learning_rate!r}")
        rate = given
    if rate is None:
        raise ValueError("learning_rate must be given with a diameter, as the run has no optimizer that tells it")
    return diameter / (rate * run.clip_norm)


def _always_in(run: DPSGD, contraction: float, most: float) -> Pair:
    """Return the Gaussian mechanism of a canary in every batch.

    Without a diameter it is the heuristic's with weights c^k.
    """
    lengths = [run.steps]
    if math.isfinite(most):
        count = min(run.steps, _MOST_LENGTHS)
        lengths = np.unique(np.geomspace(1.0, run.steps, count).astype(np.int64)).tolist() + lengths

    def slope(length: int) -> float:
        before = contraction**length * min(geometric_sum(contraction, run.steps - length), most)
        return (before + geometric_sum(contraction, length)) / math.sqrt(geometric_sum(contraction**2, length))

    noise, none = float(run.noise_multiplier), np.empty(0)
    return pair_of(Law(noise, min(slope(length) for length in lengths), none, none, none))


@dataclass(frozen=True)
class FailingPair:
    """One pair, but with probability ``failure`` another, independent of the canary.

    The adversary knows which one occurred.
    """

    usual: Pair
    otherwise: Pair
    failure: float

    def epsilon(self, log_delta: Floats) -> Floats:
        return each(lambda value: self._epsilon(float(value)), log_delta)

    def log_delta(self, epsilon: Floats) -> Floats:
        usual = self.usual.log_delta(epsilon) + math.log1p(-self.failure)
        return np.logaddexp(usual, self.otherwise.log_delta(epsilon) + math.log(self.failure))[()]

    def fnr(self, fpr: Floats) -> Floats:
        """Return a lower bound: the rate of the usual pair, as if the other pair never missed."""
        inside = np.minimum(fpr / (1.0 - self.failure), 1.0 - 1e-16)
        missed: Floats = (1.0 - self.failure) * self.usual.fnr(inside[()])
        return missed

    def bracket(self, log_delta: Floats) -> tuple[Floats, Floats]:
        value = self.epsilon(log_delta)
        lower, upper = self.usual.bracket(log_delta)
        width = np.maximum(upper - lower, 1e-9 * np.maximum(1.0, value))
        return np.minimum(lower, value), value + width

    def _epsilon(self, log_delta: float) -> float:
        """Return the epsilon of the usual pair at the delta that remains after the part of the other pair.

        The part of the other pair depends on epsilon, so the solution is iterated. An epsilon that is too low gives a
        next one that is too high, which gives one that is too low.
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
