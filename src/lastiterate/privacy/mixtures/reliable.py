"""What pairs have in common whose kernels may be too inaccurate to answer: then they ask for more noise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from lastiterate.privacy.mixtures.contour import Unreliable
from lastiterate.privacy.mixtures.rows import each

if TYPE_CHECKING:
    from collections.abc import Callable

    from lastiterate.arrays import Floats


class ReliablePair(ABC):
    """Answers number by number, or says in a sentence why it cannot."""

    too_little_noise: ClassVar[str]

    def epsilon(self, log_delta: Floats) -> Floats:
        return self._each(self._epsilon, log_delta)

    def log_delta(self, epsilon: Floats) -> Floats:
        return self._each(self._log_delta, epsilon)

    def fnr(self, fpr: Floats) -> Floats:
        return self._each(self._fnr, fpr)

    @abstractmethod
    def _epsilon(self, log_delta: Floats) -> Floats: ...

    @abstractmethod
    def _log_delta(self, epsilon: Floats) -> Floats: ...

    @abstractmethod
    def _fnr(self, fpr: Floats) -> Floats: ...

    def _each(self, function: Callable[[Floats], Floats], values: Floats) -> Floats:
        try:
            return each(function, values)
        except Unreliable:
            raise ValueError(self.too_little_noise) from None
