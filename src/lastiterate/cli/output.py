"""What commands print: one JSON object, or tables for people, which without a terminal are plain text."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from lastiterate.cli.exit_status import BROKEN, OptionError
from lastiterate.common.atomic_write import is_same_file
from lastiterate.common.progress import PATIENCE, make_bar
from lastiterate.formatting import Table, neighbours_of, printable, shown, spell, spell_down, spell_up, text_of
from lastiterate.registry import ANALYSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.text import Text

    from lastiterate.common.types import Item, Json, Track
    from lastiterate.compare_analyses import Answer
    from lastiterate.plot.style import Picture
    from lastiterate.run import DPSGD


def print_json(fields: Mapping[str, Json]) -> None:
    """Print one JSON object; infinity and NaN, which JSON lacks, would be a mistake of the caller's."""
    import json

    _write(json.dumps(fields, indent=2, allow_nan=False) + "\n")


def print_answers(title: str, quantity: str, answers: dict[str, Answer], run: DPSGD, notes: Iterable[str] = ()) -> None:
    """The analyses beside each other, each with what it assumes."""
    shown = {name: answer for name, answer in answers.items() if name != "max_over_steps"}
    rows = [
        (ANALYSES[name].label_of(run), "none", "see below")
        if answer.value is None
        else (ANALYSES[name].label_of(run), spell_up(answer.value), ANALYSES[name].assumed_of(run))
        for name, answer in shown.items()
    ]
    reasons = [
        f"{ANALYSES[name].label_of(run)}: {answer.reason}" for name, answer in shown.items() if answer.value is None
    ]
    below = [*reasons, f"Neighbours: {neighbours_of(run)}.", *notes]
    print_table(title, ("analysis", quantity, "what it assumes"), rows, {1}, below)


def print_rows(title: str, rows: Sequence[Mapping[str, Json]], notes: Iterable[str | Text] = ()) -> None:
    """Rows of JSON as a table: the keys are its header, and reasons stand under it."""
    header = [key for key in rows[0] if not key.endswith("_reason")]
    numeric = {i for i, key in enumerate(header) if not isinstance(rows[0][key], str)}
    reasons = dict.fromkeys(f"none: {row[key]}" for row in rows for key in row if key.endswith("_reason"))
    cells = [[_cell(key, row[key]) for key in header] for row in rows]
    print_table(title, [key.replace("_", " ") for key in header], cells, numeric, [*reasons, *notes])


def _cell(key: str, value: Json) -> str:
    match value:
        case None:
            return "none"
        case str():
            return value
        case int() | float() if key == "noise_multiplier" or key in ANALYSES:
            return spell_up(value)
        case int() | float() if key == "epsilon":  # a lower bound
            return spell_down(value)
        case int():
            return f"{value:,}"
        case float():
            return spell(value, 5)
    raise TypeError(f"{key} is no value for a table: {value!r}")


def print_note(text: str) -> None:
    """Plain words above a table."""
    from rich.text import Text

    _write(text_of(Text(shown(text))) + "\n")


def print_table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], numeric: set[int], notes: Sequence[str | Text]
) -> None:
    """A title, a table whose numeric columns are aligned to the right, and notes."""
    print_whole(Table(title, header, rows, numeric, notes))


def print_whole(table: Table) -> None:
    """A table that somebody else has put together, on a terminal with its colours."""
    _write(text_of(*table.parts()) + "\n")


def _write(text: str) -> None:
    """Write, and see that it arrives: whatever comes after it must not take it away."""
    sys.stdout.write(text)
    sys.stdout.flush()


# Files that a command writes are apart from each other, and from those that it reads; told before anything is done.

Files = Mapping[str, Iterable[Path]]  # by the option, or the words, that people know them by

_BESIDE_A_STORE = ("-wal", "-shm", "-journal", ".lock")


def check_apart(outputs: Files, inputs: Files) -> None:
    """Refuse files that are to be written under two names, or written over what is read; links are followed."""
    written = [(name, path) for name, paths in outputs.items() for path in paths]
    read = [(name, path) for name, paths in inputs.items() for path in paths]
    pairs = [*combinations(written, 2), *((output, source) for output in written for source in read)]
    for (one, path), (other, also) in pairs:
        if one != other and is_same_file(path, also):
            raise OptionError(f"{one} and {other} must be different files, got {str(path)!r} and {str(also)!r}")


def store_files(store: Path) -> list[Path]:
    """A store, or a folder of stores, with the files that SQLite and the lock put beside each."""
    stores = [store, *store.glob("*.sqlite")] if store.is_dir() else [store]
    return [Path(f"{file}{suffix}") for file in stores for suffix in ("", *_BESIDE_A_STORE)]


