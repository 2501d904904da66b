"""All errors: bad input, missing dependencies, and failures of a running audit, which keep earlier results."""

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
        kept: description of the results that were stored before. Empty if they are not known.
    """

    kept: str = ""

    @property
    def story(self) -> str:
        """The whole message."""
        return str(self)


# Bad input.


class BadArgument(ValueError):
    """Error for an invalid argument. The message begins with the argument's name.

    Attributes:
        argument: name of the argument.
    """

    def __init__(self, argument: str, sentence: str) -> None:
        super().__init__(argument, sentence)
        self.argument, self.sentence = argument, sentence

    def __str__(self) -> str:
        return f"{self.argument} {self.sentence}"


# Missing dependencies.


class MissingExtra(ImportError):
    """Error for a missing optional dependency. The message says how to install it."""


INSTALL = 'pip install ".[{}]" in a clone of lastiterate'  # until lastiterate is published


def install_hint(extra: str) -> str:
    """Return the command that installs an extra."""
    return INSTALL.format(extra)


def not_installed(what: str, module: str | None, extra: str, needs: str = "needs") -> str:
    """Return the message for a missing dependency that an extra of this package installs."""
    return f"{what} {needs} {module}, which is not installed: {install_hint(extra)}"


# User code: failures of a trainer or an attack, reported with the user's own lines.

_Result = TypeVar("_Result")


class TrainerFailed(Breakdown):
    """Error for a user's trainer that raised, tried to exit, or returned a value that is not a score.

    Attributes:
        error: the exception that the trainer raised.
        training: description of the training that failed.
        lines: the user's own lines of the traceback.
        kept: description of the results that were stored before. Empty if they are not known.
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
        """Pickle the original error. If it cannot be pickled, pickle its message instead."""
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
    """Call a user's code and return its result. Raise ``failure`` for any exception, including SystemExit."""
    try:
        return call()
    except (Exception, SystemExit) as error:
        raise failure(error, what, _users_lines(error)) from error


def _users_lines(error: BaseException) -> str:
    """Return the lines of the traceback that are in the user's own files, and the line that raised."""
    ours = [str(Path(__file__).parents[1]), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))]
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((*ours, "<frozen"))]
    if frames and frames[-1] not in own:
        own.append(frames[-1])
    return "".join(traceback.format_list(own))


# Divergence.


class TrainingDiverged(ArithmeticError):
    """Error for a model whose parameters are not finite. Both trainers raise it."""


# Clusters.


class ClusterLost(Breakdown):
    """Error for a lost Ray cluster or a lost connection to it. Repeating the same call resumes from the store."""

    def __str__(self) -> str:
        kept = f"; {self.kept}" if self.kept else ""
        return f"Ray's cluster was lost: {self.args[0]}{kept}"


# Stores: a failed disk, or a store that disappeared.

DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class DiskTrouble(OSError):
    """Error for a store on a full or broken disk. Stored results are kept."""


class StoreLost(OSError):
    """Error for a store that disappeared during an audit. The message says where the results are now.

    Attributes:
        rescued: path of a new store, with which the same audit can continue. None if no new store could be written.
    """

    def __init__(self, sentence: str, rescued: Path | None) -> None:
        super().__init__(sentence)
        self.rescued = rescued
