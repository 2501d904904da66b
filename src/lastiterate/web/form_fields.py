"""What the explorer asks about a run: one description, of which the page makes its form.

Each field has the name of its option on the command line, which also reads what is typed, so that a new option needs no
more than a line here.
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
    """A value of a run.

    Attributes:
        name: that of the option, with underscores.
        label: beside it on the page.
        group: where it stands.
        hint: what to type, in a few words.
        usual: its text where nobody has said anything; empty: not given.
        choices: the words that it may be; empty: a number.
        unset: what an empty choice is called.
        low, high: ends of its slider. Typed values may be beyond. None: no slider.
        is_log: whether the slider goes by factors.
        is_whole: whether the slider goes by whole numbers.
        needs: another field and the texts of it with which this one counts; none of these: any text.
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
ONLY_HERE = ("length",)  # of the page, and no option
ASKED = ("epsilon", "analysis", "batch_sizes")  # beside the run

# A few that people know, by the texts in which they differ from the usual ones.
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
    """All of it as JSON, for the page."""
    return {
        "groups": [{"name": name, "title": title} for name, title in GROUPS.items()],
        "fields": [asdict(field) for field in FIELDS],
        "presets": [{"title": title, "texts": texts} for title, texts in PRESETS.items()],
    }


def counting(texts: dict[str, str]) -> dict[str, str]:
    """The texts that count, as options: what was left empty, or belongs to a choice that was not made, does not.

    Nothing is filled in, but for which of epochs and steps is meant where the page has not said it.
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


# How what is typed into a page becomes a run: by whoever reads the options of the command line, which is handed in.


@dataclass(frozen=True)
class Reader:
    """The command line's ways to read texts, each of which refuses by a ValueError with the command line's sentence.

    Attributes:
        run: a run by the names and texts of its options; those that are no run's are ignored.
        curves: analyses that need more than the run, by the same texts.
        number: the number that the text of an option is.
        integers: whole numbers with commas between them.
    """

    run: Callable[[Mapping[str, str]], DPSGD]
    curves: Callable[[Mapping[str, str]], Curves]
    number: Callable[[str, str], float]
    integers: Callable[[str, str], list[int]]


def blamed(sentence: str, names: Iterable[str]) -> str | None:
    """The field that a refusal names first; None: none of these."""
    places: dict[int, str] = {}
    for name in sorted(names, key=len):  # of two that begin at one place the longer is meant
        spelled = re.escape(name).replace("_", "[_ -]")
        if found := re.search(rf"(?<![\w-])(?:--)?{spelled}(?![\w-])", sentence):
            places[found.start()] = name
    return places[min(places)] if places else None
