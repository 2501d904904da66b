"""Command-line options: parsers, groups of options that commands share, and the run that the options describe.

The parameter ``epochs: Annotated[float, "Passes over the data."]`` of a command becomes the option ``--epochs``. The
type chooses the parser, unless the annotation is an ``Option`` with another parser. The objects that use the values
check their ranges.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial, wraps
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import typer

from lastiterate.cli.app import OptionError
from lastiterate.common.validation import written_integer, written_number
from lastiterate.labels import ANALYSES
from lastiterate.mechanism import SAMPLINGS, LastBatch, Neighbours, Sampling, batches_of_epoch
from lastiterate.run import DPSGD
from lastiterate.schedules import SCHEDULES

if TYPE_CHECKING:
    from lastiterate.common.types import Fields
    from lastiterate.compare_analyses import Curves
    from lastiterate.optimizer import Optimizer
    from lastiterate.privacy.curve import Target

# Parsers: functions of the option's name (for error messages) and text. Typer does not parse defaults.


def parse_integer(option: str, text: str) -> int:
    """Parse a whole number. Refuse 1.5, 1e5 and 1_000, which may be typing errors."""
    whole = written_integer(str(text))
    if whole is None:
        raise OptionError(f"{option} must be an integer in plain digits, got {text!a}")
    return whole


def parse_number(option: str, text: str, allowed: str = "a finite number in plain digits") -> float:
    """Parse a number. The error message says that the value must be ``allowed``."""
    value = written_number(str(text))
    if value is None:
        raise OptionError(f"{option} must be {allowed}, got {text!a}")
    return value


def parse_per_step(option: str, text: str) -> float | list[float]:
    """Parse one number for all steps, or one per step, separated by commas."""
    return [parse_number(option, part) for part in text.split(",")] if "," in text else parse_number(option, text)


def parse_rates(option: str, text: str) -> float | list[float]:
    """Parse one sample rate, or one per step, separated by commas. A rate may be a fraction, such as 1/3."""

    def one(part: str) -> float:
        if "/" not in part:
            return parse_number(option, part)
        above, below = (written_integer(each) for each in part.split("/", 1))
        if above is None or not below:
            raise OptionError(f"{option} must be a finite number in plain digits or a fraction as 1/3, got {part!a}")
        return above / below

    return [one(part) for part in str(text).split(",")] if "," in str(text) else one(str(text))


def parse_coefficients(option: str, text: str) -> list[float]:
    """Parse numbers separated by commas, or the name of a text file with numbers."""
    if written_number(text.partition(",")[0]) is not None:
        return [parse_number(option, part) for part in text.split(",")]
    from lastiterate.data.files import PARSED, BadFile, decoding, find, read_all

    try:
        path = find(text, "file")
    except (OSError, ValueError):
        raise OptionError(f"{option} must be numbers separated by commas, or a file of numbers, got {text!a}") from None
    try:
        with decoding(path, "a text file of numbers") as file:
            words = read_all(file, path, PARSED).decode().replace(",", " ").split()
    except BadFile as error:
        raise OptionError(f"{option} cannot be read: {error}") from None
    if not words:
        raise OptionError(f"{option} must be a file of numbers, got one without any: {text!a}")
    return [parse_number(option, word) for word in words]


def parse_integers(option: str, text: str) -> list[int]:
    """Parse whole numbers separated by commas."""
    return [parse_integer(option, part) for part in text.split(",")]


def parse_releases(option: str, text: str) -> int | list[int]:
    """Parse one whole number, or several separated by commas."""
    return parse_integers(option, text) if "," in text else parse_integer(option, text)


def parse_average(option: str, text: str) -> str | float:
    """Parse the word uniform, or the decay of an exponential moving average."""
    return text if text == "uniform" else parse_number(option, text, "uniform or a decay in (0, 1)")


def parse_choice(option: str, text: str, words: Sequence[str]) -> str:
    """Parse one of a few words."""
    if text not in words:
        raise OptionError(f"{option} must be one of {', '.join(words)}, got {text!a}")
    return text


# Options: descriptions in the annotations of parameters, and their conversion for typer.

Parser: TypeAlias = Callable[[str, str], Any]
PerStep: TypeAlias = float | list[float]
_USUAL: dict[tuple[object, ...], tuple[str, Parser]] = {
    (int,): ("INTEGER", parse_integer),
    (float,): ("NUMBER", parse_number),
    (float, list[float]): ("NUMBER", parse_per_step),
}


@dataclass(frozen=True)
class Option:
    """The help of an option, the name of its value in the help, and its parser. The default parser is typer's."""

    help: str
    metavar: str | None = None
    parse: Parser | None = None


