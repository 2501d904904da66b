"""The parts of a store: the audit's description, the crafted canary, and the table of scored trials."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.attacks.attack import Expected, ExpectedScores, Facts, Words, expected_fields
from lastiterate.auditing.design import Design, OneModel, OpenEnded, Paired, Quality, QualityName
from lastiterate.auditing.identity import describe_run, read_run
from lastiterate.common.errors import BadArgument
from lastiterate.common.types import BoolArray, Fields, FloatArray, IntArray
from lastiterate.common.validation import boolean, integer, number, numbers, one_of
from lastiterate.formatting import printable
from lastiterate.run import DPSGD
from lastiterate.trainers.adam_second_moment import SecondMoment

_Kind = TypeVar("_Kind")
_MOST_MODELS, _MOST_CANARIES = 2**53, 2**24
_LARGEST_SEED = 2**63 - 1
ABOUT = ("name", "owner", "notes")  # what a user may say about an audit; it does not affect the scores


@dataclass(frozen=True)
class Record:
    """The description of an audit, without its scores.

    ``setup`` has the package versions, the platform, the start date, and the user's name, owner and notes.
    """

    run: DPSGD
    design: Design
    data: str
    quality: Quality | None
    setup: Fields

    @property
    def about(self) -> dict[str, str]:
        """The user's name, owner and notes for the audit, if given."""
        told = {name: self.setup.get(name) for name in ABOUT}
        return {name: printable(text) for name, text in told.items() if isinstance(text, str) and text}

    def fields(self) -> Fields:
        return {
            "run": describe_run(self.run),
            "design": {"kind": self.design.kind, **asdict(self.design)},
            "data": self.data,
            "quality": None if self.quality is None else self.quality.name,
            "setup": self.setup,
        }

    @classmethod
    def of_fields(cls, fields: Fields) -> Record:
        """Read a record from JSON values. Raise TypeError, ValueError or KeyError if a value is missing or invalid."""
        _object(fields, "run", "design", "data", "quality", "setup")
        design = dict(_object(fields["design"]))
        kind = one_of("kind", design.pop("kind"), ("one-model", "open-ended", "paired"))
        quality = None
        if fields["quality"] is not None:
            quality = Quality(cast("QualityName", one_of("quality", fields["quality"], get_args(QualityName))))
        data, setup = _of(str, fields["data"]), _object(fields["setup"])
        return cls(read_run(fields["run"]), _design(kind, **design), data, quality, setup)


def _design(kind: str, models: object, **more: object) -> Design:
    if kind == "one-model":
        (seed,) = _object(more, "seed").values()
        return OneModel(integer("models", models, 1, _MOST_CANARIES), integer("seed", seed, 0, _LARGEST_SEED))
    count = integer("models", models, 1, _MOST_MODELS)
    if kind == "open-ended":
        (horizon,) = _object(more, "horizon").values()
        return OpenEnded(count, integer("horizon", horizon, 1, count))
    if more:
        raise TypeError(f"must have only the field models, got {more!r}")
    return Paired(count)


@dataclass(frozen=True)
class Crafted:
    """The crafted canary and the expected scores, fixed before the first audited model is trained."""

    facts: Facts  # plain values that the attack needs in later sessions
    expected: ExpectedScores  # the distribution of scores predicted by the linear analysis
    words: Words
    quality_before: float | None = None
    second_moment: SecondMoment | None = None  # Adam's second moment on reference models, if measured

    def fields(self) -> Fields:
        measured: Fields = {} if self.second_moment is None else {"second_moment": self.second_moment.fields()}
        return measured | {
            "facts": self.facts,
            "expected": expected_fields(self.expected),
            "words": asdict(self.words),
            "quality_before": self.quality_before,
        }

    @classmethod
    def of_fields(cls, fields: Fields) -> Crafted:
        """Read the result of ``fields()``. Raise TypeError, ValueError or KeyError if a value is missing or invalid."""
        measured = _object(fields).get("second_moment")  # present only for Adam
        names = ("facts", "expected", "words", "quality_before", "chunk_size")
        _object(fields, *names, *(["second_moment"] if measured is not None else []))
        moment = None if measured is None else SecondMoment.of_fields(_object(measured))
        given = {"signal": 1.0, "spread": 1.0, "released": False, **_object(fields["expected"])}
        _object(given, "kind", "signal", "spread", "released")
        number("signal", given["signal"])
        number("spread", given["spread"], 0.0, open_low=True)
        boolean("released", given["released"])
        told = _object(fields["words"], "attack", "unit", "caveats")
        words = Words(told["attack"], told["unit"], tuple(_of(list, told["caveats"])))
        for text in (words.attack, words.unit, *words.caveats):
            _of(str, text)
        if fields["quality_before"] is not None:
            number("quality_before", fields["quality_before"], 0.0)
        integer("chunk_size", fields["chunk_size"], 1, 2**31)
        return cls(_object(fields["facts"]), Expected(**fields["expected"]), words, fields["quality_before"], moment)


def _object(value: Any, *keys: str) -> Fields:
    if not isinstance(value, dict) or (keys and set(value) != set(keys)):
        raise TypeError(f"must be an object of {', '.join(keys)}, got {value!r}")
    return value


def _of(kind: type[_Kind], value: object) -> _Kind:
    if not isinstance(value, kind):
        raise TypeError(f"must be a {kind.__name__}, got {value!r}")
    return value


