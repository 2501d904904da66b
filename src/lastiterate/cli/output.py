"""Output of all commands: JSON, tables, files beside them, and progress bars.

A command prints one JSON object or tables to stdout; tables are plain text without a terminal. Everything else, such as
output of training code, goes to stderr. Output files are checked before any work begins. Pictures are drawn after the
table is printed, so that a picture that fails does not lose the table.
"""

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
    """Print one JSON object. Infinity and NaN, which JSON lacks, raise a ValueError."""
    import json

    _write(json.dumps(fields, indent=2, allow_nan=False) + "\n")


def print_answers(title: str, quantity: str, answers: dict[str, Answer], run: DPSGD, notes: Iterable[str] = ()) -> None:
    """Print a table of the analyses, with the assumptions of each."""
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
    """Print rows of JSON as a table, with the keys as header and the reasons for missing values below."""
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
    """Print plain text, such as a note above a table."""
    from rich.text import Text

    _write(text_of(Text(shown(text))) + "\n")


def print_table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], numeric: set[int], notes: Sequence[str | Text]
) -> None:
    """Print a title, a table with numeric columns aligned to the right, and notes."""
    print_whole(Table(title, header, rows, numeric, notes))


def print_whole(table: Table) -> None:
    """Print a complete table, in colour on a terminal."""
    _write(text_of(*table.parts()) + "\n")


def _write(text: str) -> None:
    """Write to stdout and flush, so that a later failure does not lose the text."""
    sys.stdout.write(text)
    sys.stdout.flush()


# File conflicts: output files must differ from each other and from input files.

Files = Mapping[str, Iterable[Path]]  # by option, or by another name that users know

_BESIDE_A_STORE = ("-wal", "-shm", "-journal", ".lock")


def check_apart(outputs: Files, inputs: Files) -> None:
    """Raise an error if two outputs, or an output and an input, are the same file; links are followed."""
    written = [(name, path) for name, paths in outputs.items() for path in paths]
    read = [(name, path) for name, paths in inputs.items() for path in paths]
    pairs = [*combinations(written, 2), *((output, source) for output in written for source in read)]
    for (one, path), (other, also) in pairs:
        if one != other and is_same_file(path, also):
            raise OptionError(f"{one} and {other} must be different files, got {str(path)!r} and {str(also)!r}")


def store_files(store: Path) -> list[Path]:
    """Return a store, or a folder and its stores, with the SQLite and lock files beside each."""
    stores = [store, *store.glob("*.sqlite")] if store.is_dir() else [store]
    return [Path(f"{file}{suffix}") for file in stores for suffix in ("", *_BESIDE_A_STORE)]


def given_files(*given: Path | str | None) -> list[Path]:
    """Return the values that name existing files. Others are absent, folders, or names such as that of a dataset."""
    paths = [Path(each) for each in given if each is not None]
    return [path for path in paths if path.is_file()]


# Redirection: text printed during training goes to stderr, since stdout is for results.

_OUT, _ERR = 1, 2


@contextmanager
def talk_on_stderr() -> Iterator[None]:
    """Redirect stdout to stderr, also for compiled code and child processes of the user's code.

    The JSON object then stays alone on stdout.
    """
    _flush()
    kept = None
    with suppress(OSError):  # stdout or stderr is closed
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
    """Flush the buffers of Python and of C, so that no earlier output appears later on another stream."""
    for stream in (sys.stdout, sys.__stdout__):
        with suppress(OSError, ValueError, AttributeError):  # a broken pipe, a closed stream, no stream
            stream.flush()  # type: ignore[union-attr]
    with suppress(OSError, TypeError, AttributeError):  # platforms where the C library cannot be called this way
        ctypes.CDLL(None).fflush(None)


# Pictures and other files: their names, checks before work begins, and writing after the table.


def picture_files(name: str, output: Path) -> list[Path]:
    """Return the picture files, after checking that they can be written. Creates no file and no folder."""
    from lastiterate.plot.chart_file import check_target

    if output.suffix and not output.is_dir():
        check_target(output)
        return [output]
    files = [f"{name}.{kind}" for kind in ("png", "html")]
    check_folder(output, files)
    return [output / file for file in files]


def audit_files(store: Path | None, folder: Path, name: str = "") -> list[Path]:
    """Return the files of the picture and the page of an audit, named after the store, followed by ``name``."""
    stem = store.stem if store else "audit"
    return [folder / f"{stem}{name}.{kind}" for kind in ("png", "html")]


def check_folder(folder: Path, files: Sequence[str]) -> None:
    """Raise an error if files of these names could not be written in the folder. Does not create the folder."""
    from lastiterate.plot.chart_file import check_target

    if not folder.is_dir() and (folder.exists() or folder.is_symlink() or not folder.parent.is_dir()):
        raise ValueError(f"--output must be a folder, or a new one within a folder that exists, got {str(folder)!r}")
    for file in files:
        check_target((folder if folder.is_dir() else folder.parent) / file)


def check_page(folder: Path | None) -> None:
    """Raise an error if the page of an audit could not be written in the folder; None: no check."""
    if folder is not None:
        check_folder(folder, ["audit.html"])


@dataclass(frozen=True)
class Beside:
    """A file that is written beside a table. ``label`` precedes its name in the printed note."""

    file: Path
    write: Callable[[Path], None]
    label: str = "Picture"


def pictures(make: Callable[[], Picture], files: Sequence[Path]) -> list[Beside]:
    """Return the files of an altair chart, which is made when the first file is drawn."""
    made = cache(make)

    def draw(file: Path) -> None:
        from lastiterate.plot.chart_file import save

        save(made(), file)

    return [Beside(file, draw) for file in files]


def write_beside(files: Sequence[Beside], *, quiet: bool, has_notes: bool = True, track: Track = iter) -> int:
    """Write the files beside a printed table, and return the exit status: 0, or ``BROKEN`` if a file failed.

    Failures are reported in one sentence on stderr. Unless ``quiet`` (for JSON), the names of written files are printed
    below the notes of the table. Without notes (``has_notes``), a blank line comes first.
    """
    failed: dict[str, list[str]] = {}
    for each in track(files):
        try:
            each.file.parent.mkdir(exist_ok=True)
            each.write(each.file)
        except Exception as error:  # the table is printed, and other files may still be written
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


# Progress bars: on stderr, only for work that takes long, so that quick commands load nothing.


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
    """Return a function that yields the items of a sequence and shows a progress bar on a terminal."""

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
    """Return a function that yields the items and prints a line at each; for items with their own progress bar."""

    def announce(items: Sequence[Item]) -> Iterator[Item]:
        for number, item in enumerate(items, start=1):
            if sys.stderr.isatty():
                print(f"{description}: {number} of {len(items)}", file=sys.stderr)
            yield item

    return announce
