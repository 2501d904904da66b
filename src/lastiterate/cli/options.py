"""Options that describe a run on the command line, shared by all commands, and their conversion to a ``DPSGD``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar, get_args, get_type_hints

import typer

from lastiterate.cli import option_values as values
from lastiterate.cli.exit_status import OptionError
from lastiterate.registry import ANALYSES
from lastiterate.run import DPSGD, LastBatch, Neighbours, Sampling, batches_of_epoch
from lastiterate.schedules import SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lastiterate.common.types import Fields
    from lastiterate.compare_analyses import Curves
    from lastiterate.optimizer import Optimizer


def option(name: str, kind: Callable[[str], Callable[[str], object]] | None, metavar: str | None, help_: str) -> object:
    """An option. ``kind`` is a function of ``option_values`` that makes the parser; None leaves parsing to typer."""
    return typer.Option(name, parser=kind and kind(name), metavar=metavar, help=help_, show_default=False)


def integer_option(name: str, help_: str) -> object:
    """An option that takes a whole number."""
    return option(name, values.integer, "INTEGER", help_)


def number_option(name: str, help_: str) -> object:
    """An option that takes a number."""
    return option(name, values.number, "NUMBER", help_)


def choice(name: str, words: Sequence[str], help_: str) -> object:
    """An option that takes one of a few words."""
    return option(name, values.one_of(*words), "|".join(words), help_)


def flag(name: str, help_: str) -> object:
    """An option without a value."""
    return option(name, None, None, help_)


PerStepOption: TypeAlias = float | list[float]

Steps = Annotated[int | None, integer_option("--steps", "Number of updates.")]
NoiseMultiplier = Annotated[
    PerStepOption,
    option(
        "--noise-multiplier", values.per_step, "NUMBER", "Noise sigma over the clipping norm; or one per step: 1,2,3."
    ),
]
LastBatchOption = Annotated[
    LastBatch | None,
    choice(
        "--last-batch", get_args(LastBatch), "What the loader does with a smaller last batch (default: as if none)."
    ),
]
Delta = Annotated[float, number_option("--delta", "Delta of (epsilon, delta)-DP, in (0, 1).")]
Convex = Annotated[
    float | None,
    number_option("--convex", "Losses are convex and steps contract by this factor: guarantee the last iterate."),
]
Epsilon = Annotated[float, number_option("--epsilon", "Epsilon of (epsilon, delta)-DP.")]
Analysis = Annotated[
    str | None,
    choice(
        "--analysis",
        [each.option for each in ANALYSES.values() if each.name != "max_over_steps"],
        "The analysis that is to reach it (default: the guarantee, and beside it the heuristic).",
    ),
]
Sentence = Annotated[bool, flag("--sentence", "Print the sentence in which this may be quoted, instead of a table.")]
Json = Annotated[bool, flag("--json", "Print one JSON object instead of a table.")]
Plot = Annotated[
    Path | None, option("--plot", None, "FILE", "Also draw a picture: FILE.png, .svg, .pdf or (interactive) .html.")
]


@dataclass(frozen=True)
class MethodOptions:
    """Options for sampling, optimizer, releases, neighbours and correlated noise of a run."""

    sampling: Annotated[
        Sampling, choice("--sampling", get_args(Sampling), "How batches are drawn (default: poisson).")
    ] = "poisson"
    learning_rate: Annotated[
        PerStepOption | None, option("--learning-rate", values.per_step, "NUMBER", "One number, or one per step.")
    ] = None
    schedule: Annotated[
        str | None, choice("--schedule", tuple(SCHEDULES), "How the learning rate changes (default: not at all).")
    ] = None
    final_rate: Annotated[
        float | None, number_option("--final-rate", "Where linear and cosine schedules end (default: 0).")
    ] = None
    warmup_steps: Annotated[int | None, integer_option("--warmup-steps", "How long warmup-cosine rises.")] = None
    first_rate: Annotated[float | None, number_option("--first-rate", "Where warmup-cosine begins (default: 0).")] = (
        None
    )
    drop_every: Annotated[int | None, integer_option("--drop-every", "Steps between drops of schedule step.")] = None
    drop_factor: Annotated[
        float | None, number_option("--drop-factor", "What schedule step multiplies by (default: 0.1).")
    ] = None
    momentum: Annotated[float | None, number_option("--momentum", "Heavy-ball factor, in [0, 1).")] = None
    dampening: Annotated[float | None, number_option("--dampening", "Dampening of the momentum, as in PyTorch.")] = None
    nesterov: Annotated[bool, flag("--nesterov", "Nesterov's momentum.")] = False
    weight_decay: Annotated[float | None, number_option("--weight-decay", "L2 factor; needs --learning-rate.")] = None
    decoupled: Annotated[bool, flag("--decoupled", "Weight decay apart from the gradient, as in SGDW.")] = False
    averaging: Annotated[
        str | None,
        option("--averaging", values.average, "uniform|DECAY", "Release the mean of the iterates, or their EMA."),
    ] = None
    optimizer: Annotated[
        str | None,
        choice("--optimizer", ("sgd", "adam", "adamw"), "With Adam, predictions are approximations of a heuristic."),
    ] = None
    beta1: Annotated[float | None, number_option("--beta1", "Adam's, of gradients (default: 0.9).")] = None
    beta2: Annotated[float | None, number_option("--beta2", "Adam's, of their squares (default: 0.999).")] = None
    eps: Annotated[
        float | None, number_option("--eps", "Adam's, on the scale of sums of gradients (default: 1e-8).")
    ] = None
    weights: Annotated[
        PerStepOption | None,
        option("--weights", values.per_step, "W1,W2,...", "Weight of each step in the model, instead of an optimizer."),
    ] = None

    releases: Annotated[
        int | list[int] | None,
        option("--releases", values.one_or_more, "K|S1,S2,...", "Release K iterates, or those after these steps."),
    ] = None
    group_size: Annotated[int | None, integer_option("--group-size", "Examples of one person (default: 1).")] = None
    neighbours: Annotated[
        Neighbours | None,
        choice(
            "--neighbours",
            get_args(Neighbours),
            "What happens to one example (default: add-remove; zero-out with shuffled or fixed batches).",
        ),
    ] = None

    noise_filter: Annotated[
        list[float] | None,
        option(
            "--noise-filter",
            values.coefficients,
            "C0,C1,...|FILE",
            "Correlated noise: how much of each earlier step's noise a step adds, from its own on.",
        ),
    ] = None
    min_separation: Annotated[
        int, integer_option("--min-separation", "Steps between batches with one example (default: 1).")
    ] = 1

    def fields(self) -> Fields:
        """Return the fields of a ``DPSGD`` that these options set."""
        names = ("sampling", "weights", "releases", "neighbours", "noise_filter", "min_separation")
        group = 1 if self.group_size is None else self.group_size
        return {"optimizer": self._optimizer(), "group_size": group, **{name: getattr(self, name) for name in names}}

    def scheduled(self, run: DPSGD) -> DPSGD:
        """Return the run with the named learning rate schedule, which depends on the number of steps."""
        parameters = self._schedule_parameters()
        if self.schedule is None or run.optimizer is None:
            return run
        rates = SCHEDULES[self.schedule](self.learning_rate, run.steps, **parameters)
        return run.replace(optimizer=replace(run.optimizer, learning_rate=rates))

    def _schedule_parameters(self) -> dict[str, float]:
        """Return the options of the schedule. Raise an error if one is missing or belongs to another schedule."""
        names = ("final_rate", "warmup_steps", "first_rate", "drop_every", "drop_factor")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        taken = dict(signature(SCHEDULES[self.schedule]).parameters) if self.schedule else {}
        for name in given:
            if name not in taken:
                owners = [each for each, make in SCHEDULES.items() if name in signature(make).parameters]
                got = f"--schedule {self.schedule}" if self.schedule else "none"
                raise OptionError(f"{_spelled(name)} belongs to --schedule {' or '.join(owners)}, got {got}")
        for name in set(names) & set(taken) - set(given):
            if taken[name].default is Parameter.empty:
                raise OptionError(f"{_spelled(name)} must be given with --schedule {self.schedule}")
        return given

    def _optimizer(self) -> Optimizer | None:
        """Return the optimizer that the options describe. Raise an error if an option belongs to another optimizer."""
        from lastiterate.optimizer import SGD, Adam

        kind = Adam if self.optimizer in ("adam", "adamw") else SGD
        names = [each.name for each in fields(kind)]
        values = {name: getattr(self, name) for name in _OF_OPTIMIZERS}
        given = {name: value for name, value in values.items() if value is not None and value is not False}
        for name in given:
            if name not in names:
                owner, got = ("adam or adamw", self.optimizer or "none") if kind is SGD else ("sgd", self.optimizer)
                raise OptionError(f"{_spelled(name)} belongs to --optimizer {owner}, got {got}")
        if kind is SGD and self.weight_decay and self.learning_rate is None:
            raise OptionError("--weight-decay needs --learning-rate: their product says how fast a step is forgotten")
        if self.schedule and not isinstance(self.learning_rate, float):
            got = "none" if self.learning_rate is None else f"{len(self.learning_rate)} numbers"
            raise OptionError(f"--learning-rate must be one number with --schedule, its largest, got {got}")
        if self.optimizer == "adamw":
            given = {"weight_decay": ADAMW_DECAY} | given | {"decoupled": True}
        return kind(**given) if given or self.optimizer else None


@dataclass(frozen=True)
class ConvexOptions:
    """Options for the guarantee on the last iterate of convex training. Without them there is no such guarantee."""

    convex: Convex = None
    diameter: Annotated[
        float | None, number_option("--diameter", "Losses are convex; parameters stay in a set so wide.")
    ] = None

    def curves(self, analysis: str | None = None) -> Curves:
        """Return the convex analysis with these numbers, by name; empty if no number is given."""
        import lastiterate

        if self.convex is None and self.diameter is None:
            if analysis == "convex":
                raise OptionError("--convex or --diameter must be given with --analysis convex")
            return {}
        return {"convex": partial(lastiterate.convex, contraction=self.convex, diameter=self.diameter)}

    def fields(self) -> Fields:
        """Return the given options as JSON."""
        given = {"contraction": self.convex, "diameter": self.diameter}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class SizeOptions:
    """Options for the length of a run and its batches: by steps and sample rate, or by dataset and batch size."""

    steps: Steps = None
    sample_rate: Annotated[
        PerStepOption | None,
        option(
            "--sample-rate",
            values.rates,
            "NUMBER",
            "Probability that an example is in a batch, as 0.01 or 1/3; or one per step.",
        ),
    ] = None
    dataset_size: Annotated[int | None, integer_option("--dataset-size", "Number of examples.")] = None
    batch_size: Annotated[int | None, integer_option("--batch-size", "(Expected) size of a batch.")] = None
    epochs: Annotated[float | None, number_option("--epochs", "Passes over the data; or say --steps.")] = None
    last_batch: LastBatchOption = None
    batches_per_epoch: Annotated[
        int | None,
        integer_option("--batches-per-epoch", "Of shuffled batches, if the last one is smaller (default: 1 / rate)."),
    ] = None

    def run(self, noise_multiplier: PerStepOption, method: MethodOptions) -> DPSGD:
        """Return the run that the options describe."""
        sizes: Fields = {"dataset_size": self.dataset_size, "batch_size": self.batch_size}
        if _given(sizes) and self.steps is not None and self.sample_rate is None and self.epochs is None:
            _require(sizes)
            batches, share = batches_of_epoch(**sizes, last_batch=self.last_batch, sampling=method.sampling)
            whole = round(batches) if method.sampling == "shuffled" else self.batches_per_epoch
            fields = {**method.fields(), "batches_per_epoch": whole}
            return method.scheduled(DPSGD(self.steps, share, noise_multiplier, **fields))
        by_rate: Fields = {"steps": self.steps, "sample_rate": self.sample_rate}
        by_batch: Fields = {**sizes, "epochs": self.epochs}
        if self.batches_per_epoch is not None and _given(by_batch):
            raise OptionError("--batches-per-epoch belongs to --sample-rate: with --batch-size say --last-batch")
        if self.last_batch is not None and not _given(by_batch):
            raise OptionError("--last-batch must be given with --dataset-size and --batch-size, got neither")
        if _given(by_rate) and _given(by_batch):
            raise OptionError(f"{_EITHER}, not by both: got {' and '.join(_given(by_rate) + _given(by_batch))}")
        if _given(by_batch):
            _require(by_batch)
            fields = method.fields()
            by_batch["last_batch"] = self.last_batch
            return method.scheduled(DPSGD.from_batches(**by_batch, noise_multiplier=noise_multiplier, **fields))
        if method.sampling == "full" and self.steps is not None and self.sample_rate is None:
            by_rate["sample_rate"] = 1.0
        _require(by_rate)
        by_rate["batches_per_epoch"] = self.batches_per_epoch
        return method.scheduled(DPSGD(**by_rate, noise_multiplier=noise_multiplier, **method.fields()))


ADAMW_DECAY = 0.01  # the default of torch.optim.AdamW
_OF_SGD = ("learning_rate", "momentum", "dampening", "nesterov", "weight_decay", "decoupled", "averaging")
_OF_OPTIMIZERS = (*_OF_SGD, "beta1", "beta2", "eps")
_EITHER = (
    "describe the run either by --steps and --sample-rate or by --dataset-size, --batch-size and --epochs (or --steps)"
)


def _given(fields: Mapping[str, object]) -> list[str]:
    return [_spelled(name) for name, value in fields.items() if value is not None]


def _spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _require(fields: Mapping[str, object]) -> None:
    given = _given(fields)
    if not given:
        raise OptionError(_EITHER)
    if len(given) < len(fields):
        missing = _given({name: True for name, value in fields.items() if value is None})
        raise OptionError(f"{' and '.join(missing)} must be given with {' and '.join(given)}")


# Options that are not on a command line: what is typed into a page is read as if it were, with the same complaints.

_Options = TypeVar("_Options", SizeOptions, MethodOptions, ConvexOptions)
_KINDS = (SizeOptions, MethodOptions, ConvexOptions)
_Value = TypeVar("_Value")


def run_of(texts: Mapping[str, str]) -> DPSGD:
    """Return the run that these options describe, texts by name. A ValueError has the command line's message."""
    known = {field.name for kind in _KINDS for field in fields(kind)} | {"noise_multiplier"}
    for name in texts:
        if name not in known:
            raise ValueError(f"there is no option {_spelled(name)}")
    if "noise_multiplier" not in texts:
        raise ValueError("--noise-multiplier must be given")
    return _told(lambda: _run(texts))


