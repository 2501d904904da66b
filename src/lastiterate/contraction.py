"""Contraction: by how much a step of training brings two models closer, and how probably it does not."""

from __future__ import annotations

from dataclasses import dataclass

from lastiterate.values import number


@dataclass(frozen=True)
class Contraction:
    """A factor for every step of a run, as ``lastiterate.convex`` takes it.

    Attributes:
        value: without the canary, every step brings two models at least this much closer; in (0, 1].
        failure: the probability that some step does not, as where a batch is larger than what ``value`` was made for.
    """

    value: float
    failure: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", number("value", self.value, 0.0, 1.0, open_low=True))
        object.__setattr__(self, "failure", number("failure", self.failure, 0.0, 1.0, open_high=True))