_ABSENT = object()
_SHOWN = 3  # largest number of differences in an error message
_SHORT = 60  # largest number of characters of a value in an error message


def as_json(name: str, value: object) -> str:
    """Return a dictionary as JSON text."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a dictionary, got {value!r}")
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must contain only JSON values: {error}") from None


def check_same(path: Path, held: Fields, wanted: Fields) -> None:
    """Raise an error that names the differences if the store holds another audit."""
    differing = list(islice(differences(held, wanted), _SHOWN + 1))
    if differing:
        named = "; ".join(differing[:_SHOWN]) + (" and more" if len(differing) > _SHOWN else "")
        what = "choose another store, or use the settings of that audit"
        raise ValueError(f"the store {str(path)!r} holds another audit ({named}): {what}")


def differences(held: object, wanted: object, name: str = "") -> Iterator[str]:
    """Yield a short description of each difference between two JSON values."""
    if isinstance(held, dict) and isinstance(wanted, dict):
        for key in [*held, *(key for key in wanted if key not in held)]:
            inner = f"{name}.{key}" if name else key
            yield from differences(held.get(key, _ABSENT), wanted.get(key, _ABSENT), inner)
    elif isinstance(held, list) and isinstance(wanted, list):
        for index, (one, other) in enumerate(zip_longest(held, wanted, fillvalue=_ABSENT)):
            yield from differences(one, other, f"{name}[{index}]")
    elif held != wanted and repr(held) != repr(wanted):  # NaN equals NaN here
        yield f"{name} is {_short(held)} in the store and {_short(wanted)} in this audit"


def _short(value: object) -> str:
    text = "absent" if value is _ABSENT else repr(value)
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}..."


_COLUMNS = ("models", "present", "scores", "qualities", "seconds")


@dataclass(frozen=True, eq=False)
class ScoredTrials:
    """Trained and scored models, with one array per column."""

    models: IntArray  # number of each model, from 0; each number occurs once per world
    present: BoolArray  # whether the canary was present: world "in", else "out"
    scores: FloatArray  # scores; they may be infinite but not NaN
    qualities: FloatArray  # quality of the models, such as accuracy; NaN if it was not measured
    seconds: FloatArray  # each model's share of the time for training and scoring
    versions: Mapping[str, str] | None = None  # package versions during training; None means those of this process

    def __post_init__(self) -> None:
        scores, present, models = map(np.asarray, (self.scores, self.present, self.models))
        if scores.dtype.kind == "f" and np.isnan(scores).any():
            raise BadArgument("scores", "must be numbers, infinite ones included, got nan")
        if present.dtype != np.bool_:
            raise BadArgument("present", f"must be an array of booleans, got one of {present.dtype}")
        if models.dtype.kind not in "iu" and models.size:
            raise BadArgument("models", f"must be an array of integers, got one of {models.dtype}")
        if models.size and not (int(models.min()) >= 0 and int(models.max()) < 2**63):
            raise BadArgument("models", f"must be in [0, 2**63), got {int(models.min())} to {int(models.max())}")
        qualities = np.asarray(self.qualities, np.float64)
        numbers("qualities", qualities[~np.isnan(qualities)], 0.0, open_high=True)
        columns = {
            "models": models.astype(np.int64),
            "present": present,
            "scores": numbers("scores", scores),
            "qualities": qualities,
            "seconds": numbers("seconds", self.seconds, 0.0, open_high=True),
        }
        for name, column in columns.items():
            if column.shape != (scores.size,):
                raise ValueError(f"{name} must be a row of {scores.size}, one for each score, got shape {column.shape}")
            object.__setattr__(self, name, column)

    @classmethod
    def of(
        cls,
        models: ArrayLike,
        present: ArrayLike,
        scores: ArrayLike,
        qualities: ArrayLike | None = None,
        *,
        seconds: float,
    ) -> ScoredTrials:
        """Make trials that took ``seconds`` in total."""
        numbered, count = np.asarray(models), np.size(models)
        measured = np.full(count, np.nan) if qualities is None else np.asarray(qualities)
        shares = np.full(count, seconds / max(count, 1))
        return cls(numbered, np.asarray(present), np.asarray(scores), measured, shares)

    @classmethod
    def mixed(cls, parts: Sequence[ScoredTrials]) -> ScoredTrials:
        """Concatenate trials and drop their package versions, which may differ."""
        them = [cls.of(np.empty(0, np.int64), np.empty(0, np.bool_), np.empty(0), seconds=0.0), *parts]
        columns: dict[str, Any] = {name: np.concatenate([getattr(each, name) for each in them]) for name in _COLUMNS}
        return replace(them[0], **columns)

    def at(self, rows: IntArray | slice) -> ScoredTrials:
        return replace(self, **{name: getattr(self, name)[rows] for name in _COLUMNS})

    def ordered(self) -> ScoredTrials:
        """Return the trials ordered by model, world "in" before "out"."""
        return self if len(self) < 2 else self.at(np.lexsort((~self.present, self.models)))

    def __len__(self) -> int:
        return len(self.scores)

    def name(self, row: int) -> str:
        return f"model {self.models[row]} of world {self.worlds[row]!r}"

    @property
    def worlds(self) -> list[str]:
        return ["in" if present else "out" for present in self.present.tolist()]