def choice(words: Sequence[str], help_: str) -> Option:
    """An option that takes one of a few words."""
    return Option(help_, "|".join(words), partial(parse_choice, words=words))


def option_of(hint: Any) -> Option | None:
    """Return the option that an annotation describes, or None if the parameter is a positional argument."""
    about = hint.__metadata__[0]
    if not isinstance(about, str):
        return about if isinstance(about, Option) else None
    kinds = tuple(each for each in get_args(hint.__origin__) or (hint.__origin__,) if each is not NoneType)
    if get_origin(hint.__origin__) is Literal:
        return choice(kinds, about)
    if kinds and get_origin(kinds[0]) is Literal:
        return choice(get_args(kinds[0]), about)
    return Option(about, *_USUAL.get(kinds, ()))


def unfold(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with options for typer. Each field of a parameter that is a dataclass becomes an option."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    shown: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            types = get_type_hints(groups[name], include_extras=True)
            shown += [_parameter(field.name, types[field.name], field.default) for field in fields(groups[name])]
        else:
            shown.append(_parameter(name, hints[name], parameter.default))

    @wraps(command)
    def unfolded(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given)

    unfolded.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    unfolded.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return unfolded


def _parameter(name: str, hint: Any, default: object) -> inspect.Parameter:
    """Return a parameter for typer. Options with a parser get type Any, since typer supports few types."""
    if (found := option_of(hint)) is not None:
        option, parse = spelled(name), found.parse
        parser = None if parse is None else lambda text: parse(option, text)
        about = typer.Option(option, parser=parser, metavar=found.metavar, help=found.help, show_default=False)
        hint = Annotated[Any if parse else hint.__origin__, about]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)


def spelled(name: str) -> str:
    """Return the name of an option as users write it."""
    return f"--{name.strip('_').replace('_', '-')}"


# Options that several commands have.

_NOISE = "Standard deviation of the noise over the clipping norm; or one per step: 1,2,3."
NoiseMultiplier = Annotated[PerStep, _NOISE]
OptionalNoise = Annotated[PerStep | None, _NOISE]
LastBatchOption = Annotated[
    LastBatch | None, "What the loader does with a smaller last batch (default: there is none)."
]
Delta = Annotated[float, "Delta of (epsilon, delta)-DP, in (0, 1)."]
Epsilon = Annotated[float, "Epsilon of (epsilon, delta)-DP."]
Convex = Annotated[
    float | None, "For convex losses: the factor by which a step contracts. Adds a guarantee for the last iterate."
]
Analysis = Annotated[
    str | None,
    choice(
        [each.option for each in ANALYSES.values() if each.name != "max_over_steps"],
        "The analysis that must reach the target (default: the guarantee, and then the heuristic).",
    ),
]
Json = Annotated[bool, "Print one JSON object instead of a table."]
Plot = Annotated[Path | None, Option("Also draw a picture: FILE.png, .svg, .pdf or (interactive) .html.", "FILE")]
Seed = Annotated[int, "Seed of all randomness (default: 0)."]


