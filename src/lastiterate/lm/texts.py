"""Texts from users' files. Each string is one unit of privacy: a dialogue or a text."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Literal, TypeAlias, cast, get_args

from lastiterate.common.validation import boolean, instance, integer, number, one_of, told
from lastiterate.data.files import LINE, TEXTS, BadFile, Location, decoding, find, most_bytes, read_all, too_large

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
    """Texts for training. Each text is one example.

    Args:
        texts: the texts. No text may be blank.
        unit: the unit of privacy: a whole "dialogue", or a "text".
        people: the person of each text, if people are protected. By default, each text is its own unit.
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
                raise ValueError(f"texts must be strings that are not blank, got {told(text)}")
        if self.people is not None:
            object.__setattr__(self, "people", tuple(self.people))
            if len(self.people) != len(self.texts):
                raise ValueError(f"people must be one for each of {len(self.texts)} texts, got {len(self.people)}")

    @property
    def most_of_a_person(self) -> int:
        return 1 if self.people is None else max(Counter(self.people).values())

    def at(self, places: Iterable[int]) -> Texts:
        kept = list(places)
        people = None if self.people is None else tuple(self.people[place] for place in kept)
        return Texts(tuple(self.texts[place] for place in kept), self.unit, people)

    def at_most(self, group_size: int) -> Texts:
        """Return the first ``group_size`` texts of each person."""
        most, seen, kept = integer("group_size", group_size), Counter[str](), []
        if self.people is None:
            raise ValueError(f"group_size must be 1 for texts without people, got {group_size}")
        for place, person in enumerate(self.people):
            seen[person] += 1
            if seen[person] <= most:
                kept.append(place)
        return self.at(kept)

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class _Example:
    line: int  # number of the first line, counted from 1
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
        persona: whether each text starts with the lines that describe the speakers, as in PersonaChat.
        by: if people are protected, the field of JSON lines that identifies the person, by a string or a whole number.
    """
    boolean("persona", persona)
    instance("by", by, (str, type(None)), "the name of a field, or None")
    source = find(path, "file")
    examples = list(_examples(source, _lines(source), by))
    if persona and not any(example.personas for example in examples):
        raise ValueError(f"persona must be False for {str(source)!r}, which describes no persona")
    units = {example.unit: example.line for example in examples}
    if len(units) > 1:
        got = f"a dialogue on line {units['dialogue']} and a text on line {units['text']}"
        raise BadFile(f"{str(source)!r} must hold either dialogues or texts, got {got}")
    people = None if by is None else tuple(str(example.person) for example in examples)
    return Texts(tuple(_join(source, example, persona) for example in examples), examples[0].unit, people)


def split_texts(texts: Texts, held_out: float, seed: int) -> tuple[Texts, Texts]:
    """Hold out a random share of the texts. Return the training texts and the held-out texts.

    Both keep the order of the texts. A text that occurs twice may be in both.
    """
    share = number("held_out", held_out, 0.0, 1.0, open_low=True, open_high=True)
    integer("seed", seed, 0, 2**63 - 1)
    instance("texts", texts, Texts, "lm.Texts, the result of lm.read_texts")
    count = round(len(texts) * share)
    if not 1 <= count < len(texts):
        got = f"{held_out!r} of {len(texts)}, which is {count}"
        raise ValueError(f"held_out must leave at least one text on each side, got {got}")
    # A hash is used, because NumPy's random numbers may change between versions.
    order = sorted(range(len(texts)), key=lambda place: sha256(f"{seed} {place}".encode()).digest())
    chosen = set(order[:count])
    kept, held = ([place for place in range(len(texts)) if (place in chosen) == side] for side in (False, True))
    return texts.at(kept), texts.at(held)


def _lines(path: Path) -> list[str]:
    with decoding(path, "a text file, plain or gzip-compressed") as file:
        packed = file.read(2) == _GZIP
        file.seek(0)
        content = read_all(gzip.GzipFile(fileobj=file) if packed else file, path, TEXTS)
    most, begin, number = most_bytes(LINE), 0, 1
    if content.count(b"\n") >= most:  # checked before the file is split
        raise too_large(f"{str(path)!r} must have", LINE, unit="lines")
    while begin < len(content):
        end = content.find(b"\n", begin)
        end = len(content) if end < 0 else end
        if end - begin > most:
            raise too_large(f"{str(path)!r} must have lines of", LINE, f"{end - begin:,} in line {number}")
        begin, number = end + 1, number + 1
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + content.count(b"\n", 0, error.start)
        raise BadFile(f"{str(path)!r} must be UTF-8, got byte 0x{content[error.start]:02x} on line {line}") from None
    if not text.strip():
        raise BadFile(f"{str(path)!r} must hold at least one text, got an empty file")
    # ``splitlines`` would also split at characters that are valid inside JSON strings.
    return text.replace("\r\n", "\n").split("\n")


def _examples(path: Path, lines: list[str], by: str | None) -> Iterator[_Example]:
    first = next(line for line in lines if line.strip())
    is_object = False
    with suppress(ValueError, RecursionError):
        is_object = isinstance(json.loads(first), dict)
    if is_object or Path(path.name.lower().removesuffix(".gz")).suffix in _JSON_SUFFIXES:
        return _json_lines(path, lines, by)
    if by is not None:
        raise ValueError(f"by must be None for {str(path)!r}, got {told(by)}: only JSON lines have fields")
    numbered = _NUMBERED.fullmatch(first)
    if numbered and numbered[1] == "1" and (_PERSONA_LINE.match(numbered[2]) or "\t" in numbered[2]):
        return _convai2(path, lines)
    return _plain(lines)


def _join(path: Path, example: _Example, persona: bool) -> str:
    parts = [part.strip() for part in example.parts if part.strip()]
    if not parts:
        raise _bad(path, example.line, f"hold no {example.unit} without words", "one")
    text = "\n".join([*example.personas, *parts] if persona else parts)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise _bad(path, example.line, "hold Unicode text", "half of a surrogate pair")
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
            got = f"{line[:40]!r} on line {place} instead of number {expected}"
            raise BadFile(f"{str(path)!r} must number the lines of each dialogue as ConvAI2 does, got {got}")
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
            raise _bad(path, place, "hold one JSON object per line", "a broken one") from None
        if not isinstance(record, dict):
            raise _bad(path, place, "hold one JSON object per line", f"a {type(record).__name__}")
        key = next((key for key in _FIELDS if key in record), None)
        if key is None:
            got = f"one with {', '.join(record)[:100] or 'nothing'}"
            raise _bad(path, place, f"hold objects with one of {', '.join(_FIELDS)}", got)
        personas = [
            f"{words}: {said.strip()}"
            for name, words in _PERSONAS.items()
            for said in _strings(path, place, name, record.get(name) or [])
        ]
        parts = _parts(path, place, key, record[key])
        person = None if by is None else _person(path, place, by, record)
        yield _Example(place, parts, personas, "text" if key == "text" else "dialogue", person)


def _person(path: Path, place: int, by: str, record: dict[str, object]) -> str:
    """Return the person of a text. 7 and "7" count as one person. This is safe if they are two."""
    person = record.get(by)
    if isinstance(person, bool) or not isinstance(person, (str, int)) or person == "":
        must = f"name the person of each text in {by!r}, by a string or a whole number"
        raise _bad(path, place, must, "none" if person is None else told(person))
    return str(person)


def _parts(path: Path, place: int, key: str, value: object) -> list[str]:
    if key == "text":
        return _strings(path, place, key, [value], "a string")
    if key in _TURNS:
        return _strings(path, place, key, value)
    wanted = "a list of objects with the strings role and content"
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise _bad(path, place, f"have as {key} {wanted}", f"a {type(value).__name__}")
    messages = [_strings(path, place, key, [item.get("role"), item.get("content")], wanted) for item in value]
    return [f"{role}: {content.strip()}" for role, content in messages if content.strip()]


def _strings(path: Path, place: int, key: str, value: object, wanted: str = "a list of strings") -> list[str]:
    wrong = [item for item in value if not isinstance(item, str)] if isinstance(value, list) else [value]
    if wrong:
        raise _bad(path, place, f"have as {key} {wanted}", f"a {type(wrong[0]).__name__}")
    return cast("list[str]", value)


def _bad(path: Path, line: int, must: str, got: str) -> BadFile:
    return BadFile(f"{str(path)!r} must {must}, got {got} on line {line}")


def _plain(lines: list[str]) -> Iterator[_Example]:
    runs = groupby(enumerate(lines, 1), key=lambda numbered: bool(numbered[1].strip()))
    blocks = [list(run) for filled, run in runs if filled]
    if len(blocks) == 1:
        blocks = [[numbered] for numbered in blocks[0]]
    for block in blocks:
        yield _Example(block[0][0], ["\n".join(line for _, line in block)], [], "text")
