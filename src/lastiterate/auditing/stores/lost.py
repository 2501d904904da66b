"""What is raised where the store of a running audit disappears, or its disk fails."""

from __future__ import annotations

import errno
from pathlib import Path

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