def given_files(*given: Path | str | None) -> list[Path]:
    """Files that are read, of options that may also be left out, name a folder, or no file at all, as of data."""
    paths = [Path(each) for each in given if each is not None]
    return [path for path in paths if path.is_file()]


# Stdout is for results: whatever is printed while models are trained goes to stderr.

_OUT, _ERR = 1, 2


@contextmanager
def talk_on_stderr() -> Iterator[None]:
    """What a user's code prints meanwhile goes to stderr; also what compiled code and processes that it starts print.

    So the one JSON object on stdout stays alone there.
    """
    _flush()
    kept = None
    with suppress(OSError):  # one of them is closed
        kept = os.dup(_OUT)
        os.dup2(_ERR, _OUT)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _flush()
        if kept is not None:
            os.dup2(kept, _OUT)
            os.close(kept)


def _flush() -> None:
    """Let nothing that was printed before come out later, and elsewhere: not Python's output, and not that of C."""
    for stream in (sys.stdout, sys.__stdout__):
        with suppress(OSError, ValueError, AttributeError):  # a pipe that is gone, a closed stream, none at all
            stream.flush()  # type: ignore[union-attr]
    with suppress(OSError, TypeError, AttributeError):  # where C's library cannot be asked like this
        ctypes.CDLL(None).fflush(None)


# Where commands put pictures, and how: after the table, which a picture that fails does not take away.


def picture_files(name: str, output: Path) -> list[Path]:
    """The files to draw, checked, so that nobody waits in vain; nothing is made yet, not even a new folder."""
    from lastiterate.plot.chart_file import check_target

    if output.suffix and not output.is_dir():
        check_target(output)
        return [output]
    files = [f"{name}.{kind}" for kind in ("png", "html")]
    check_folder(output, files)
    return [output / file for file in files]


def audit_files(store: Path | None, folder: Path, name: str = "") -> list[Path]:
    """The picture and the page of an audit: their names are the store's, followed by ``name``."""
    stem = store.stem if store else "audit"
    return [folder / f"{stem}{name}.{kind}" for kind in ("png", "html")]


def check_folder(folder: Path, files: Sequence[str]) -> None:
    """Refuse a folder in which files of these names could not be drawn later; a new one is not made yet."""
    from lastiterate.plot.chart_file import check_target

    if not folder.is_dir() and (folder.exists() or folder.is_symlink() or not folder.parent.is_dir()):
        raise ValueError(f"--output must be a folder, or a new one within a folder that exists, got {str(folder)!r}")
    for file in files:
        check_target((folder if folder.is_dir() else folder.parent) / file)


def check_page(folder: Path | None) -> None:
    """The same for the page of an audit, if there is to be one."""
    if folder is not None:
        check_folder(folder, ["audit.html"])


@dataclass(frozen=True)
class Beside:
    """A file that is written beside a table; ``label`` goes before its name where people are told of it."""

    file: Path
    write: Callable[[Path], None]
    label: str = "Picture"


def pictures(make: Callable[[], Picture], files: Sequence[Path]) -> list[Beside]:
    """An altair chart, which is made when the first of the files is drawn."""
    made = cache(make)

    def draw(file: Path) -> None:
        from lastiterate.plot.chart_file import save

        save(made(), file)

    return [Beside(file, draw) for file in files]


def write_beside(files: Sequence[Beside], *, quiet: bool, has_notes: bool = True, track: Track = iter) -> int:
    """Write what belongs beside a table that is printed already, and give the status for where no verdict has one.

    What cannot be written is one sentence. With ``quiet``, as for JSON, what was written is not told; otherwise it
    stands under the table's notes, if it ``has_notes``.
    """
    failed: dict[str, list[str]] = {}
    for each in track(files):
        try:
            each.file.parent.mkdir(exist_ok=True)
            each.write(each.file)
        except Exception as error:  # whatever it was: the table is there, and other files may still be written
            failed.setdefault(str(error) or type(error).__name__, []).append(repr(str(each.file)))
            continue
        if not quiet:
            print_note(f"{'' if has_notes else chr(10)}{each.label}: {printable(str(each.file))}")
            has_notes = True
    if not failed:
        return 0
    told = "; ".join(f"{' and '.join(names)} not written: {why}" for why, names in failed.items())
    print(printable(f"{told}; what was printed is complete"), file=sys.stderr)
    return BROKEN


# A progress bar on stderr for work that turns out to take long; quick work shows and loads nothing.


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
