"""What breaks while an audit runs: neither bad input nor a verdict, and what was done before it is kept."""

from __future__ import annotations


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
