"""Stopping rules for anytime-valid audits, and limits on how often a running audit is evaluated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

from lastiterate.common.validation import instance, number, written_number
from lastiterate.formatting import spell, spell_down

_ALLOWED = "refuted, minutes=NUMBER or epsilon=NUMBER, several of them with commas between"
_PAUSE = 19.0  # times the duration of a look: looks take at most a twentieth of the time


class Look(NamedTuple):
    """The state of an audit: whether the claim is refuted, and the epsilon that the first method finds."""

    refuted: bool
    epsilon: float


@dataclass(frozen=True)
class Until:
    """Conditions that end an audit before all models are trained. The first that holds ends it.

    Attributes:
        refuted: stop when the claim is refuted.
        minutes: stop after this many minutes of the session.
        epsilon: stop when the first requested method finds at least this epsilon.
    """

    refuted: bool = False
    minutes: float | None = None
    epsilon: float | None = None

    def reason(self, seconds: float, look: Callable[[], Look | None]) -> str | None:
        """Return the reason to stop after this many seconds, or None. ``look`` returns None before the first model."""
        if self.minutes is not None and seconds >= 60.0 * self.minutes:
            return f"{spell(self.minutes)} minutes are over"
        found = look() if self.refuted or self.epsilon is not None else None
        if found is None:
            return None
        if self.refuted and found.refuted:
            return "the claim is refuted"
        if self.epsilon is not None and found.epsilon >= self.epsilon:
            return f"an epsilon of {spell_down(found.epsilon, 4)} is found"
        return None


def read_until(text: str | None) -> Until | None:
    """Parse the value of ``--until``."""
    if text is None:
        return None
    instance("until", text, str, _ALLOWED)
    given: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        amount = written_number(value) if equals else None
        if name in given or (part.strip() != "refuted" and (name not in ("minutes", "epsilon") or amount is None)):
            raise ValueError(f"until must be {_ALLOWED}, got {text!r}")
        given[name] = 1.0 if amount is None else number(name, amount, 0.0, open_low=True)
    return Until("refuted" in given, given.get("minutes"), given.get("epsilon"))


class Watch:
    """A check of the stopping rules on a running audit, in at most a twentieth of its time."""

    def __init__(self, until: Until, clock: Callable[[], float] = monotonic) -> None:
        self._until, self._clock = until, clock
        self._began = self._next = clock()
        self._pause = 0.0  # no pause after the first look, which includes one-off preparations

    def reason(self, look: Callable[[], Look | None]) -> str | None:
        """Return the reason to stop if a check is due and a rule applies, else None."""
        began = self._clock()
        if began < self._next:
            return None
        reason = self._until.reason(began - self._began, look)
        now = self._clock()
        self._next, self._pause = now + self._pause * (now - began), _PAUSE
        return reason


# Running epsilon: looks at it take at most a twentieth of an audit's time.

_SHARE = 1 / 20
_LOOK_PAUSE = 2.0  # least seconds between two looks


class Looks:
    """A throttle for looks at the running epsilon. The wait is in proportion to the cost of the last look."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._began = self._looked = clock()
        self._spent = self._each = 0.0  # seconds: of all looks, and per trial in the last look

    def due(self, trials: int) -> bool:
        """Return whether there is time for a look at this number of trials."""
        now = self._clock()
        cost = self._spent + self._each * trials
        return now - self._looked > _LOOK_PAUSE and cost <= _SHARE * (now - self._began)

    def look(self, at: Callable[[], str], trials: int) -> str:
        """Return the result of a look, and record its cost."""
        began = self._clock()
        seen = at()
        self._looked = self._clock()
        self._spent += self._looked - began
        self._each = (self._looked - began) / max(trials, 1)
        return seen
