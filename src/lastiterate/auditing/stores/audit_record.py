"""The parts of a store: the audit's description, the crafter's decisions, and the table of scored trials.

Values read from a file are checked, also those of the first format. Differences between two audits are named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.auditing.design import Design, OneModel, OpenEnded, Paired, Quality, QualityName, kind_name
from lastiterate.auditing.identity import describe_run, read_run
from lastiterate.common.types import BoolArray, Fields, FloatArray, IntArray
from lastiterate.common.validation import integer, number, numbers
from lastiterate.run import DPSGD
from lastiterate.trainers.adam_second_moment import SecondMoment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lastiterate.common.types import Fields

_MOST_MODELS, _MOST_CANARIES = 2**53, 2**24
_LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Record:
    """The description of an audit, without its scores.

    Attributes:
        run: the run that was trained.
        design: the planned trials.
        data: description of model and data for the report.
        quality: the quality measured besides the score; None if it is not measured.
        setup: versions, platform and date at the start.
    """

    run: DPSGD
    design: Design
    data: str
    quality: Quality | None
    setup: Fields

    def fields(self) -> Fields:
        """Return the record as JSON values."""
        return {
            "run": describe_run(self.run),
            "design": {"kind": kind_name(self.design), **asdict(self.design)},
            "data": self.data,
            "quality": None if self.quality is None else self.quality.name,
            "setup": self.setup,
        }

    @classmethod
    def of_fields(cls, fields: Fields) -> Record:
        """Read a record from JSON values. Raise TypeError, ValueError or KeyError if they are not a record."""
        _object(fields, "run", "design", "data", "quality", "setup")
        design = dict(_object(fields["design"]))
        kind = _one_of(("one-model", "open-ended", "paired"), design.pop("kind"))
        quality = fields["quality"]
        return cls(
            read_run(fields["run"]),
            _design(kind, **design),
            _text(fields["data"]),
            None if quality is None else Quality(_one_of(get_args(QualityName), quality)),
            _object(fields["setup"]),
        )

    def quality_of_format_1(self, accuracy: FloatArray) -> FloatArray:
        """Convert the first format's accuracy to the quality: for language models it was 1 / perplexity."""
        if self.quality is None or not self.quality.lower_is_better:
            return accuracy
        found: FloatArray = np.divide(1.0, accuracy, out=np.full(len(accuracy), np.nan), where=accuracy != 0.0)
        return found


def _design(kind: str, models: object, **more: object) -> Design:
    """Return a design. Raise if it has more models or canaries than any audit, as a plan needs memory for them."""
    if kind == "one-model":
        (seed,) = _object(more, "seed").values()
        return OneModel(integer("models", models, 1, _MOST_CANARIES), integer("seed", seed, 0, _LARGEST_SEED))
    count = integer("models", models, 1, _MOST_MODELS)
    if kind == "open-ended":
        (horizon,) = _object(more, "horizon").values()
        return OpenEnded(count, integer("horizon", horizon, 1, count))
    if more:
        raise TypeError(f"must be models alone, got {more!r}")
    return Paired(count)


def check_crafted(crafted: Fields) -> None:
    """Raise TypeError, ValueError or KeyError if these values cannot be a crafter's decisions."""
    measured = {name: crafted[name] for name in ("second_moment",) if name in _object(crafted)}  # not in older stores
    _object(crafted, "facts", "expected", "words", "quality_before", "chunk_size", *measured)
    for moment in measured.values():
        SecondMoment.of_fields(_object(moment))
    expected, words, before = crafted["expected"], crafted["words"], crafted["quality_before"]
    _object(crafted["facts"])
    all_of_them = {"signal": 1.0, "spread": 1.0, "released": False, **_object(expected)}
    _object(all_of_them, "kind", "signal", "spread", "released")
    _object(words, "attack", "unit", "caveats")
    _one_of(("linear", "likelihood-ratio", "none"), expected["kind"])
    number("signal", expected.get("signal", 1.0))
    number("spread", expected.get("spread", 1.0), 0.0, open_low=True)
    if not isinstance(all_of_them["released"], bool):
        raise TypeError(f"released must be true or false, got {all_of_them['released']!r}")
    for text in (words["attack"], words["unit"], *_list(words["caveats"])):
        _text(text)
    if before is not None:
        number("quality_before", before, 0.0)
    integer("chunk_size", crafted["chunk_size"], 1, 2**31)


def _one_of(allowed: Sequence[str], value: object) -> Any:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"must be one of {', '.join(allowed)}, got {value!r}")
    return value


def _object(value: Any, *keys: str) -> Fields:
    """Return the value if it is a JSON object, with exactly these keys if any are given."""
    if not isinstance(value, dict) or (keys and set(value) != set(keys)):
        raise TypeError(f"must be an object of {', '.join(keys)}, got {value!r}")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"must be a list, got {value!r}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"must be a text, got {value!r}")
    return value


