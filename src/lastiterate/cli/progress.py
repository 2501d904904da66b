"""A progress bar on stderr for work that turns out to take long; quick work shows and loads nothing."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from lastiterate.progress_bar import PATIENCE, make_bar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lastiterate.rows import Item, Track


class _Count:
    def __init__(self) -> None:
        self.done = 0


@contextmanager
def _bar(description: str, total: int) -> Iterator[_Count]:
    count, finished = _Count(), Event()

    def show() -> None:
        if finished.wait(PATIENCE):
            return
        with make_bar() as progress:
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


def tracker(description: str) -> Track:
    """A function that hands through the items of a sequence and, on a terminal, shows how far it is."""

    def track(items: Sequence[Item]) -> Iterator[Item]:
        if not sys.stderr.isatty():
            yield from items
            return
        with _bar(description, len(items)) as count:
            for item in items:
                yield item
                count.done += 1

    return track


def announcer(description: str) -> Track:
    """The same for items that show their own progress: on a terminal, a line says which one begins."""

    def announce(items: Sequence[Item]) -> Iterator[Item]:
        for number, item in enumerate(items, start=1):
            if sys.stderr.isatty():
                print(f"{description}: {number} of {len(items)}", file=sys.stderr)
            yield item

    return announce
