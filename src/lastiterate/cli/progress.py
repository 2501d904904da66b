"""A progress bar on stderr for work that turns out to take long; quick work shows and loads nothing."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

PATIENCE = 1.0  # seconds before the bar appears


class _Count:
    def __init__(self) -> None:
        self.done = 0


@contextmanager
def _bar(description: str, total: int) -> Iterator[_Count]:
    count, finished = _Count(), Event()

    def show() -> None:
        if finished.wait(PATIENCE):
            return
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(description, total=total)
            while not finished.wait(0.1):
                progress.update(task, completed=count.done)

    thread = Thread(target=show, daemon=True)
    thread.start()
    try:
        yield count
    finally:
        finished.set()
        thread.join()


def tracker(description: str) -> Callable[[Sequence[Any]], Iterable[Any]]:
    """A function that hands through the items of a sequence and, on a terminal, shows how far it is."""

    def track(items: Sequence[Any]) -> Iterator[Any]:
        if not sys.stderr.isatty():
            yield from items
            return
        with _bar(description, len(items)) as count:
            for item in items:
                yield item
                count.done += 1

    return track


def announcer(description: str) -> Callable[[Sequence[Any]], Iterable[Any]]:
    """The same for items that show their own progress: on a terminal, a line says which one begins."""

    def announce(items: Sequence[Any]) -> Iterator[Any]:
        for number, item in enumerate(items, start=1):
            if sys.stderr.isatty():
                print(f"{description}: {number} of {len(items)}", file=sys.stderr)
            yield item

    return announce
