"""Features of runs, and which analyses, attacks and trainers support them.

The basic run has Poisson or full sampling, plain SGD with constant settings, one example per person, independent noise,
and releases only the last iterate. Everything else that a run may have is a *feature*. Analyses, attacks and trainers
declare the features that they support as a `Support`. `require_supported` compares a run with such a declaration. It
refuses features that the declaration does not list, so a new feature is unsupported until it is declared.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from lastiterate.common.errors import BadArgument
from lastiterate.common.validation import PerStep
from lastiterate.mechanism import SAMPLINGS, Sampling
from lastiterate.run import DPSGD, require_run

Found = tuple[str, str] | None  # texts of the allowed and the given value; None if the run does not have the feature


@dataclass(frozen=True)
class Feature:
    """A property of a run that not every analysis, attack or trainer supports.

    Attributes:
        field: the argument that the error names.
        label: name in the support matrix.
        of: returns the allowed value and the run's value for the error, or None if the run does not have the feature.
        advice: the reason for the error, or what to do instead. A declaration may replace it.
    """

    field: str
    label: str
    of: Callable[[DPSGD], Found]
    advice: str = ""


def reveals_every_step(run: DPSGD) -> bool:
    """Return whether the iterates reveal every noisy gradient: all iterates are released, and no step has weight 0.

    Momentum, decay and averaging do not change this. Adam does not change it either, if its divisor is taken as known.
    """
    if run.release_count != run.steps or (run.sampling == "shuffled" and float(run.sample_rate) < 1.0):
        return False
    schedule = run.weights if run.optimizer is None else run.optimizer.learning_rate
    return schedule is None or bool(np.all(np.asarray(schedule) != 0.0))


def _sampled(name: Sampling) -> Feature:
    return Feature("sampling", SAMPLINGS[name].words, lambda run: ("", repr(name)) if run.sampling == name else None)


def _per_step(name: str, label: str, of: Callable[[DPSGD], PerStep | None]) -> Feature:
    def found(run: DPSGD) -> Found:
        value = of(run)
        return None if value is None or not np.ndim(value) else ("one number", f"{np.size(value)}, one for each step")

    return Feature(name, label, found)


def _when(name: str, label: str, allowed: str, given: Callable[[DPSGD], object], advice: str = "") -> Feature:
    """Return the feature of runs for which ``given`` is neither None nor False, zero or empty."""

    def found(run: DPSGD) -> Found:
        value = given(run)
        return (allowed, str(value)) if value else None

    return Feature(name, label, found, advice)


def _several_releases(run: DPSGD) -> str:
    return f"{run.release_count} of them" if run.release_count > 1 else ""


def _coefficients(run: DPSGD) -> str:
    return "" if run.noise_filter is None else f"{len(run.noise_filter)} coefficients"


def _checkpoints(run: DPSGD, found: Found) -> Found:
    return found if run.release_count > 1 and not reveals_every_step(run) else None


def _checkpoints_of_memory(run: DPSGD) -> Found:
    what = run.optimizer.memory_words if run.optimizer else ""
    return _checkpoints(run, (f"None, or all {run.steps} steps, with {what}", str(run.release_count))) if what else None


def _checkpoints_inside_epochs(run: DPSGD) -> Found:
    if run.batches_per_epoch is None:
        return None
    inside = run.released_steps()[run.released_steps() % run.batches_per_epoch != 0][:1]
    where = f"at ends of epochs of {run.batches_per_epoch} steps with sampling {run.sampling!r}"
    return _checkpoints(run, (where, f"one after step {inside[0]}")) if inside.size and inside[0] < run.steps else None


def _groups_in_shuffled_batches(run: DPSGD) -> Found:
    if run.group_size == 1 or run.sampling != "shuffled" or run.release_count > 1:
        return None  # the steps between two releases are analysed as a run of their own
    if run.is_adaptive and run.noise_filter is not None:
        return None  # the weights are not known
    if run.steps % (run.batches_per_epoch or 1) == 0 and np.ptp(run.effective_weights()) == 0.0:
        return None
    return "1 with sampling 'shuffled', unless epochs are whole and steps have equal weights,", str(run.group_size)


FIXED, SHUFFLED, BALLS_IN_BINS = _sampled("fixed"), _sampled("shuffled"), _sampled("balls-in-bins")
TRUNCATED = _sampled("truncated-poisson")
_OF_SAMPLING = {TRUNCATED: "truncated-poisson", BALLS_IN_BINS: "balls-in-bins", FIXED: "fixed", SHUFFLED: "shuffled"}
SAMPLE_RATES = _per_step("sample_rate", "sample rates by step", lambda run: run.sample_rate)
NOISE_MULTIPLIERS = _per_step("noise_multiplier", "noise by step", lambda run: run.noise_multiplier)
LEARNING_RATES = _per_step(
    "learning_rate",
    "learning rate schedule",
    lambda run: None if run.optimizer is None else run.optimizer.learning_rate,
)
WEIGHTS = _per_step("weights", "weights by step", lambda run: run.weights)
NO_OPTIMIZER = _when(
    "optimizer",
    "no optimizer",
    "given",
    lambda run: run.optimizer is None and "None",
    "for example lastiterate.SGD(0.1)",
)
MOMENTUM = _when(
    "momentum", "momentum", "0", lambda run: run.optimizer and not run.is_adaptive and run.optimizer.momentum
)
WEIGHT_DECAY = _when("weight_decay", "weight decay", "0", lambda run: run.optimizer and run.optimizer.weight_decay)
AVERAGING = _when(
    "averaging",
    "averaging of iterates",
    "None",
    lambda run: run.optimizer and run.optimizer.averaging and repr(run.optimizer.averaging),
)
ADAM = _when("optimizer", "Adam", "a lastiterate.SGD", lambda run: run.is_adaptive and "Adam")
RELEASES = _when(
    "releases",
    "several releases",
    "None",
    _several_releases,
    "only the last iterate is analysed; lastiterate.composition covers all iterates",
)
CHECKPOINTS_OF_MEMORY = Feature(
    "releases",
    "checkpoints of momentum, averages, Adam",
    _checkpoints_of_memory,
    "the difference of two iterates depends on earlier steps; lastiterate.composition still holds",
)
CHECKPOINTS_INSIDE_EPOCHS = Feature(
    "releases",
    "checkpoints inside epochs of shuffled batches or bins",
    _checkpoints_inside_epochs,
    "blocks of steps that share an epoch are not independent",
)
GROUPS = _when("group_size", "several examples a person", "1", lambda run: run.group_size > 1 and run.group_size)
GROUPS_IN_FIXED_BATCHES = Feature(
    "group_size",
    "several examples in fixed or truncated batches",
    lambda run: (
        (f"1 with sampling {run.sampling!r}", str(run.group_size))
        if run.group_size > 1 and run.sampling in ("fixed", "truncated-poisson")
        else None
    ),
    "examples of one person compete for places in a batch, with an effect that depends on the size of the data set",
)
GROUPS_IN_SHUFFLED_BATCHES = Feature(
    "group_size",
    "several examples in uneven shuffled epochs",
    _groups_in_shuffled_batches,
    "one shuffle determines the batches of all examples of a person, so these batches are not independent",
)
REPLACEMENT = _when(
    "neighbours", "neighbours: replace", "'add-remove' or 'zero-out'", lambda run: run.is_mirrored and "'replace'"
)
CORRELATED_NOISE = _when(
    "noise_filter", "correlated noise", "None", _coefficients, "the noise of each step must be independent"
)
CORRELATED_RELEASES = _when(
    "releases",
    "several releases, correlated noise",
    "None with noise_filter",
    lambda run: run.noise_filter is not None and _several_releases(run),
    "the noise between two releases depends on earlier noise; lastiterate.composition still holds",
)
CORRELATED_ADAM = _when(
    "noise_filter",
    "Adam, correlated noise",
    "None with Adam",
    lambda run: run.is_adaptive and _coefficients(run),
    "the effect of correlated noise on Adam's second moment is not known; lastiterate.composition still holds",
)
SEPARATION = _when(
    "min_separation", "minimum separation", "1", lambda run: run.min_separation > 1 and run.min_separation
)


def _in_bins(feature: Feature, label: str) -> Feature:
    """Return the feature of runs that have another feature and balls in bins."""

    def found(run: DPSGD) -> Found:
        value = feature.of(run) if run.sampling == "balls-in-bins" else None
        return value and (f"{value[0]} with sampling 'balls-in-bins'", value[1])

    advice = "the loss of an epoch is not known; lastiterate.no_amplification still holds"
    return Feature(feature.field, label, found, advice)


NOISE_IN_BINS = _in_bins(NOISE_MULTIPLIERS, "noise by step, balls in bins")
GROUPS_IN_BINS = _in_bins(GROUPS, "several examples a person, balls in bins")
REPLACEMENT_IN_BINS = _in_bins(REPLACEMENT, "neighbours: replace, balls in bins")
IN_BINS = frozenset({NOISE_IN_BINS, GROUPS_IN_BINS, REPLACEMENT_IN_BINS})

SCHEDULES = frozenset({SAMPLE_RATES, NOISE_MULTIPLIERS, LEARNING_RATES, WEIGHTS})
OPTIMIZERS = frozenset({NO_OPTIMIZER, MOMENTUM, WEIGHT_DECAY, AVERAGING, ADAM})
BASIC = frozenset({FIXED, SHUFFLED}) | SCHEDULES | OPTIMIZERS
LINEAR = (
    BASIC | IN_BINS | {TRUNCATED, BALLS_IN_BINS, GROUPS, REPLACEMENT, CORRELATED_NOISE, SEPARATION}
)  # supported by linear scores of one iterate
COMBINATIONS = frozenset(
    {
        *(CHECKPOINTS_OF_MEMORY, CHECKPOINTS_INSIDE_EPOCHS, CORRELATED_RELEASES, CORRELATED_ADAM),
        *(GROUPS_IN_FIXED_BATCHES, GROUPS_IN_SHUFFLED_BATCHES),
    }
)
TRAINED = (LINEAR | {RELEASES} | COMBINATIONS) - {NO_OPTIMIZER, SEPARATION}
FEATURES = (
    *(TRUNCATED, BALLS_IN_BINS, FIXED, SHUFFLED, SAMPLE_RATES, NOISE_MULTIPLIERS, LEARNING_RATES, WEIGHTS),
    *(NO_OPTIMIZER, ADAM, MOMENTUM, WEIGHT_DECAY, AVERAGING),
    *(RELEASES, CORRELATED_RELEASES, CHECKPOINTS_OF_MEMORY, CHECKPOINTS_INSIDE_EPOCHS),
    *(CORRELATED_NOISE, CORRELATED_ADAM, SEPARATION),
    *(GROUPS, GROUPS_IN_FIXED_BATCHES, GROUPS_IN_SHUFFLED_BATCHES, REPLACEMENT),
    *(NOISE_IN_BINS, GROUPS_IN_BINS, REPLACEMENT_IN_BINS),
)


@dataclass(frozen=True)
class Support:
    """A declaration of the features that an analysis, attack or trainer supports.

    Attributes:
        who: name of the analysis, attack or trainer in errors.
        features: the supported features.
        why: reasons why other features are not supported. They replace the features' own advice.
    """

    who: str
    features: frozenset[Feature]
    why: Mapping[Feature, str] = field(default_factory=lambda: MappingProxyType({}))

    def refusal(self, run: DPSGD) -> BadArgument | None:
        """Return the error for the first unsupported feature of a run, or None if all features are supported."""
        for feature in FEATURES:
            if feature not in self.features and (found := feature.of(run)) is not None:
                allowed, got = found
                if feature in _OF_SAMPLING:
                    # Truncated Poisson sampling is a kind of Poisson sampling, and is not suggested.
                    names = {each: name for each, name in _OF_SAMPLING.items() if each is not TRUNCATED}
                    allowed = " or ".join(repr(name) for each, name in names.items() if each in self.features)
                    allowed = f"'poisson' or 'full'{f' or {allowed}' if allowed else ''}"
                reason = self.why.get(feature, feature.advice)
                sentence = f"must be {allowed} for {self.who}, got {got}{f': {reason}' if reason else ''}"
                return BadArgument(feature.field, sentence)
        return None


def require_supported(run: object, support: Support) -> DPSGD:
    """Return the run. Raise if it has a feature that the declaration does not list."""
    checked = require_run(run)
    if refusal := support.refusal(checked):
        raise refusal
    return checked


TRAINER = Support("the trainer", TRAINED)
