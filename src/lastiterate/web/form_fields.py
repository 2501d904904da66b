"""Form fields of the explorer: their description, presets, and the reader of typed texts.

The page builds its form from this description. Each field has the name of its command-line option, and the parser of
that option reads the typed text. A new option therefore needs one line here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, get_args

from lastiterate.common.types import JsonObject
from lastiterate.run import DPSGD, LastBatch, Neighbours, Sampling

if TYPE_CHECKING:
    from lastiterate.compare_analyses import Curves

Group = Literal["data", "privacy", "training", "optimizer", "release"]
GROUPS: dict[Group, str] = {
    "data": "Data and batches",
    "privacy": "Noise and delta",
    "training": "Sampling",
    "optimizer": "Optimizer",
    "release": "What is released, and to whom it matters",
}


@dataclass(frozen=True)
class Field:
    """A form field for one value of a run.

    Attributes:
        name: the name of the option, with underscores.
        label: the label on the page.
        group: the group of fields that contains this field.
        hint: a few words on what to type.
        usual: the default text; empty: not given.
        choices: the allowed words; empty: free text, such as a number.
        unset: the label of an empty choice.
        low, high: the ends of the slider. Typed values may be beyond. None: no slider.
        is_log: True if the slider is logarithmic.
        is_whole: True if the slider takes whole numbers only.
        needs: another field, and the texts of that field with which this field counts. No texts: any text that is
            not empty. None: the field always counts.
    """

    name: str
    label: str
    group: Group
    hint: str = ""
    usual: str = ""
    choices: tuple[str, ...] = ()
    unset: str = "none"
    low: float | None = None
    high: float | None = None
    is_log: bool = True
    is_whole: bool = False
    needs: tuple[str, tuple[str, ...]] | None = None


FIELDS = (
    Field("dataset_size", "data set size", "data", "examples", "50000", low=100, high=1e7, is_whole=True),
    Field("batch_size", "batch size", "data", "examples, as expected", "512", low=1, high=65536, is_whole=True),
    Field("length", "length in", "data", usual="epochs", choices=("epochs", "steps")),
    Field("epochs", "epochs", "data", "passes", "60", low=1, high=1000, needs=("length", ("epochs",))),
    Field(
        "steps", "steps", "data", "updates", "5859", low=1, high=1e6, is_whole=True, needs=("length", ("steps",))
    ),
    Field("noise_multiplier", "noise multiplier", "privacy", "in clipping norms", "0.7", low=0.1, high=20),
    Field("delta", "delta", "privacy", "below 1 / examples", "1e-5", low=1e-10, high=1e-2),
    Field("noise_filter", "noise filter", "privacy", "correlated noise, as 1,-0.5; empty: independent"),
    Field(
        "min_separation", "separation", "privacy", "steps between batches with one example", "1", low=1, high=1000,
        is_whole=True, needs=("noise_filter", ()),
    ),
    Field("sampling", "batches are drawn", "training", usual="poisson", choices=get_args(Sampling)),
    Field(
        "last_batch", "smaller last batch", "training", usual="keep", choices=get_args(LastBatch),
        needs=("sampling", ("shuffled",)),
    ),
    Field(
        "optimizer", "optimizer", "optimizer", "none: every step counts alike", "", ("", "sgd", "adam", "adamw"),
    ),
    Field(
        "learning_rate", "learning rate", "optimizer", "any, if it is constant", "0.1", low=1e-4, high=10,
        needs=("optimizer", ("sgd", "adam", "adamw")),
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
    Field("convex", "contraction", "optimizer", "if losses are convex: how steps contract, in (0, 1]"),
    Field("releases", "released models", "release", "how many, or after which steps: 100,400", "1"),
    Field("group_size", "examples of a person", "release", "", "1", low=1, high=100, is_whole=True),
    Field(
        "neighbours", "neighbours", "release", "empty: add-remove, or zero-out if batches are shuffled or fixed", "",
        ("", *get_args(Neighbours)), "default",
    ),
)  # fmt: skip
NAMES = tuple(field.name for field in FIELDS)
ONLY_HERE = ("length",)  # fields of the page that are no options
ASKED = ("epsilon", "analysis", "batch_sizes")  # fields that are not part of the run

# Well-known runs: the texts that differ from the defaults.
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
        "groups": [{"name": name, "title": title} for name, title in GROUPS.items()],
        "fields": [asdict(field) for field in FIELDS],
        "presets": [{"title": title, "texts": texts} for title, texts in PRESETS.items()],
    }


def counting(texts: dict[str, str]) -> dict[str, str]:
    """Return the texts that count, by option. Empty fields and fields of another choice do not count.

    No defaults are filled in, with one exception. Without "length", steps count if only steps are given, else epochs.
    """
    known = {field.name: field for field in FIELDS}
    chosen = {"length": "steps" if texts.get("steps") and not texts.get("epochs") else "epochs", **texts}
    given: dict[str, str] = {}
    for name, text in texts.items():
        needs = known[name].needs if name in known else None
        if name in ONLY_HERE or not text.strip() or (needs and not _is_met(needs, chosen)):
            continue
        given[name] = text
    if given.get("releases", "").strip() == "1":
        del given["releases"]
    return given


def _is_met(needs: tuple[str, tuple[str, ...]], texts: dict[str, str]) -> bool:
    name, allowed = needs
    held = texts.get(name, "").strip()
    return held in allowed if allowed else bool(held)


# Reader: the command line's parsers, passed in by the caller, so that this package need not import them.


@dataclass(frozen=True)
class Reader:
    """The command line's parsers. Each raises a ValueError with the command line's error message.

    Attributes:
        run: makes a run from the texts of options, by name. Options of analyses are ignored.
        curves: makes the analyses that need more than the run, from the same texts.
        number: reads a number from an option's name and text.
        integers: reads whole numbers separated by commas from an option's name and text.
    """

    run: Callable[[Mapping[str, str]], DPSGD]
    curves: Callable[[Mapping[str, str]], Curves]
    number: Callable[[str, str], float]
    integers: Callable[[str, str], list[int]]


def blamed(sentence: str, names: Iterable[str]) -> str | None:
    """Return the field that an error message names first; None if it names none of these."""
    places: dict[int, str] = {}
    for name in sorted(names, key=len):  # the longer of two names at the same place wins
        spelled = re.escape(name).replace("_", "[_ -]")
        if found := re.search(rf"(?<![\w-])(?:--)?{spelled}(?![\w-])", sentence):
            places[found.start()] = name
    return places[min(places)] if places else None