def record_of_format_1(specification: Fields, facts: Fields | None, setup: Fields | None) -> Record:
    """Read the record of a store of the first format, in which ``facts`` determine design and quality."""
    found = facts or {}
    models, seed = specification["models"], specification["seed"]
    return Record(
        read_run(specification["run"]),
        _design("one-model", models, seed=seed) if found.get("one_run") else _design("paired", models),
        _text(specification["data"]),
        Quality("perplexity" if "perplexity_before" in found else "accuracy"),
        _object(setup or {}),
    )


def crafted_of_format_1(facts: Fields | None) -> Fields | None:
    """Convert the crafter's decisions of a store of the first format to the current format."""
    if facts is None:
        return None
    kept = {name: facts[name] for name in ("expected", "words", "chunk_size")}
    return {"facts": facts["crafted"], **kept, "quality_before": facts.get("perplexity_before")}


# Comparison: JSON texts, and the differences between two audits.

_ABSENT = object()
_SHOWN = 3  # differences named in an error message
_SHORT = 60  # characters of a value in an error message


def as_json(name: str, value: object) -> str:
    """Return a dictionary as JSON text. Raise ValueError with ``name`` if it is not one of JSON values."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a dictionary, got {value!r}")
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be made of what JSON has: {error}") from None


def check_same(path: Path, held: Fields, wanted: Fields) -> None:
    """Raise if the store holds another audit than the wanted one, and name the differences."""
    differing = list(islice(differences(held, wanted), _SHOWN + 1))
    if differing:
        more = " and more" if len(differing) > _SHOWN else ""
        raise ValueError(
            f"the store {str(path)!r} holds another audit ({'; '.join(differing[:_SHOWN])}{more}): "
            "name another store, or repeat what was asked for then"
        )


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
        yield f"{name} is {_short(held)} there and {_short(wanted)} here"


def _short(value: object) -> str:
    text = "absent" if value is _ABSENT else repr(value)
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}..."


# Trials: scored models as columns that are checked before they are written.


@dataclass(frozen=True, eq=False)
class ScoredTrials:
    """Trained and scored models, one array per column.

    Attributes:
        models: number of each model, from 0; each number occurs once per world.
        present: whether the canary was present: world "in", else "out".
        scores: scores of the last iterates; they may be infinite but not NaN.
        qualities: quality of the models, such as accuracy; NaN if it was not measured.
        seconds: each model's share of the time for training and scoring.
        versions: package versions, by name, of the process that trained the models; None: those of this process.
    """

    models: IntArray
    present: BoolArray
    scores: FloatArray
    qualities: FloatArray
    seconds: FloatArray
    versions: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        scores, present, models = map(np.asarray, (self.scores, self.present, self.models))
        if scores.dtype.kind == "f" and np.isnan(scores).any():
            raise ValueError("scores must be numbers, infinite ones included, got nan")
        if present.dtype != np.bool_:
            raise ValueError(f"present must be an array of booleans, got one of {present.dtype}")
        if models.dtype.kind not in "iu" and models.size:
            raise ValueError(f"models must be an array of integers, got one of {models.dtype}")
        if models.size and not (int(models.min()) >= 0 and int(models.max()) < 2**63):
            raise ValueError(f"models must be in [0, 2**63), got {int(models.min())} to {int(models.max())}")
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
        numbered = np.asarray(models)
        count = numbered.size
        return cls(
            numbered,
            np.asarray(present),
            np.asarray(scores),
            np.full(count, np.nan) if qualities is None else np.asarray(qualities),
            np.full(count, seconds / max(count, 1)),
        )

    @classmethod
    def joined(cls, parts: Sequence[ScoredTrials]) -> ScoredTrials:
        """Concatenate trials that were trained with the same package versions."""
        if any(part.versions != parts[0].versions for part in parts):
            raise ValueError("versions must be the same in all parts that are joined, got different ones")
        return replace(cls.mixed(parts), versions=parts[0].versions)

    @classmethod
    def mixed(cls, parts: Sequence[ScoredTrials]) -> ScoredTrials:
        """Concatenate trials and drop their package versions, which may differ."""
        return cls(
            np.concatenate([np.empty(0, np.int64), *(part.models for part in parts)]),
            np.concatenate([np.empty(0, np.bool_), *(part.present for part in parts)]),
            np.concatenate([np.empty(0), *(part.scores for part in parts)]),
            np.concatenate([np.empty(0), *(part.qualities for part in parts)]),
            np.concatenate([np.empty(0), *(part.seconds for part in parts)]),
        )

    def at(self, rows: IntArray | slice) -> ScoredTrials:
        """Return the trials of these rows, in this order."""
        return replace(
            self,
            models=self.models[rows],
            present=self.present[rows],
            scores=self.scores[rows],
            qualities=self.qualities[rows],
            seconds=self.seconds[rows],
        )

    def ordered(self) -> ScoredTrials:
        """Return the trials ordered by model, world "in" before "out"."""
        return self if len(self) < 2 else self.at(np.lexsort((~self.present, self.models)))

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def worlds(self) -> list[str]:
        """The world of each trial, "in" or "out"."""
        return ["in" if present else "out" for present in self.present.tolist()]
