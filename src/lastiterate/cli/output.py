"""Output of all commands: JSON, tables, other files, and progress bars.

A command prints one JSON object or tables to stdout. If stdout is not a terminal, tables are plain text. Everything
else, such as output of training code, goes to stderr. Output files are checked before any work begins. Pictures are
drawn after the table is printed, so that a failed picture does not lose the table.
"""

from __future__ import annotations

import ctypes
import math
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

import typer

from lastiterate.cli.app import BROKEN, OptionError
from lastiterate.common.progress import tell
from lastiterate.formatting import Table, neighbours_of, printable, shown, spell, spell_down, spell_up, text_of
from lastiterate.labels import ANALYSES

if TYPE_CHECKING:
    from rich.text import Text

    from lastiterate.common.types import Item, Json, JsonObject, Track
    from lastiterate.compare_analyses import Answer
    from lastiterate.plot.style import Picture
    from lastiterate.run import DPSGD


def print_json(fields: Mapping[str, Json]) -> None:
    """Print one JSON object. Infinity and NaN, which JSON lacks, raise a ValueError."""
    import json

    _write(json.dumps(fields, indent=2, allow_nan=False) + "\n")


def by_method(name: str, values: Mapping[str, float], reason: str) -> JsonObject:
    """Return one number for each method as JSON, followed by the reasons for infinite numbers."""
    finite = {method: value if math.isfinite(value) else None for method, value in values.items()}
    return {name: finite, **{f"{name}_{method}_reason": reason for method, value in finite.items() if value is None}}


def print_answers(title: str, quantity: str, answers: dict[str, Answer], run: DPSGD, notes: Iterable[str] = ()) -> None:
    """Print a table of the analyses, with the assumptions of each."""
    rows, reasons = [], []
    for name, answer in answers.items():
        label = ANALYSES[name].label_of(run)
        if name == "max_over_steps":
            continue
        if answer.value is None:
            rows.append((label, "none", "see below"))
            reasons.append(f"{label}: {answer.reason}")
        else:
            rows.append((label, spell_up(answer.value), ANALYSES[name].assumed_of(run)))
    below = [*reasons, f"Neighbours: {neighbours_of(run)}.", *notes]
    print_table(Table(title, ("analysis", quantity, "what it assumes"), rows, {1}, below))


def print_rows(title: str, rows: Sequence[Mapping[str, Json]], notes: Iterable[str | Text] = ()) -> None:
    """Print rows of JSON as a table. The keys are the header. Reasons for missing values are below the table."""
    header = [key for key in rows[0] if not key.endswith("_reason")]
    numeric = {i for i, key in enumerate(header) if not isinstance(rows[0][key], str)}
    reasons = dict.fromkeys(f"none: {row[key]}" for row in rows for key in row if key.endswith("_reason"))
    cells = [[_cell(key, row[key]) for key in header] for row in rows]
    print_table(Table(title, [key.replace("_", " ") for key in header], cells, numeric, [*reasons, *notes]))


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


def print_note(*lines: str | Text) -> None:
    """Print plain text, such as a note above a table."""
    from rich.text import Text

    _write(text_of(*(Text(shown(each)) if isinstance(each, str) else each for each in lines)) + "\n")


def width() -> int:
    """Return the width of the terminal in characters."""
    from rich.console import Console

    return Console().width


def listed(files: Sequence[Path], more: str) -> str:
    """Return the names of files in a line. Of files beside the first one, only what differs is named."""
    if not files:
        return more
    first, names = files[0], [str(files[0])]
    for file in files[1:]:
        own = file.suffix if file.stem == first.stem else file.name
        names.append(own if file.parent == first.parent else str(file))
    return printable(f"Files: {', '.join(names)}. {more}")


def print_table(table: Table) -> None:
    """Print a title, a table and notes, in colour on a terminal."""
    _write(text_of(*table.parts()) + "\n")


def _write(text: str) -> None:
    """Write to stdout and flush, so that a later failure does not lose the text."""
    sys.stdout.write(text)
    sys.stdout.flush()


# File conflicts: output files must differ from each other and from input files.

Files = Mapping[str, Iterable[Path]]  # by option, or by another name that users know

_BESIDE_A_STORE = ("-wal", "-shm", "-journal", ".lock")


def check_apart(outputs: Files, inputs: Files) -> None:
    """Raise an error if two outputs, or an output and an input, are the same file. Links are followed."""
    from lastiterate.common.atomic_write import is_same_file

    written = [(name, path) for name, paths in outputs.items() for path in paths]
    read = [(name, path) for name, paths in inputs.items() for path in paths]
    pairs = [*combinations(written, 2), *((output, source) for output in written for source in read)]
    for (one, path), (other, also) in pairs:
        if one != other and is_same_file(path, also):
            raise OptionError(f"{one} and {other} must be different files, got {str(path)!r} and {str(also)!r}")


