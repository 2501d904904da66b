"""Errors of a running audit that are neither bad input nor a verdict. Earlier results are kept."""

from __future__ import annotations

import errno
import pickle
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar


class Breakdown(Exception):
    """Base of failures during an audit.

    Attributes:
        kept: description of what was stored before; empty if not known.
    """

    kept: str = ""

    @property
    def story(self) -> str:
        """The whole message for people."""
        return str(self)


# Missing dependencies.


class MissingExtra(ImportError):
    """Error for a missing optional dependency. The message is a sentence that says how to install it."""


# User code: failures of a trainer or an attack, reported with the user's own lines.

_Result = TypeVar("_Result")


class TrainerFailed(Breakdown):
    """Error for a user's trainer that raised, tried to exit, or returned a value that is not a score.

    Attributes:
        error: the exception that the trainer raised.
        training: description of the training that failed.
        lines: the user's own lines of the traceback.
        kept: description of what was stored before; empty if not known.
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
        """The whole message in several lines."""
        return f"{self}\n{self.lines}{self.kept}".rstrip()

    def __reduce__(self) -> tuple[type[TrainerFailed], tuple[BaseException, str, str, str]]:
        """Pickle with the original error or, if that cannot be pickled, with its message."""
        error = self.error
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return type(self), (error, self.training, self.lines, self.kept)


class AttackFailed(TrainerFailed):
    """Error for a user's attack that failed."""

    who = "attack"


def guarded(call: Callable[[], _Result], what: str, failure: type[TrainerFailed] = TrainerFailed) -> _Result:
    """Return the result of a user's code. Any exception, SystemExit included, becomes a ``failure``."""
    try:
        return call()
    except (Exception, SystemExit) as error:
        raise failure(error, what, _users_lines(error)) from error


def _users_lines(error: BaseException) -> str:
    """Return the traceback without this package and installed or standard ones, but with the line that raised."""
    ours = [str(Path(__file__).parents[1]), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))]
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((*ours, "<frozen"))]
    if frames and frames[-1] not in own:
        own.append(frames[-1])
    return "".join(traceback.format_list(own))


# Divergence.


class TrainingDiverged(ArithmeticError):
    """Error of both trainers for a model whose parameters are not finite: there is no last iterate to release."""


# Clusters.


class ClusterLost(Breakdown):
    """Error for the loss of Ray's cluster or of the connection to it. The same call resumes from the store."""

    def __str__(self) -> str:
        kept = f"; {self.kept}" if self.kept else ""
        return f"Ray's cluster was lost: {self.args[0]}{kept}"


# Stores: a failed disk, or a store that disappeared.

DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class DiskTrouble(OSError):
    """Error for a full or broken disk of a store. The message is a whole sentence. Stored results are kept."""


class StoreLost(OSError):
    """Error for a store that disappeared during an audit. The message says where its trials are now.

    Attributes:
        rescued: the new store, with which the same audit continues; None: nothing could be written anywhere.
    """

    def __init__(self, sentence: str, rescued: Path | None) -> None:
        super().__init__(sentence)
        self.rescued = rescued
