"""When a user's own code fails: told with their lines, and never mistaken for a verdict or for bad input."""

from __future__ import annotations

import pickle
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from lastiterate.breakdown import Breakdown

_Result = TypeVar("_Result")


class TrainerFailed(Breakdown):
    """A user's trainer raised, left the program, or returned what is no score.

    Attributes:
        error: what it raised.
        training: which training it failed on, in words.
        lines: the user's own lines of the traceback.
        kept: what was stored before, in words; empty where that is not known.
    """

    who = "trainer"

    def __init__(self, error: BaseException, training: str, lines: str = "", kept: str = "") -> None:
        super().__init__(error, training, lines, kept)
        self.error, self.training, self.lines, self.kept = error, training, lines, kept

    def __str__(self) -> str:
        what = f"{type(self.error).__name__}: {self.error}"
        if isinstance(self.error, SystemExit):
            what = f"it called sys.exit({self.error.code!r})"
        return f"the {self.who} failed on {self.training}: {what}"

    @property
    def story(self) -> str:
        """All of it, in several lines."""
        return f"{self}\n{self.lines}{self.kept}".rstrip()

    def __reduce__(self) -> tuple[type[TrainerFailed], tuple[BaseException, str, str, str]]:
        """Sent to another process with its error or, if that cannot be sent, with the error's words."""
        error = self.error
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return type(self), (error, self.training, self.lines, self.kept)


class AttackFailed(TrainerFailed):
    """The same of a user's attack."""

    who = "attack"


def guarded(call: Callable[[], _Result], what: str, failure: type[TrainerFailed] = TrainerFailed) -> _Result:
    """What a user's code returns. Whatever it raises, an attempt to leave the program included, is its failure."""
    try:
        return call()
    except (Exception, SystemExit) as error:
        raise failure(error, what, _users_lines(error)) from error


def _users_lines(error: BaseException) -> str:
    """The traceback without this package, Python's own library and installed ones, but with the line that raised."""
    ours = [str(Path(__file__).parent), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))]
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((*ours, "<frozen"))]
    if frames and frames[-1] not in own:
        own.append(frames[-1])
    return "".join(traceback.format_list(own))
