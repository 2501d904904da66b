"""A progress bar on stderr, which disappears when the work is done; rich is loaded only where one is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

PATIENCE = 1.0  # seconds that work takes before the bar appears


def make_bar(*columns: ProgressColumn) -> Progress:
    """A bar with these columns, or with rich's own, that has not started yet."""
    from rich.console import Console
    from rich.progress import Progress

    return Progress(*columns, console=Console(stderr=True), transient=True)
