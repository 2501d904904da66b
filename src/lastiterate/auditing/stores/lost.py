"""What is raised where the store of a running audit disappears."""

from __future__ import annotations

from pathlib import Path


class StoreLost(OSError):
    """The store of a running audit is gone. The message is a whole sentence that says where its trials are now.

    Attributes:
        rescued: the new store, with which the same audit goes on; None: nothing could be written anywhere.
    """

    def __init__(self, sentence: str, rescued: Path | None) -> None:
        super().__init__(sentence)
        self.rescued = rescued
