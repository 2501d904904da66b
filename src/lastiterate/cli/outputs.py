"""Files that a command writes are apart from each other, and from those that it reads; told before anything is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import Path

from lastiterate.cli.errors import OptionError
from lastiterate.whole_file import is_same_file

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
