"""The standard analysis: every iterate is released, and the privacy losses of the steps add up.

Values come from `composition_values`, where integrals along two lines must agree. If they disagree, the value is the
upper end of the bracket. The ends of the bracket come from `certified_bracket` and are proved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np

from lastiterate.common.types import Floats
from lastiterate.privacy.analyses.correlated import correlated_pair, without_filter
from lastiterate.privacy.analyses.no_amplification import (
    TOLD_NOTHING,
    KnownParticipations,
    told_kinds,
    told_participations,
    told_run,
)
from lastiterate.privacy.curve import Pair, PrivacyCurve
from lastiterate.privacy.losses.composition_values import costs_nothing, epsilon_of, fnr_bounds, fnr_of, log_delta_of
from lastiterate.privacy.losses.loss_cumulant import LossCumulant, loss_cumulant
from lastiterate.privacy.losses.loss_line import chernoff_bound
from lastiterate.privacy.mixtures.fourier import Unreliable
from lastiterate.privacy.mixtures.law import Law, law_of
from lastiterate.privacy.mixtures.mixture import SinglePair
from lastiterate.privacy.mixtures.pairs import NothingPair, pair_of, replaced_pair_of
from lastiterate.run import DPSGD, require_run
from lastiterate.supported_runs import (
    CHECKPOINTS_OF_MEMORY,
    CORRELATED_ADAM,
    CORRELATED_RELEASES,
    FIXED,
    IN_BINS,
    LINEAR,
    RELEASES,
    SHUFFLED,
    Support,
    require_supported,
)

if TYPE_CHECKING:
    from lastiterate.privacy.losses.epoch_loss import EpochCumulant

_WIDE = 1e-3  # if a bracket is wider than this, relative to max(1, epsilon), other bounds are tried too
_CLOSE_RATES = 1e-7, 1e-6  # closer bounds on an error rate need no integral: absolute, and relative to the power


_HOLDS = "the standard analysis assumes Poisson sampling, so epsilon may be too low; use lastiterate.no_amplification"
_WAY_OUT = f"{_HOLDS}, or train with sampling 'balls-in-bins', which also uses each example once per epoch"
SUPPORT = Support(
    "composition",
    (LINEAR - IN_BINS - {FIXED, SHUFFLED}) | {RELEASES, CORRELATED_RELEASES, CHECKPOINTS_OF_MEMORY, CORRELATED_ADAM},
    {FIXED: _HOLDS, SHUFFLED: _WAY_OUT},
)


def composition(run: DPSGD) -> PrivacyCurve:
    """The standard analysis, a guarantee against an adversary who sees every iterate.

    The adversary also knows the batches of all examples but the canary. The guarantee holds for Poisson sampling, for
    balls in bins and for full batches. Amplification by sampling has not been shown to carry over to shuffled batches
    or to batches of fixed size, so these are refused.

    With correlated noise the guarantee does not rely on sampling at all. It is a Gaussian mechanism for the worst
    batches that ``sampling`` and ``min_separation`` allow.
    """
    if require_run(run).noise_filter is not None:
        plain = without_filter(run)
        if plain is None or SUPPORT.refusal(plain):
            return PrivacyCurve(correlated_pair(run), "composition", is_guarantee=True)
        run = plain
    pair = pair_of_all_iterates(require_supported(run, SUPPORT))
    if isinstance(pair, CompositionPair) and not isinstance(pair, EstimatedPair):
        return PrivacyCurve(pair, "composition", is_guarantee=True, proved=("lower", "upper"))
    return PrivacyCurve(pair, "composition", is_guarantee=True)


def pair_of_all_iterates(run: DPSGD) -> Pair:
    """Return the pair of distributions of all iterates of a run with independent noise."""
    if run.sampling == "balls-in-bins" and min(run.steps, run.batches_per_epoch or 1) > 1:
        from lastiterate.privacy.losses.epoch_loss import epoch_cumulant

        return EpochPair(epoch_cumulant(require_supported(run, SUPPORT)), run)
    if run.sampling == "truncated-poisson":
        from lastiterate.privacy.losses.truncated_loss import truncated_cumulant

        if (truncated := truncated_cumulant(run)).full > 0.0:
            return CompositionPair(truncated)
    return pair_of_steps(loss_cumulant(run))


def pair_of_steps(cumulant: LossCumulant) -> Pair:
    """Return a pair in closed form if there is one, and otherwise a pair that is integrated numerically."""
    if not cumulant.counts.size:
        return NothingPair()
    if np.all(cumulant.rates == 1.0):
        # One Gaussian mechanism, in units for which all digits equal those of the last-iterate heuristic.
        noise = float(cumulant.sigmas[0]) * math.sqrt(float(cumulant.counts[0]))
        mu = math.sqrt(float(np.sum(cumulant.counts / cumulant.sigmas**2)))
        constant = float(cumulant.counts[0]) if cumulant.counts.size == 1 else mu * noise
        times = cumulant.group * (2.0 if cumulant.mirrored else 1.0)
        return pair_of(Law(noise, constant * times))
    if cumulant.counts.size == 1 and cumulant.counts[0] == 1.0:
        counts = cumulant.counts * cumulant.group
        law = Law(float(cumulant.sigmas[0]), 0.0, counts, cumulant.rates, np.ones(1))
        return replaced_pair_of(law) if cumulant.mirrored else pair_of(law)
    return CompositionPair(cumulant)


@dataclass(frozen=True)
class CompositionPair(SinglePair):
    """The sum of the privacy losses of all steps, for P over Q and for Q over P."""

    cumulant: LossCumulant

    def bracket(self, log_delta: Floats) -> tuple[Floats, Floats]:
        bounds = [self._bracket(float(value)) for value in np.ravel(log_delta)]
        lower, upper = (np.reshape(column, np.shape(log_delta))[()] for column in zip(*bounds, strict=True))
        return lower, upper

    @cached_property
    def _add(self) -> LossCumulant:
        return self.cumulant.other_direction()

    @cached_property
    def _last_iterate(self) -> Pair:
        """The pair of a last iterate with steps weighted by 1 / sigma^2, which reveals no more than all iterates."""
        counts, rates, sigmas = self.cumulant.counts, self.cumulant.participation, self.cumulant.sigmas
        group = self.cumulant.group
        weights = (sigmas.min() / sigmas) ** 2
        noise = math.sqrt(float(np.sum(counts * (weights * sigmas) ** 2)))
        sure = rates == 1.0
        constant = float(np.sum(counts[sure] * weights[sure])) * group
        law = Law(noise, constant, counts[~sure] * group, rates[~sure], weights[~sure])
        return replaced_pair_of(law) if self.cumulant.mirrored else pair_of(law)

    @cached_property
    def _told(self) -> tuple[KnownParticipations, KnownParticipations]:
        """Bounds for an adversary who is told the number of batches with the canary, close if there is little noise."""
        steps, rates, sigmas = int(self.cumulant.counts.sum()), self.cumulant.participation, self.cumulant.sigmas
        if self.cumulant.mirrored:
            return TOLD_NOTHING, told_kinds(self.cumulant.counts, rates, 0.5 * sigmas, self.cumulant.group)
        lower = told_participations(steps, float(rates.min()), float(sigmas.max()), upper=False)
        return lower, told_kinds(self.cumulant.counts, rates, sigmas, self.cumulant.group)

    def _epsilon(self, log_delta: float) -> float:
        try:
            return self._by_two_lines(log_delta)
        except ArithmeticError:  # Unreliable, or out of the range of floats: use bounds that always hold
            return self._proved(log_delta, None)[1]

    def _by_two_lines(self, log_delta: float) -> float:
        value, difference = epsilon_of(self.cumulant, log_delta)
        if add_matters(self._add, value, log_delta):
            value, difference = max((value, difference), epsilon_of(self._add, log_delta))
        if value + difference < float(self._last_iterate.epsilon(np.float64(log_delta))) * (1.0 - 1e-8) - 1e-8:
            raise Unreliable  # all iterates must reveal at least as much as one
        return value

    def _bracket(self, log_delta: float) -> tuple[float, float]:
        near = None
        with suppress(ArithmeticError):  # Unreliable, or out of the range of floats
            near = self._by_two_lines(log_delta)
        return self._proved(log_delta, near)

    def _proved(self, log_delta: float, near: float | None) -> tuple[float, float]:
        from lastiterate.privacy.losses.certified_bracket import proved_chernoff_bound, proved_epsilon

        try:
            if costs_nothing(self.cumulant, log_delta):
                return 0.0, 0.0  # at epsilon = 0, P over Q and Q over P have the same delta
            lower, upper = proved_epsilon(self.cumulant, log_delta, near)
            if add_matters(self._add, upper, log_delta, proved_chernoff_bound):
                bounds = proved_epsilon(self._add, log_delta, near)
                lower, upper = max(lower, bounds[0]), max(upper, bounds[1])
        except ArithmeticError:  # Unreliable, or out of the range of floats: use bounds that always hold
            lower, upper = 0.0, math.inf
        if not (math.isfinite(upper) and upper - lower <= _WIDE * max(1.0, upper)):
            lower = max(lower, self._told[0].proved_end(log_delta, upper=False))
            upper = min(upper, self._told[1].proved_end(log_delta, upper=True))
        return min(lower, upper), upper

    def _log_delta(self, epsilon: float) -> float:
        try:
            result = log_delta_of(self.cumulant, epsilon)
            if add_matters(self._add, epsilon, result):
                result = max(result, log_delta_of(self._add, epsilon))
        except ArithmeticError:  # Unreliable, or out of the range of floats: use bounds that always hold
            from lastiterate.privacy.losses.certified_bracket import proved_log_delta

            result = min(float(self._told[1].log_delta(np.float64(epsilon))), 0.0)
            with suppress(ArithmeticError):
                proved = max(proved_log_delta(cumulant, epsilon) for cumulant in (self.cumulant, self._add))
                result = min(result, proved)
        return result

    def _fnr(self, fpr: float) -> float:
        lower, upper = fnr_bounds(self.cumulant, fpr)
        if upper - lower <= max(_CLOSE_RATES[0], _CLOSE_RATES[1] * (1.0 - lower)):
            return lower
        try:
            return min(max(fnr_of(self.cumulant, fpr), lower), upper)
        except ArithmeticError:  # Unreliable, or out of the range of floats: use bounds that always hold
            return min(max(lower, float(self._told[1].fnr(np.float64(fpr)))), upper)


_ERROR = 2e-9  # error of an estimated epsilon, relative to max(1, epsilon); two lines agree to half of it


@dataclass(frozen=True)
class EstimatedPair(CompositionPair):
    """A sum of privacy losses for which only the fallback has a proved bracket. Other brackets estimate the error."""

    run: DPSGD

    @cached_property
    def _told(self) -> tuple[KnownParticipations, KnownParticipations]:
        return TOLD_NOTHING, told_run(self.run)

    def _bracket(self, log_delta: float) -> tuple[float, float]:
        try:
            value = self._by_two_lines(log_delta)
        except ArithmeticError:  # Unreliable, or out of the range of floats: use bounds that always hold
            return self._proved(log_delta, None)
        error = _ERROR * max(1.0, value)
        return max(self._at_least(value, log_delta) - error, 0.0), value + error

    def _at_least(self, value: float, log_delta: float) -> float:
        """Return a lower bound on epsilon, apart from numerical errors. ``value`` is an upper bound."""
        return value

    def _fnr(self, fpr: float) -> float:
        try:
            return min(max(fnr_of(self.cumulant, fpr), 0.0), 1.0 - fpr)
        except ArithmeticError:  # Unreliable, or out of the range of floats: use bounds that always hold
            return float(self._told[1].fnr(np.float64(fpr)))


@dataclass(frozen=True)
class EpochPair(EstimatedPair):
    """The sum of the privacy losses of all epochs of balls in bins, for P over Q and for Q over P."""

    cumulant: EpochCumulant

    @cached_property
    def _both(self) -> tuple[EpochCumulant, EpochCumulant]:
        return self.cumulant, cast("EpochCumulant", self._add)

    @cached_property
    def _last_iterate(self) -> Pair:
        return pair_of(law_of(self.run.replace(optimizer=None, weights=None, releases=None)))

    @cached_property
    def _is_single(self) -> bool:
        return float(self.cumulant.counts.sum()) == 1.0

    def _by_two_lines(self, log_delta: float) -> float:
        if self._is_single:
            with suppress(ArithmeticError):
                return max(each.epsilon_of_one(log_delta) for each in self._both)
        return super()._by_two_lines(log_delta)

    def _log_delta(self, epsilon: float) -> float:
        if self._is_single:
            with suppress(ArithmeticError):
                value = max(each.log_delta_of_one(epsilon)[0] for each in self._both)
                if value >= self.cumulant.smallest_direct:
                    return value
        return super()._log_delta(epsilon)


def add_matters(
    add: LossCumulant, epsilon: float, log_delta: float, bound: Callable[..., float] = chernoff_bound
) -> bool:
    """Return False if Chernoff's bound or the largest loss shows that delta of Q over P is at most the given delta."""
    largest = (1.0 + 1e-12) * add.largest_loss()
    if epsilon <= 0.0 or epsilon >= largest or math.log(-math.expm1(epsilon - largest)) <= log_delta:
        return False  # at epsilon = 0, P over Q and Q over P have the same delta
    try:
        return bound(add, epsilon, log_delta) > log_delta
    except Unreliable:
        return True