@dataclass(frozen=True)
class MethodOptions:
    """Options for sampling, optimizer, releases, neighbours and correlated noise of a run."""

    sampling: Annotated[Sampling, "How batches are drawn (default: poisson)."] = "poisson"
    learning_rate: Annotated[PerStep | None, "One number, or one per step."] = None
    schedule: Annotated[
        str | None, choice(tuple(SCHEDULES), "How the learning rate changes (default: it is constant).")
    ] = None
    final_rate: Annotated[float | None, "Last rate of linear and cosine schedules (default: 0)."] = None
    warmup_steps: Annotated[int | None, "Steps in which warmup-cosine rises."] = None
    first_rate: Annotated[float | None, "First rate of warmup-cosine (default: 0)."] = None
    drop_every: Annotated[int | None, "Steps between drops of schedule step."] = None
    drop_factor: Annotated[float | None, "Factor of each drop of schedule step (default: 0.1)."] = None
    momentum: Annotated[float | None, "Heavy-ball factor, in [0, 1)."] = None
    dampening: Annotated[float | None, "Dampening of the momentum, as in PyTorch."] = None
    nesterov: Annotated[bool, "Nesterov's momentum."] = False
    weight_decay: Annotated[float | None, "L2 factor; needs --learning-rate."] = None
    decoupled: Annotated[bool, "Weight decay apart from the gradient, as in SGDW."] = False
    averaging: Annotated[
        str | None, Option("Release the mean of the iterates, or their EMA.", "uniform|DECAY", parse_average)
    ] = None
    optimizer: Annotated[
        Literal["sgd", "adam", "adamw"] | None,
        "Optimizer (default: sgd). With Adam, predictions are approximations of a heuristic.",
    ] = None
    beta1: Annotated[float | None, "Adam's decay of the mean gradient (default: 0.9)."] = None
    beta2: Annotated[float | None, "Adam's decay of the mean squared gradient (default: 0.999)."] = None
    eps: Annotated[float | None, "Adam's eps, on the scale of sums of gradients (default: 1e-8)."] = None
    weights: Annotated[
        PerStep | None, Option("Weight of each step, instead of an optimizer.", "W1,W2,...", parse_per_step)
    ] = None
    releases: Annotated[
        int | list[int] | None,
        Option("Release K iterates, or the iterates after these steps.", "K|S1,S2,...", parse_releases),
    ] = None
    group_size: Annotated[int | None, "Largest number of examples of one person (default: 1)."] = None
    neighbours: Annotated[
        Neighbours | None,
        "How neighbouring data sets differ (default: add-remove; zero-out with shuffled, fixed or truncated batches).",
    ] = None
    noise_filter: Annotated[
        list[float] | None,
        Option(
            "Correlated noise: the factors of a step's own noise and of the noise of earlier steps.",
            "C0,C1,...|FILE",
            parse_coefficients,
        ),
    ] = None
    min_separation: Annotated[int, "Fewest steps between two batches with the same example (default: 1)."] = 1
    max_batch_size: Annotated[int | None, "Largest batch of truncated Poisson sampling; needs --dataset-size."] = None

    def fields(self) -> Fields:
        """Return the fields of a ``DPSGD`` that these options set."""
        names = ("sampling", "weights", "releases", "neighbours", "noise_filter", "min_separation", "max_batch_size")
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
        names = ("final_rate", "warmup_steps", "first_rate", "drop_every", "drop_factor")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        taken = dict(inspect.signature(SCHEDULES[self.schedule]).parameters) if self.schedule else {}
        for name in given:
            if name not in taken:
                owners = [each for each, make in SCHEDULES.items() if name in inspect.signature(make).parameters]
                got = f"--schedule {self.schedule}" if self.schedule else "none"
                raise OptionError(f"{spelled(name)} belongs to --schedule {' or '.join(owners)}, got {got}")
        for name in set(names) & set(taken) - set(given):
            if taken[name].default is inspect.Parameter.empty:
                raise OptionError(f"{spelled(name)} must be given with --schedule {self.schedule}")
        return given

    def _optimizer(self) -> Optimizer | None:
        from lastiterate.optimizer import SGD, Adam

        kind = Adam if self.optimizer in ("adam", "adamw") else SGD
        names = [each.name for each in fields(kind)]
        values = {name: getattr(self, name) for name in _OF_OPTIMIZERS}
        given = {name: value for name, value in values.items() if value is not None and value is not False}
        for name in given:
            if name not in names:
                owner = "adam or adamw" if kind is SGD else "sgd"
                got = self.optimizer or "none"
                raise OptionError(f"{spelled(name)} belongs to --optimizer {owner}, got {got}")
        if kind is SGD and self.weight_decay and self.learning_rate is None:
            raise OptionError("--weight-decay needs --learning-rate: their product says how fast a step is forgotten")
        if self.schedule and not isinstance(self.learning_rate, float):
            numbers = "none" if self.learning_rate is None else f"{len(self.learning_rate)} numbers"
            raise OptionError(f"--learning-rate must be one number with --schedule, the largest rate, got {numbers}")
        if self.optimizer == "adamw":
            given = {"weight_decay": ADAMW_DECAY} | given | {"decoupled": True}
        return kind(**given) if given or self.optimizer else None


