"""Texts from users' files: one string for each unit of privacy, which is a dialogue or a text."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lastiterate.common.validation import boolean, instance, integer, number, one_of, told
from lastiterate.data.files import LINE, TEXTS, BadFile, Location, decoding, find, most_bytes, read_all, too_large

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

Unit: TypeAlias = Literal["dialogue", "text"]

_GZIP = b"\x1f\x8b"
_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
_TURNS = ("turns", "dialog", "utterances")
_FIELDS = ("text", *_TURNS, "messages")
_PERSONAS = {
    "your_persona": "your persona",
    "partner_persona": "partner's persona",
    "user1_persona": "user 1's persona",
    "user2_persona": "user 2's persona",
}
_NUMBERED = re.compile(r"([0-9]{1,9}) (.*)", re.DOTALL)
_PERSONA_LINE = re.compile(r"(?:your|partner's) persona: ")
_SILENCE = "__SILENCE__"  # the turn of a speaker who has not spoken yet


@dataclass(frozen=True)
class Texts:
    """Texts, each of which is one example of a training.

    Args:
        texts: the texts; none is blank.
        unit: the kind of each text, which is the unit of privacy: a whole dialogue, or a text.
        people: the person of each text, if people are protected instead of texts. None: each text is a unit by itself.
    """

    texts: tuple[str, ...] = field(repr=False)
    unit: Unit
    people: tuple[str, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        one_of("unit", self.unit, get_args(Unit))
        try:
            texts = () if isinstance(self.texts, (str, bytes)) else tuple(self.texts)
        except TypeError:
            raise ValueError(f"texts must be a list of strings, got {told(self.texts)}") from None
        object.__setattr__(self, "texts", texts)
        if not self.texts:
            raise ValueError("texts must hold at least one text, got none")
        for text in self.texts:
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"texts must be strings that are not blank, got {text!r}")
        if self.people is not None:
            object.__setattr__(self, "people", tuple(self.people))
            if len(self.people) != len(self.texts):
                raise ValueError(f"people must be one for each of {len(self.texts)} texts, got {len(self.people)}")

    @property
    def most_of_a_person(self) -> int:
        """The largest number of texts of one person; 1 if each text is a unit by itself."""
        return 1 if self.people is None else max(Counter(self.people).values())

    def at(self, places: Iterable[int]) -> Texts:
        """Return the texts at these positions."""
        kept = list(places)
        people = None if self.people is None else tuple(self.people[place] for place in kept)
        return Texts(tuple(self.texts[place] for place in kept), self.unit, people)

    def at_most(self, group_size: int) -> Texts:
        """Return the first ``group_size`` texts of each person."""
        most, seen, kept = integer("group_size", group_size), Counter[str](), []
        if self.people is None:
            raise ValueError(f"group_size must be 1 where nobody knows whose texts they are, got {group_size}")
        for place, person in enumerate(self.people):
            seen[person] += 1
            if seen[person] <= most:
                kept.append(place)
        return self.at(kept)

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class _Example:
    """One example of a file; ``line`` is its first line, counted from 1."""

    line: int
    parts: Sequence[str]
    personas: Sequence[str]
    unit: Unit
    person: str | None = None


def read_texts(path: Location, *, persona: bool = False, by: str | None = None) -> Texts:
    """Read the texts of a UTF-8 file, plain or gzip-compressed, in the order of the file.

    The format is detected from the file:

    - ConvAI2's own text files: a dialogue is a text, with one turn per line. Candidate replies are dropped.
    - JSON lines, each an object with ``text`` (a string), ``turns``, ``dialog`` or ``utterances`` (lists of strings) or
      ``messages`` (a list of objects with ``role`` and ``content``, which become lines ``role: content``). The first of
      these fields that an object has is read.
    - Plain text: texts are separated by blank lines. If there are no blank lines, each line is a text.

    Args:
        path: the file.
        persona: whether to begin each text with the lines that describe the speakers, as in PersonaChat.
        by: the field of JSON lines that names the person of a text, a string or a whole number, if people are
            protected.
    """
    boolean("persona", persona)
    if by is not None:
        instance("by", by, str, "the name of a field, or None")
    source = find(path, "file")
    lines = _lines(source)
    examples = list(_examples(source, lines, by))
    if persona and not any(example.personas for example in examples):
        raise ValueError(f"persona must be False for {str(source)!r}, in which no persona is described")
    units = {example.unit: example.line for example in examples}
    if len(units) > 1:
        raise BadFile(
            f"{str(source)!r} must hold either dialogues or texts, got a dialogue on line {units['dialogue']} "
            f"and a text on line {units['text']}"
        )
    people = None if by is None else tuple(str(example.person) for example in examples)
    return Texts(tuple(_join(source, example, persona) for example in examples), examples[0].unit, people)


def split_texts(texts: Texts, held_out: float, seed: int) -> tuple[Texts, Texts]:
    """Split off a share ``held_out`` of the texts, drawn by ``seed``. Return the training texts and the held-out texts.

    Both keep the order of the texts. A text that occurs twice may be on both sides.
    """
    share = number("held_out", held_out, 0.0, 1.0, open_low=True, open_high=True)
    integer("seed", seed, 0, 2**63 - 1)
    instance("texts", texts, Texts, "lm.Texts, as lm.read_texts gives")
    count = round(len(texts) * share)
    if not 1 <= count < len(texts):
        raise ValueError(
            f"held_out must leave at least one text on each side, got {held_out!r} of {len(texts)}, which is {count}"
        )
    # A hash, because NumPy may change a seed's draws between versions.
    order = sorted(range(len(texts)), key=lambda place: sha256(f"{seed} {place}".encode()).digest())
    chosen = set(order[:count])
    kept, held = ([place for place in range(len(texts)) if (place in chosen) == side] for side in (False, True))
    return texts.at(kept), texts.at(held)


def _lines(path: Path) -> list[str]:
    with decoding(path, "a text file, plain or gzip-compressed") as file:
        packed = file.read(2) == _GZIP
        file.seek(0)
        content = read_all(gzip.GzipFile(fileobj=file) if packed else file, path, TEXTS)
    _check_lines(path, content)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + content.count(b"\n", 0, error.start)
        raise BadFile(f"{str(path)!r} must be UTF-8, got byte 0x{content[error.start]:02x} on line {line}") from None
    if not text.strip():
        raise BadFile(f"{str(path)!r} must hold at least one text, got a file that is empty")
    # Not splitlines, which also splits at characters that are valid inside JSON strings.
    return text.replace("\r\n", "\n").split("\n")


def _check_lines(path: Path, content: bytearray) -> None:
    """Raise, before the file is split, if it has more lines than fit in memory or a line that is too long to parse."""
    most = most_bytes(LINE)
    if content.count(b"\n") >= most:
        raise too_large(f"{str(path)!r} must have", LINE, unit="lines")
    begin, number = 0, 1
    while begin < len(content):
        end = content.find(b"\n", begin)
        end = len(content) if end < 0 else end
        if end - begin > most:
            raise too_large(f"{str(path)!r} must have lines of", LINE, f"{end - begin:,} in line {number}")
        begin, number = end + 1, number + 1


def _examples(path: Path, lines: list[str], by: str | None) -> Iterator[_Example]:
    first = next(line for line in lines if line.strip())
    if any(suffix in _JSON_SUFFIXES for suffix in _suffixes(path)) or _is_object(first):
        return _json_lines(path, lines, by)
    if by is not None:
        raise ValueError(f"by must be None for {str(path)!r}, got {by!r}: only JSON lines have fields")
    numbered = _NUMBERED.fullmatch(first)
    if numbered and numbered[1] == "1" and (_PERSONA_LINE.match(numbered[2]) or "\t" in numbered[2]):
        return _convai2(path, lines)
    return _plain(lines)


def _suffixes(path: Path) -> list[str]:
    """Return the last suffix, or the one before ``.gz``."""
    last = [suffix.lower() for suffix in path.suffixes[-2:]]
    return last[:-1] if last[-1:] == [".gz"] else last[-1:]


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _join(path: Path, example: _Example, persona: bool) -> str:
    parts = [part.strip() for part in example.parts if part.strip()]
    if not parts:
        raise BadFile(f"{str(path)!r} must hold no {example.unit} without words, got one on line {example.line}")
    text = "\n".join([*example.personas, *parts] if persona else parts)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise BadFile(f"{str(path)!r} must hold Unicode text, got half of a surrogate pair on line {example.line}")
    if len(text) > most_bytes(LINE):
        raise too_large(f"{str(path)!r} must have texts of", LINE, f"{len(text):,} from line {example.line} on")
    return text


def _convai2(path: Path, lines: list[str]) -> Iterator[_Example]:
    turns: list[str] = []
    personas: list[str] = []
    start, last = 1, 0
    for place, line in enumerate(lines, 1):
        if not line.strip():
            continue
        numbered = _NUMBERED.fullmatch(line)
        count = int(numbered[1]) if numbered else 0
        # A missing number would merge two dialogues, and so two units of privacy.
        if numbered is None or count not in (1, last + 1):
            expected = f"{last + 1}, or 1 for a new dialogue" if last else "1"
            raise BadFile(
                f"{str(path)!r} must number the lines of each dialogue as ConvAI2 does, "
                f"got {line[:40]!r} on line {place} instead of number {expected}"
            )
        if count == 1 and last:
            yield _Example(start, turns, personas, "dialogue")
            start, turns, personas = place, [], []
        last = count
        if _PERSONA_LINE.match(numbered[2]):
            personas.append(numbered[2].strip())
        else:
            turns += [turn for turn in numbered[2].split("\t")[:2] if turn.strip() != _SILENCE]
    yield _Example(start, turns, personas, "dialogue")


def _json_lines(path: Path, lines: list[str], by: str | None) -> Iterator[_Example]:
    for place, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise BadFile(f"{str(path)!r} must hold one JSON object a line, got a broken one on line {place}") from None
        if not isinstance(record, dict):
            raise BadFile(
                f"{str(path)!r} must hold one JSON object a line, got a {type(record).__name__} on line {place}"
            )
        key = next((key for key in _FIELDS if key in record), None)
        if key is None:
            raise BadFile(
                f"{str(path)!r} must hold objects with one of {', '.join(_FIELDS)}, "
                f"got one with {', '.join(record)[:100] or 'nothing'} on line {place}"
            )
        personas = [
            f"{words}: {said.strip()}"
            for name, words in _PERSONAS.items()
            for said in _strings(path, place, name, record.get(name) or [])
        ]
        parts = _parts(path, place, key, record[key])
        person = None if by is None else _person(path, place, by, record)
        yield _Example(place, parts, personas, "text" if key == "text" else "dialogue", person)


def _person(path: Path, place: int, by: str, record: dict[str, object]) -> str:
    """Return the person of a text. 7 and "7" are one person: treating two people as one protects both."""
    person = record.get(by)
    if isinstance(person, bool) or not isinstance(person, (str, int)) or person == "":
        got = "none" if person is None else told(person)
        raise BadFile(
            f"{str(path)!r} must say in {by!r} whose each text is, by a string or a whole number, got {got} on line "
            f"{place}"
        )
    return str(person)


def _parts(path: Path, place: int, key: str, value: object) -> list[str]:
    if key == "text":
        return _strings(path, place, key, [value], "a string")
    if key in _TURNS:
        return _strings(path, place, key, value)
    wanted = "a list of objects with the strings role and content"
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise _wrong(path, place, key, wanted, value)
    messages = [_strings(path, place, key, [item.get("role"), item.get("content")], wanted) for item in value]
    return [f"{role}: {content.strip()}" for role, content in messages if content.strip()]


def _strings(path: Path, place: int, key: str, value: object, wanted: str = "a list of strings") -> list[str]:
    if not isinstance(value, list):
        raise _wrong(path, place, key, wanted, value)
    for item in value:
        if not isinstance(item, str):
            raise _wrong(path, place, key, wanted, item)
    return value


def _wrong(path: Path, place: int, key: str, wanted: str, value: object) -> BadFile:
    return BadFile(f"{str(path)!r} must have as {key} {wanted}, got a {type(value).__name__} on line {place}")


def _plain(lines: list[str]) -> Iterator[_Example]:
    runs = groupby(enumerate(lines, 1), key=lambda numbered: bool(numbered[1].strip()))
    blocks = [list(run) for filled, run in runs if filled]
    if len(blocks) == 1:
        blocks = [[numbered] for numbered in blocks[0]]
    for block in blocks:
        yield _Example(block[0][0], ["\n".join(line for _, line in block)], [], "text")
