"""Stopping rules for anytime-valid audits, and the times of interim estimates."""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TypeAlias, TypeVar

from lastiterate.common.errors import BadArgument
from lastiterate.common.validation import instance, number, told, written_number
from lastiterate.formatting import spell, spell_down

_ALLOWED = "refuted, minutes=NUMBER or epsilon=NUMBER, or several of them separated by commas"
_SHARE = 1 / 20  # largest share of an audit's time for interim estimates (a free choice)
_Seen = TypeVar("_Seen")


Look: TypeAlias = tuple[bool, float]  # whether the claim is refuted, and the epsilon of the first method


@dataclass(frozen=True)
class Until:
    """Conditions that end an audit before all models are trained. One of them is enough."""

    refuted: bool = False
    minutes: float | None = None  # longest duration of this session
    epsilon: float | None = None  # sufficient lower bound by the first requested method

    def reason(self, seconds: float, look: Callable[[], Look | None]) -> str | None:
        """Return the reason to stop after this many seconds, or None to go on."""
        if self.minutes is not None and seconds >= 60.0 * self.minutes:
            return f"{spell(self.minutes)} minutes have passed"
        found = look() if self.refuted or self.epsilon is not None else None
        if found is None:
            return None
        refuted, epsilon = found
        if self.refuted and refuted:
            return "the claim is refuted"
        if self.epsilon is not None and epsilon >= self.epsilon:
            return f"the lower bound reached epsilon {spell_down(epsilon, 4)}"
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
            raise BadArgument("until", f"must be {_ALLOWED}, got {told(text)}")
        given[name] = 1.0 if amount is None else number(name, amount, 0.0, open_low=True)
    return Until("refuted" in given, given.get("minutes"), given.get("epsilon"))


class Pace:
    """A limit on interim estimates: at least ``least`` seconds apart, and at most 5% of the time of the audit.

    With ``first_is_free``, the time of the first estimate does not count, because it includes preparations.
    """

    def __init__(self, least: float = 0.0, first_is_free: bool = False, clock: Callable[[], float] = monotonic) -> None:
        self._least, self._free, self._clock = least, first_is_free, clock
        self._began = self._looked = clock()
        self._spent = self._each = 0.0  # seconds of all estimates, and seconds per trial of the last one

    def look(self, at: Callable[[], _Seen], trials: int = 1) -> _Seen | None:
        """Return the estimate ``at()`` from this number of trials, or None if it is too early for another estimate."""
        began = self._clock()
        cost = self._spent + self._each * trials
        if began - self._looked < self._least or cost > _SHARE * (began - self._began):
            return None
        seen = at()
        self._looked = self._clock()
        if not self._free:
            self._spent += self._looked - began
            self._each = (self._looked - began) / max(trials, 1)
        self._free = False
        return seen


class Watch:
    """A check of the stopping rules on a running audit, as often as ``Pace`` allows."""

    def __init__(self, until: Until, clock: Callable[[], float] = monotonic) -> None:
        self._until, self._clock = until, clock
        self._pace, self._began = Pace(first_is_free=True, clock=clock), clock()

    def reason(self, look: Callable[[], Look | None]) -> str | None:
        return self._pace.look(lambda: self._until.reason(self._clock() - self._began, look))