def curves_of(texts: Mapping[str, str]) -> Curves:
    """Return the analyses that need more than the run, from the texts of options by name."""
    return _told(lambda: _options(ConvexOptions, texts).curves())


def number_of(name: str, text: str) -> float:
    """Return the number in the text of an option."""
    return _told(lambda: values.number(_spelled(name))(text))


def integers_of(name: str, text: str) -> list[int]:
    """Return the whole numbers, separated by commas, in the text of an option."""
    return _told(lambda: values.integers(_spelled(name))(text))


def _run(texts: Mapping[str, str]) -> DPSGD:
    noise = values.per_step("--noise-multiplier")(texts["noise_multiplier"])
    return _options(SizeOptions, texts).run(noise, _options(MethodOptions, texts))


def _options(kind: type[_Options], texts: Mapping[str, str]) -> _Options:
    hints = get_type_hints(kind, include_extras=True)
    given: dict[str, Any] = {name: _read(hints[name], text) for name, text in texts.items() if name in hints}
    return kind(**given)


def _read(hint: Any, text: str) -> object:
    """Convert the text to a value, as typer does."""
    option = hint.__metadata__[0]
    if option.parser is not None:
        return option.parser(text)
    return text == "true" if hint.__origin__ is bool else text


def _told(read: Callable[[], _Value]) -> _Value:
    try:
        return read()
    except OptionError as error:
        raise ValueError(error.message) from None
