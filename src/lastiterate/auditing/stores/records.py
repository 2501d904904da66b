"""What a store tells about its audit to those who judge the scores, in this format and in the first one."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from lastiterate.auditing.design import Design, OneModel, Paired, Quality
from lastiterate.auditing.identity import describe_run, read_run
from lastiterate.fields import Fields
from lastiterate.run import DPSGD


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
            "design": {"kind": "one-model" if isinstance(self.design, OneModel) else "paired", **asdict(self.design)},
            "data": self.data,
            "quality": None if self.quality is None else self.quality.name,
            "setup": self.setup,
        }

    @classmethod
    def of_fields(cls, fields: Fields) -> Record:
        """The record that was written."""
        design = dict(fields["design"])
        made = OneModel if design.pop("kind") == "one-model" else Paired
        quality = fields["quality"]
        return cls(
            read_run(fields["run"]),
            made(**design),
            fields["data"],
            None if quality is None else Quality(quality),
            dict(fields["setup"]),
        )

    @property
    def quality_in_format_1(self) -> str:
        """The column of the first format that has it: of language models that held 1 / perplexity."""
        return "1.0 / accuracy" if self.quality is not None and self.quality.lower_is_better else "accuracy"


def record_of_format_1(specification: Fields, facts: Fields | None, setup: Fields | None) -> Record:
    """What a store of the first format tells, where design and quality follow from what was found."""
    found = facts or {}
    models, seed = specification["models"], specification["seed"]
    return Record(
        read_run(specification["run"]),
        OneModel(models, seed) if found.get("one_run") else Paired(models),
        specification["data"],
        Quality("perplexity" if "perplexity_before" in found else "accuracy"),
        dict(setup or {}),
    )


def crafted_of_format_1(facts: Fields | None) -> Fields | None:
    """What was decided before the first model, as a store of this format has it."""
    if facts is None:
        return None
    kept = {name: facts[name] for name in ("expected", "words", "chunk_size")}
    return {"facts": facts["crafted"], **kept, "quality_before": facts.get("perplexity_before")}