def store_files(store: Path) -> list[Path]:
    """Return the files of a store, or of all stores in a folder, including SQLite's temporary files and locks."""
    stores = [store, *store.glob("*.sqlite")] if store.is_dir() else [store]
    return [Path(f"{file}{suffix}") for file in stores for suffix in ("", *_BESIDE_A_STORE)]


def given_files(*given: Path | str | None) -> list[Path]:
    """Return the values that name existing files. Other values are None, folders, or names of data sets."""
    paths = [Path(each) for each in given if each is not None]
    return [path for path in paths if path.is_file()]


# Redirection: text printed during training goes to stderr, since stdout is for results.

_OUT, _ERR = 1, 2


@contextmanager
def talk_on_stderr() -> Iterator[None]:
    """Redirect stdout to stderr, also for compiled code and child processes of the user's code."""
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


def check_plot(path: Path | None) -> None:
    """Raise an error if the picture could not be drawn or written. Do nothing if ``path`` is None."""
    if path is not None:
        from lastiterate.plot.chart_file import check_target

        check_target(path)


def write_plot(make: Callable[[], Picture], path: Path, *, quiet: bool) -> None:
    """Draw a picture after the table is printed, and end the command with the exit status of ``write_beside``."""
    raise typer.Exit(write_beside(pictures(make, [path]), quiet=quiet))


def picture_files(name: str, output: Path) -> list[Path]:
    """Return the paths of the pictures. Raise an error if a picture could not be written."""
    if output.suffix and not output.is_dir():
        check_plot(output)
        return [output]
    files = [f"{name}.{kind}" for kind in ("png", "html")]
    check_folder(output, files)
    return [output / file for file in files]


def audit_files(store: Path | None, folder: Path, name: str = "") -> list[Path]:
    """Return the paths of an audit's picture and page. Their stem is the store's stem followed by ``name``."""
    stem = store.stem if store else "audit"
    return [folder / f"{stem}{name}.{kind}" for kind in ("png", "html")]


def check_folder(folder: Path, files: Sequence[str]) -> None:
    """Raise an error if files of these names could not be written in the folder. Does not create the folder."""
    if not folder.is_dir() and (folder.exists() or folder.is_symlink() or not folder.parent.is_dir()):
        raise ValueError(f"--output must be a folder, or a new one within a folder that exists, got {str(folder)!r}")
    for file in files:
        check_plot((folder if folder.is_dir() else folder.parent) / file)


def check_page(folder: Path | None) -> None:
    """Raise an error if an audit's page could not be written in the folder. Do nothing if ``folder`` is None."""
    if folder is not None:
        check_folder(folder, ["audit.html"])


@dataclass(frozen=True)
class Beside:
    """A file that is written in addition to a printed table. The note below the table prints ``label`` and the name."""

    file: Path
    write: Callable[[Path], None]
    label: str = "Picture"


def pictures(make: Callable[[], Picture], files: Sequence[Path]) -> list[Beside]:
    """Return the files of one altair chart. The chart is made when the first file is written."""
    made = cache(make)

    def draw(file: Path) -> None:
        from lastiterate.plot.chart_file import save

        save(made(), file)

    return [Beside(file, draw) for file in files]


def write_beside(files: Sequence[Beside], *, quiet: bool, has_notes: bool = True, track: Track = iter) -> int:
    """Write files after a table is printed, and return the exit status: 0, or ``BROKEN`` if a file failed.

    The names of written files are printed below the notes of the table, unless ``quiet`` is true (for JSON).
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
    print(printable(f"{told}; the printed output is complete"), file=sys.stderr)
    return BROKEN


# Progress bars: on stderr, and only for long work, so that quick commands do not load the library.


def tracker(description: str) -> Track:
    """Return a function that yields the items of a sequence and shows a progress bar on a terminal."""

    def track(items: Sequence[Item]) -> Iterator[Item]:
        if not sys.stderr.isatty():
            yield from _telling(description, items)
            return
        from lastiterate.common.progress import PATIENCE, make_bar

        done, finished = 0, Event()

        def show() -> None:
            if finished.wait(PATIENCE):
                return
            with make_bar() as progress:
                task = progress.add_task(description, total=len(items))
                while not finished.wait(0.1):
                    progress.update(task, completed=done)

        thread = Thread(target=show, daemon=True)
        thread.start()
        try:
            for item in items:
                yield item
                done += 1
        finally:
            finished.set()
            thread.join()

    return track


def announcer(description: str) -> Track:
    """Return a function that prints a line before each item, for items with progress bars of their own."""

    def announce(items: Sequence[Item]) -> Iterator[Item]:
        for number, item in enumerate(_telling(description, items), start=1):
            if sys.stderr.isatty():
                print(f"{description}: {number} of {len(items)}", file=sys.stderr)
            yield item

    return announce


def _telling(description: str, items: Sequence[Item]) -> Iterator[Item]:
    """Yield the items, and tell the progress lines which one is worked on."""
    for number, item in enumerate(items, start=1):
        tell(f"{description}: {number} of {len(items)}" if len(items) > 1 else description)
        yield item
