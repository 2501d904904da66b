"""When to look at the running epsilon: seldom enough that it takes at most a twentieth of an audit's time."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

_SHARE = 1 / 20
_PAUSE = 2.0  # seconds between two looks, however quick they are


class Looks:
    """Counts what looks cost. What the first will cost nobody knows: if it was dear, the next one waits for long."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._began = self._looked = clock()
        self._spent = self._each = 0.0  # seconds of all looks; of one trial in the last look

    def due(self, trials: int) -> bool:
        """Whether there is time for a look at so many trials."""
        now = self._clock()
        cost = self._spent + self._each * trials
        return now - self._looked > _PAUSE and cost <= _SHARE * (now - self._began)

    def look(self, at: Callable[[], str], trials: int) -> str:
        """What is seen, once it is counted what that has cost."""
        began = self._clock()
        seen = at()
        self._looked = self._clock()
        self._spent += self._looked - began
        self._each = (self._looked - began) / max(trials, 1)
        return seen
