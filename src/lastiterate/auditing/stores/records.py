"""What a store tells about its audit to those who judge the scores, in this format and in the first one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np

from lastiterate.arrays import FloatArray
from lastiterate.auditing.design import Design, OneModel, OpenEnded, Paired, Quality, QualityName, kind_name
from lastiterate.auditing.identity import describe_run, read_run
from lastiterate.fields import Fields
from lastiterate.run import DPSGD
from lastiterate.second_moment import SecondMoment
from lastiterate.values import integer, number

_MOST_MODELS, _MOST_CANARIES = 2**53, 2**24
_LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Record:
    """An audit, apart from its scores.

    Attributes:
        run: what was trained.
        design: which trials there are.
        data: what was trained on what, for people.
        quality: what is measured beside the score; None: nothing.
        setup: versions, platform and date of the beginning.
    """

    run: DPSGD
    design: Design
    data: str
    quality: Quality | None
    setup: Fields

    def fields(self) -> Fields:
        """As what JSON has."""
        return {
            "run": describe_run(self.run),
            "design": {"kind": kind_name(self.design), **asdict(self.design)},
            "data": self.data,
            "quality": None if self.quality is None else self.quality.name,
            "setup": self.setup,
        }

    @classmethod
    def of_fields(cls, fields: Fields) -> Record:
        """The record that was written; what is none raises a TypeError, a ValueError or a KeyError."""
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
        """What the first format called accuracy: of language models it was 1 / perplexity."""
        if self.quality is None or not self.quality.lower_is_better:
            return accuracy
        found: FloatArray = np.divide(1.0, accuracy, out=np.full(len(accuracy), np.nan), where=accuracy != 0.0)
        return found


def _design(kind: str, models: object, **more: object) -> Design:
    """A design that a plan can be made of, without taking more memory than any audit does."""
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
    """Refuse what no crafter has decided: a TypeError, a ValueError or a KeyError."""
    measured = {name: crafted[name] for name in ("second_moment",) if name in _object(crafted)}  # since there is Adam
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
    """An object of JSON, with exactly these keys if any are named."""
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
    """What a store of the first format tells, where design and quality follow from what was found."""
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
    """What was decided before the first model, as a store of this format has it."""
    if facts is None:
        return None
    kept = {name: facts[name] for name in ("expected", "words", "chunk_size")}
    return {"facts": facts["crafted"], **kept, "quality_before": facts.get("perplexity_before")}
