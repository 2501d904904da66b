"""What breaks while an audit runs: neither bad input nor a verdict, and what was done before it is kept."""

from __future__ import annotations

import errno
import pickle
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar


class Breakdown(Exception):
    """Something broke.

    Attributes:
        kept: what was stored before, in words; empty where that is not known.
    """

    kept: str = ""

    @property
    def story(self) -> str:
        """All of it, as people are told."""
        return str(self)


# What an optional dependency is called when it is missing.


class MissingExtra(ImportError):
    """A dependency that few need is not installed; the message is a sentence that says how to get it."""


# When a user's own code fails: told with their lines, and never mistaken for a verdict or for bad input.

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
    ours = [str(Path(__file__).parents[1]), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))]
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((*ours, "<frozen"))]
    if frames and frames[-1] not in own:
        own.append(frames[-1])
    return "".join(traceback.format_list(own))


# What both trainers raise where training has failed by itself.


class TrainingDiverged(ArithmeticError):
    """A model's parameters are no longer finite, so there is no last iterate to release."""


# What is raised when a cluster goes away while it is used.


class ClusterLost(Breakdown):
    """Ray's cluster, or the connection to it, is gone. The same call resumes what is stored."""

    def __str__(self) -> str:
        kept = f"; {self.kept}" if self.kept else ""
        return f"Ray's cluster was lost: {self.args[0]}{kept}"


# What is raised where the store of a running audit disappears, or its disk fails.

DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class DiskTrouble(OSError):
    """The disk of a store is full, or broken. The message is a whole sentence. What was stored before is kept."""


class StoreLost(OSError):
    """The store of a running audit is gone. The message is a whole sentence that says where its trials are now.

    Attributes:
        rescued: the new store, with which the same audit goes on; None: nothing could be written anywhere.
    """

    def __init__(self, sentence: str, rescued: Path | None) -> None:
        super().__init__(sentence)
        self.rescued = rescued
