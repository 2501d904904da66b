"""From scores to an empirical epsilon: a lower bound, with its confidence, its method and its threshold beside it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A lower bound on epsilon, and all that it rests on.

    Attributes:
        epsilon: the bound, at least 0; infinite where a family of mechanisms cannot explain the scores at all.
        method: how it was found.
        delta: of (epsilon, delta)-DP.
        confidence: with which the bound holds, jointly for both error rates.
        threshold: models with a score of at least this are called "in".
        threshold_choice: "a-priori", "split", "corrected" or "uncorrected"; the last is not a valid bound.
        models_in: how many models with the canary were counted.
        models_out: how many without.
        false_positives: how many of those without were called "in".
        false_negatives: how many of those with were called "out".
        fpr_upper: upper bound on the false positive rate.
        fnr_upper: upper bound on the false negative rate.
        largest: what the bound would have been without a single error: so many models cannot show more.
        noise_multiplier: for a family, the largest noise multiplier (of the first step) that the scores allow.
    """

    epsilon: float
    method: str
    delta: float
    confidence: float
    threshold: float
    threshold_choice: str
    models_in: int
    models_out: int
    false_positives: int
    false_negatives: int
    fpr_upper: float
    fnr_upper: float
    largest: float
    noise_multiplier: float | None = None

    def __float__(self) -> float:
        return self.epsilon
