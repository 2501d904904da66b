"""Form fields of the explorer: a description of the fields, presets, and the reader of typed texts.

The page builds its form from the description. Each field has the name of a command-line option, and the parser of this
option reads the typed text. A new option therefore needs one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, get_args

from lastiterate.common.errors import BadArgument
from lastiterate.common.types import JsonObject
from lastiterate.mechanism import LastBatch, Neighbours, Sampling
from lastiterate.run import DPSGD

if TYPE_CHECKING:
    from lastiterate.compare_analyses import Curves

Group = Literal["data", "privacy", "optimizer", "release", "noise"]
GROUPS: dict[Group, str] = {
    "data": "Data and batches",
    "privacy": "Noise and delta",
    "optimizer": "Optimizer",
    "release": "What is released, and the unit of privacy",
    "noise": "Correlated noise",
}
ADVANCED = ("optimizer", "release", "noise")  # groups that the page folds


@dataclass(frozen=True)
class Field:
    """A form field for one value of a run."""

    name: str  # name of the option, with underscores
    label: str
    group: Group
    hint: str = ""
    usual: str = ""  # the default; empty if there is none
    choices: tuple[str, ...] = ()  # allowed words; empty for free text, such as a number
    unset: str = "none"  # label of an empty choice
    low: float | None = None  # ends of the slider, if the field has one; typed values may be outside
    high: float | None = None
    is_log: bool = True
    is_whole: bool = False
    # The field is used only if another field has one of these texts, or any text if the tuple is empty.
    needs: tuple[str, tuple[str, ...]] | None = None


FIELDS = (
    Field("dataset_size", "data set size", "data", "number of training examples", "50000", low=100, high=1e7,
        is_whole=True),
    Field("batch_size", "batch size", "data", "examples in a step, on average", "512", low=1, high=65536,
        is_whole=True),
    Field("length", "length in", "data", "how the length of training is given", "epochs", ("epochs", "steps")),
    Field("epochs", "epochs", "data", "passes over the data", "60", low=1, high=1000, needs=("length", ("epochs",))),
    Field(
        "steps", "steps", "data", "updates of the model", "5859", low=1, high=1e6, is_whole=True,
        needs=("length", ("steps",)),
    ),
    Field("sampling", "batches are drawn", "data", "as your data loader does it; most loaders shuffle",
        "poisson", choices=get_args(Sampling)),
    Field(
        "last_batch", "smaller last batch", "data", "what happens to the rest of an epoch", "keep",
        choices=get_args(LastBatch), needs=("sampling", ("shuffled",)),
    ),
    Field(
        "max_batch_size", "largest batch", "data", "examples; the rest is dropped", "640", low=1, high=65536,
        is_whole=True, needs=("sampling", ("truncated-poisson",)),
    ),
    Field("noise_multiplier", "noise multiplier", "privacy", "noise over clipping norm; more noise leaks less", "0.7",
        low=0.1, high=20),
    Field("delta", "delta", "privacy", "chance that the promise fails; far below 1 / examples", "1e-5", low=1e-10,
        high=1e-2),
    Field("optimizer", "optimizer", "optimizer", "none: all steps have the same weight", "",
        ("", "sgd", "adam", "adamw")),
    Field(
        "learning_rate", "learning rate", "optimizer", "a constant rate does not change epsilon", "0.1", low=1e-4,
        high=10, needs=("optimizer", ("sgd", "adam", "adamw")),
    ),
    Field(
        "momentum", "momentum", "optimizer", "0 to 1", "0.9", low=0, high=0.99, is_log=False,
        needs=("optimizer", ("sgd",)),
    ),
    Field(
        "weight_decay", "weight decay", "optimizer", "0 or more", "0", low=0, high=0.1, is_log=False,
        needs=("optimizer", ("sgd", "adam", "adamw")),
    ),
    Field(
        "averaging", "averaging", "optimizer", "uniform, or a decay; empty: none", needs=("optimizer", ("sgd",))
    ),
    Field("convex", "contraction", "optimizer", "for convex losses: contraction of a step, in (0, 1]; empty: none"),
    Field("releases", "released models", "release", "how many, or after which steps: 100,400", "1"),
    Field("group_size", "examples of one person", "release", "most examples that one person has in the data", "1",
        low=1, high=100, is_whole=True),
    Field(
        "neighbours", "neighbours", "release", "what a neighbouring data set is; usually the default", "",
        ("", *get_args(Neighbours)), "default",
    ),
    Field("noise_filter", "noise filter", "noise", "coefficients, as 1,-0.5; empty: independent noise"),
    Field(
        "min_separation", "separation", "noise", "steps between batches with the same example", "1", low=1, high=1000,
        is_whole=True, needs=("noise_filter", ()),
    ),
)  # fmt: skip
NAMES = tuple(field.name for field in FIELDS)
ONLY_HERE = ("length",)  # fields of the page that are not command-line options
ASKED = ("epsilon", "analysis", "batch_sizes")  # fields that are not part of the run

# Presets: well-known runs, as texts that differ from the defaults.
PRESETS: dict[str, dict[str, str]] = {
    "The paper's example: 1,000 steps, sample rate 0.01, noise 1": {
        "dataset_size": "50000", "batch_size": "500", "length": "steps", "steps": "1000", "noise_multiplier": "1",
    },
    "The paper's CIFAR-10 in large batches: 4,096 of 50,000, noise 3": {
        "dataset_size": "50000", "batch_size": "4096", "length": "steps", "steps": "2468", "noise_multiplier": "3",
    },
    "Opacus' tutorial on CIFAR-10: ResNet-18, 512 of 50,000, 20 epochs": {
        "dataset_size": "50000", "batch_size": "512", "epochs": "20", "noise_multiplier": "0.39067",
    },
    "Opacus' example on MNIST: 240 of 60,000, 15 epochs, SGD": {
        "dataset_size": "60000", "batch_size": "240", "epochs": "15", "noise_multiplier": "1.3",
        "optimizer": "sgd", "learning_rate": "0.25", "momentum": "0",
    },
    "Fine-tuning with LoRA: 20,000 texts, 256 a batch, 3 epochs": {
        "dataset_size": "20000", "batch_size": "256", "epochs": "3", "noise_multiplier": "0.6", "delta": "1e-6",
    },
    "People with ten examples each, five released checkpoints": {
        "dataset_size": "100000", "batch_size": "1024", "epochs": "20", "noise_multiplier": "2", "releases": "5",
        "group_size": "10",
    },
}  # fmt: skip


def description() -> JsonObject:
    """Return groups, fields and presets as JSON, for the page."""
    return {
        "groups": [{"name": name, "title": title, "is_advanced": name in ADVANCED} for name, title in GROUPS.items()],
        "fields": [asdict(field) for field in FIELDS],
        "presets": [{"title": title, "texts": texts} for title, texts in PRESETS.items()],
    }


def counting(texts: dict[str, str]) -> dict[str, str]:
    """Map each option to the text of its field. Skip empty fields, and fields whose ``needs`` are not met.

    If the field "length" is not given, it is "steps" if only steps are given, and "epochs" otherwise.
    """
    known = {field.name: field for field in FIELDS}
    chosen = {"length": "steps" if texts.get("steps") and not texts.get("epochs") else "epochs", **texts}
    given: dict[str, str] = {}
    for name, text in texts.items():
        if name in ONLY_HERE or not text.strip():
            continue
        if name in known and (needs := known[name].needs) is not None:
            held = chosen.get(needs[0], "").strip()
            if not (held in needs[1] if needs[1] else held):
                continue
        given[name] = text
    if given.get("releases", "").strip() == "1":
        del given["releases"]
    return given


# Reader: the command line's parsers. The caller passes them, so that this package does not import the command line.


@dataclass(frozen=True)
class Reader:
    """The command line's parsers. Each raises a ValueError with the command line's error message."""

    run: Callable[[Mapping[str, str]], DPSGD]  # reads the texts of options, by name
    curves: Callable[[Mapping[str, str]], Curves]  # reads analyses that need more options than the run
    number: Callable[[str, str], float]  # reads an option's name and text
    integers: Callable[[str, str], list[int]]


def blamed_field(refusal: ValueError) -> str | None:
    """Return the field whose value was refused, or None if the error names no field."""
    argument = refusal.argument if isinstance(refusal, BadArgument) else ""
    name = argument.partition(" ")[0].removeprefix("--").replace("-", "_")
    return name if name in (*NAMES, *ASKED) else None