@dataclass(frozen=True)
class ConvexOptions:
    """Options for the guarantee on the last iterate of convex training."""

    convex: Convex = None
    diameter: Annotated[float | None, "For convex losses: the diameter of the set that parameters stay in."] = None

    def curves(self, analysis: str | None = None) -> Curves:
        """Return the convex analysis with these numbers, by name, or an empty dictionary if no number is given."""
        import lastiterate

        if self.convex is None and self.diameter is None:
            if analysis == "convex":
                raise OptionError("--convex or --diameter must be given with --analysis convex")
            return {}
        return {"convex": partial(lastiterate.convex, contraction=self.convex, diameter=self.diameter)}

    def fields(self) -> Fields:
        given = {"contraction": self.convex, "diameter": self.diameter}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class TargetOptions:
    """Options for what the noise must reach: exactly one kind of target."""

    epsilon: Annotated[float | None, "Target: epsilon of (epsilon, delta)-DP; needs --delta."] = None
    delta: Annotated[float | None, "Delta of (epsilon, delta)-DP, in (0, 1)."] = None
    mu: Annotated[float | None, "Target: mu of Gaussian DP, where both error rates are at least 1e-10."] = None
    advantage: Annotated[float | None, "Target: the largest true positive rate minus false positive rate."] = None
    tpr: Annotated[float | None, "Target: the largest true positive rate of an attack; needs --fpr."] = None
    fpr: Annotated[float | None, "False positive rate of this attack."] = None

    def target(self) -> Target:
        """Return the target. Raise an error unless the options are exactly one kind of target."""
        from lastiterate.privacy.curve import TARGETS, Target

        values = {name: getattr(self, name) for name in ("epsilon", "delta", "mu", "advantage", "tpr", "fpr")}
        given = [name for name, value in values.items() if value is not None]
        if tuple(given) not in TARGETS:
            got = " and ".join(map(spelled, given)) or "none of them"
            kinds = ", or ".join(" with ".join(map(spelled, kind)) for kind in TARGETS)
            raise OptionError(f"give exactly one target: {kinds}; got {got}")
        return Target(**values)


@dataclass(frozen=True)
class SizeOptions:
    """Options for the length of a run and its batches: by steps and sample rate, or by dataset and batch size."""

    steps: Annotated[int | None, "Number of updates."] = None
    sample_rate: Annotated[
        PerStep | None,
        Option("Probability that an example is in a batch, as 0.01 or 1/3; or one per step.", "NUMBER", parse_rates),
    ] = None
    dataset_size: Annotated[int | None, "Number of examples."] = None
    batch_size: Annotated[int | None, "(Expected) size of a batch."] = None
    epochs: Annotated[float | None, "Passes over the data; or give --steps."] = None
    last_batch: LastBatchOption = None
    batches_per_epoch: Annotated[
        int | None, "Number of batches per epoch: 1 / sample rate, rounded up if the last shuffled batch is smaller."
    ] = None

    def run(self, noise_multiplier: PerStep, method: MethodOptions) -> DPSGD:
        sizes: Fields = {"dataset_size": self.dataset_size, "batch_size": self.batch_size}
        known: Fields = {"dataset_size": self.dataset_size} if method.sampling == "truncated-poisson" else {}
        if _given(sizes) and self.steps is not None and self.sample_rate is None and self.epochs is None:
            _require(sizes)
            batches, share = batches_of_epoch(**sizes, last_batch=self.last_batch, sampling=method.sampling)
            once = SAMPLINGS[method.sampling].once_per_epoch
            whole = round(batches) if once else self.batches_per_epoch
            fields = {**method.fields(), **known, "batches_per_epoch": whole}
            return method.scheduled(DPSGD(self.steps, share, noise_multiplier, **fields))
        by_rate: Fields = {"steps": self.steps, "sample_rate": self.sample_rate}
        by_batch: Fields = {**sizes, "epochs": self.epochs}
        if known and self.sample_rate is not None:
            del by_batch["dataset_size"]
        if self.batches_per_epoch is not None and _given(by_batch):
            raise OptionError("--batches-per-epoch belongs to --sample-rate: with --batch-size give --last-batch")
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
        fields = {**method.fields(), **known}
        return method.scheduled(DPSGD(**by_rate, noise_multiplier=noise_multiplier, **fields))


ADAMW_DECAY = 0.01  # the default of torch.optim.AdamW
_OF_SGD = ("learning_rate", "momentum", "dampening", "nesterov", "weight_decay", "decoupled", "averaging")
_OF_OPTIMIZERS = (*_OF_SGD, "beta1", "beta2", "eps")
_EITHER = (
    "describe the run either by --steps and --sample-rate or by --dataset-size, --batch-size and --epochs (or --steps)"
)


def _given(fields: Mapping[str, object]) -> list[str]:
    return [spelled(name) for name, value in fields.items() if value is not None]


def _require(fields: Mapping[str, object]) -> None:
    given = _given(fields)
    if not given:
        raise OptionError(_EITHER)
    if len(given) < len(fields):
        missing = [spelled(name) for name, value in fields.items() if value is None]
        raise OptionError(f"{' and '.join(missing)} must be given with {' and '.join(given)}")
