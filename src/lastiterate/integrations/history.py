"""Steps recorded by another library, and the heuristic's epsilon and delta for them.

Other libraries record the number of steps at each sample rate and noise multiplier. All steps have equal weight here,
as in plain SGD with a constant learning rate. Their order does not matter, and a billion equal steps are one segment.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from lastiterate.common.validation import PerStep, number
from lastiterate.compare_analyses import ask, instead_of_shuffling
from lastiterate.formatting import spell_exact, spell_up
from lastiterate.mechanism import Neighbours
from lastiterate.privacy.analyses.composition import composition
from lastiterate.privacy.analyses.no_amplification import no_amplification
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.pairs import pair_of, replaced_pair_of
from lastiterate.run import DPSGD

Drawing: TypeAlias = Literal["poisson", "balls-in-bins", "shuffled", "other"]  # how a data loader draws its batches

MOST_STEPS_WRITTEN_OUT = 10**7  # 80 MB an array; epsilon and delta need no arrays and have no such limit
MOST_KINDS_OF_STEPS = 300  # with more, composition takes longer than 0.3 s, and a warning states an upper bound instead


class HeuristicWarning(UserWarning):
    """Warning that an accountant's answer is a prediction of the heuristic, not a guarantee."""


@dataclass(frozen=True)
class Step:
    """One noisy sum of clipped gradients. Unlike in a ``DPSGD``, the noise may be 0. Epsilon is then infinite."""

    sample_rate: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "sample_rate", number("sample_rate", self.sample_rate, 0.0, 1.0))
        object.__setattr__(self, "noise_multiplier", number("noise_multiplier", self.noise_multiplier, 0.0))


@dataclass(frozen=True)
class History:
    """Segments of equal steps. A segment is a step and the number of such steps."""

    segments: tuple[tuple[Step, int], ...]
    neighbours: Neighbours = "add-remove"

    def epsilon(self, delta: float) -> float:
        """Return the heuristic's epsilon for a delta in [0, 1]. At 0 and 1 it follows dp-accounting's conventions."""
        if self._is_exposed:
            return math.inf
        law = self._law()
        if delta == 1.0 or law.high == 0.0:
            return 0.0
        return math.inf if delta == 0.0 else float(self._curve(law).epsilon(delta))

    def delta(self, epsilon: float) -> float:
        """Return the heuristic's delta for an epsilon in [0, inf]."""
        return 1.0 if self._is_exposed else float(self._curve(self._law()).delta(epsilon))

    def caution(self, answer: str, question: Callable[[PrivacyCurve], float], sampling: Drawing | None = None) -> str:
        """Return a sentence which says that the answer is no guarantee, and states the guarantee for this sampling."""
        noises = {step.noise_multiplier for step, _ in self.segments}
        noise = f" at noise multiplier {min(noises):.4g}" if len(noises) == 1 else ""
        steps = f"{self._total:,} step{'s' if self._total > 1 else ''}{noise}"
        sentence = f"{answer} is what the last-iterate heuristic predicts for {steps}, not a guarantee: "
        if sampling == "other":
            return f"{sentence}composition does not cover this data loader, whose batches are not Poisson samples"
        if sampling == "shuffled":
            words = "batches are shuffled, which composition does not cover (the prediction is for Poisson sampling)"
            try:
                run = self.run().replace(sampling="shuffled")
                guaranteed = spell_up(question(no_amplification(run)), 4)
                in_bins = instead_of_shuffling(run)
            except ValueError as refusal:
                return f"{sentence}{words}; no_amplification has no value here ({refusal})"
            if in_bins and (value := ask(in_bins, "composition", question).value) is not None:
                words = f"{words[:-1]}; with balls in bins composition would guarantee {spell_up(value, 4)})"
            proved = f"no_amplification guarantees {guaranteed} for zero-out neighbours, not for add/remove"
            return f"{sentence}{words}; {proved}"
        condition = {"poisson": "", "balls-in-bins": " for balls in bins"}.get(
            sampling or "", " if sampling is Poisson"
        )
        is_bounded = len({step for step, _ in self.segments}) > MOST_KINDS_OF_STEPS
        try:
            if is_bounded:  # a run of equal steps that leaks at least as much
                rate = max(step.sample_rate for step, _ in self.segments)
                run = DPSGD(self._total, rate, min(noises), neighbours=self.neighbours)
            else:
                run = self.run()
            if sampling == "balls-in-bins":
                run = run.replace(sampling=sampling)
            guaranteed = spell_up(question(composition(run)), 4)
            worst = " (all steps with the least noise and the largest sample rate)" if is_bounded else ""
            return f"{sentence}composition guarantees {guaranteed}{worst}{condition}"
        except ValueError as refusal:
            return f"{sentence}the guarantee is composition, which has no value here ({refusal})"

    def run(self) -> DPSGD:
        """Return the segments as one run. Its fields are numbers if all steps are equal, and arrays otherwise."""
        if not self.segments:
            raise ValueError("steps must be at least 1 to describe a run, got none: compose or train first")
        rates = self._per_step([step.sample_rate for step, _ in self.segments])
        noises = self._per_step([step.noise_multiplier for step, _ in self.segments])
        return DPSGD(steps=self._total, sample_rate=rates, noise_multiplier=noises, neighbours=self.neighbours)

    def _per_step(self, values: list[float]) -> PerStep:
        if len(set(values)) == 1:
            return values[0]
        if self._total > MOST_STEPS_WRITTEN_OUT:
            raise ValueError(
                f"steps must be at most {MOST_STEPS_WRITTEN_OUT} for a run whose steps differ, got {self._total}: "
                "ask for epsilon or delta, which need no run"
            )
        return np.repeat(values, [count for _, count in self.segments])

    def _law(self) -> Law:
        """Compute ``law_of(self.run())`` without arrays of one entry per step."""
        steps_at: Counter[float] = Counter()
        for step, count in self.segments:
            steps_at[step.sample_rate] += count
        constant = float(steps_at.pop(1.0, 0))
        steps_at.pop(0.0, None)
        counts, rates = np.array([*steps_at.values()], np.float64), np.array([*steps_at], np.float64)
        noise = math.hypot(*(step.noise_multiplier * math.sqrt(count) for step, count in self.segments))
        return Law(noise, constant, counts, rates, np.ones_like(rates))

    def _curve(self, law: Law) -> PrivacyCurve:
        pair = replaced_pair_of(law) if self.neighbours == "replace" else pair_of(law)
        return PrivacyCurve(pair, "last_iterate", is_guarantee=False)

    @property
    def _total(self) -> int:
        return sum(count for _, count in self.segments)

    @property
    def _is_exposed(self) -> bool:
        """True if a step may use an example without adding noise."""
        return any(step.noise_multiplier == 0.0 and step.sample_rate > 0.0 for step, _ in self.segments)


def tell_epsilon(epsilon: float, delta: float) -> str:
    """Format an epsilon and its delta for ``History.caution``."""
    return f"epsilon {spell_up(epsilon, 4)} at delta {spell_exact(delta)}"
