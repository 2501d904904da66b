"""A DP-SGD training run: the one object that is analysed and trained.

With linear losses a run releases ``sum_t w_t A_t + N(0, sum_t w_t^2 sigma_t^2)``, where A_t is 1 if the canary is in
batch t and 0 otherwise. The optimizer (or ``weights``) gives w_t, and ``sampling`` gives the law of A_t.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from lastiterate.common.system import late
from lastiterate.common.types import IntArray
from lastiterate.common.validation import (
    LEAST_NOISE,
    MAX_STEPS,
    MOST_NOISE,
    PerStep,
    PerStepGiven,
    call_of,
    cut,
    instance,
    integer,
    key,
    noise_multipliers,
    number,
    numbers,
    one_of,
    per_step,
    same,
    shape,
    told,
)
from lastiterate.optimizer import Adam, Optimizer, is_adam, require_optimizer

Sampling = Literal["poisson", "fixed", "shuffled", "full"]
Neighbours = Literal["add-remove", "zero-out", "replace"]
LastBatch = Literal["keep", "drop"]
MOST_OF_A_GROUP = 10**6
MOST_RELEASES = 10**6  # unless all iterates are released
MOST_COEFFICIENTS = 10**6
USUAL_NEIGHBOURS: dict[Sampling, Neighbours] = {  # the relation for which the analyses of each sampling hold
    "poisson": "add-remove",
    "full": "add-remove",
    "fixed": "zero-out",  # adding or removing one example moves others between batches
    "shuffled": "zero-out",
}
LINEAR = ("group_size", "neighbours", "noise_filter", "min_separation")  # run fields that linear scores support
TRAINED = (
    "releases",
    "group_size",
    "neighbours",
    "noise_filter",
)  # run fields that trainers support; their batches have no minimum separation
_ONLY = "analyses, estimates and most audits of many models"


@dataclass(frozen=True, eq=False)
class DPSGD:
    """A DP-SGD run. Immutable and validated; per-step quantities are one number or an array of ``steps`` numbers.

    Args:
        steps: number of updates T.
        sample_rate: probability q that an example is in a batch.
        noise_multiplier: standard deviation sigma of the noise, in units of ``clip_norm``.
        sampling: ``"poisson"`` (each example independently), ``"fixed"`` (batches of fixed size, drawn without
            replacement at each step), ``"shuffled"`` (each example once an epoch) or ``"full"`` (the whole data set).
        clip_norm: norm to which per-example gradients are clipped. The analyses depend on it only through Adam's
            ``eps`` and L2 decay.
        optimizer: the map from gradients to parameters. It determines the weights. None: all steps have equal weight.
        weights: weight of each step in the released model, instead of an optimizer. Only ratios matter.
        releases: the released iterates. None: the last one. A number: this many, equally spaced. A sequence: the
            iterates after these steps. The last iterate is always released.
        group_size: number of examples of one person, which are protected together. Each example is sampled and clipped
            by itself.
        neighbours: the neighbouring relation: ``"add-remove"`` (with and without an example), ``"zero-out"`` (an
            example, or one without gradient in its place) or ``"replace"`` (one example or another). None: add-remove
            with sampling ``"poisson"`` or ``"full"``; zero-out with ``"fixed"`` or ``"shuffled"``, where adding or
            removing an example also moves others between batches.
        noise_filter: coefficients (c_0, c_1, ...) of correlated noise, as in DP-FTRL. The noise of step t is the sum of
            c_j z_(t-j), where z_s is drawn with the noise multiplier of step s, and z_s = 0 before the first step.
            These are the coefficients of jax-privacy's noising matrix C^-1. None: independent noise.
        min_separation: with a noise filter, the minimum number of steps between two batches with the same example. With
            Poisson sampling and ``min_separation`` > 1, examples are split into ``min_separation`` groups that take
            turns.
        batches_per_epoch: number of batches in an epoch of shuffled batches. None: 1 / ``sample_rate``, which must be
            whole. If the last batch of an epoch is smaller, the number is 1 / ``sample_rate`` rounded up and must be
            given.
    """

    steps: int
    sample_rate: PerStep
    noise_multiplier: PerStep
    sampling: Sampling = "poisson"
    clip_norm: float = 1.0
    optimizer: Optimizer | None = None
    weights: PerStep | None = None
    releases: int | tuple[int, ...] | None = None
    group_size: int = 1
    neighbours: Neighbours = None  # type: ignore[assignment]  # set from the sampling in __post_init__
    noise_filter: tuple[float, ...] | None = None
    min_separation: int = 1
    batches_per_epoch: int | None = None

    if TYPE_CHECKING:  # accepts lists; the fields hold arrays

        def __init__(
            self,
            steps: int,
            sample_rate: PerStepGiven,
            noise_multiplier: PerStepGiven,
            sampling: Sampling = "poisson",
            clip_norm: float = 1.0,
            optimizer: Optimizer | None = None,
            weights: PerStepGiven | None = None,
            releases: int | Sequence[int] | None = None,
            group_size: int = 1,
            neighbours: Neighbours | None = None,
            noise_filter: Sequence[float] | NDArray[np.floating] | None = None,
            min_separation: int = 1,
            batches_per_epoch: int | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        def fix(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        fix("steps", integer("steps", self.steps))
        fix("sample_rate", per_step("sample_rate", self.sample_rate, self.steps, 0.0, 1.0))
        fix("noise_multiplier", noise_multipliers(self.noise_multiplier, self.steps))
        fix("clip_norm", number("clip_norm", self.clip_norm, 0.0, open_low=True))
        fix("releases", _releases(self.releases, self.steps))
        fix("group_size", integer("group_size", self.group_size, 1, MOST_OF_A_GROUP))
        fix("noise_filter", _noise_filter(self.noise_filter))
        fix("min_separation", integer("min_separation", self.min_separation))
        self._check_sampling()
        fix("neighbours", _neighbours(self.neighbours, self.sampling))
        fix("batches_per_epoch", _batches_per_epoch(self))
        if self.optimizer is not None:
            if self.weights is not None:
                raise ValueError("optimizer and weights were both given, but the first determines the second: give one")
            require_optimizer(self.optimizer)
            per_step("learning_rate", self.optimizer.learning_rate, self.steps)
        if self.weights is not None:
            fix("weights", per_step("weights", self.weights, self.steps))
            if not np.any(self.weights):
                raise ValueError("weights must not all be zero: such a run releases nothing")

    def _check_sampling(self) -> None:
        one_of("sampling", self.sampling, get_args(Sampling))
        if self.sampling == "full" and np.any(np.asarray(self.sample_rate) != 1.0):
            raise ValueError(f"sample_rate must be 1 with sampling 'full', got {self.sample_rate}")
        if self.sampling == "shuffled" and (np.ndim(self.sample_rate) or not self.sample_rate):
            raise ValueError(
                f"sample_rate must be one number in (0, 1] with sampling 'shuffled', got {self.sample_rate}"
            )
        if self.min_separation > 1 and (self.noise_filter is None or self.sampling == "full"):
            where = "without noise_filter" if self.noise_filter is None else "with sampling 'full'"
            raise ValueError(f"min_separation must be 1 {where}, got {self.min_separation}")

    @classmethod
    def from_batches(
        cls,
        dataset_size: int,
        batch_size: float,
        epochs: float,
        noise_multiplier: PerStepGiven,
        *,
        sampling: Sampling = "poisson",
        clip_norm: float = 1.0,
        optimizer: Optimizer | None = None,
        weights: PerStepGiven | None = None,
        releases: int | Sequence[int] | None = None,
        group_size: int = 1,
        neighbours: Neighbours | None = None,
        noise_filter: Sequence[float] | NDArray[np.floating] | None = None,
        min_separation: int = 1,
        last_batch: LastBatch | None = None,
    ) -> DPSGD:
        """Return a run of ``epochs`` passes, batches of expected size ``batch_size``: steps = round(epochs n / batch).

        ``last_batch`` says what the loader does with the smaller batch at the end of an epoch. An epoch has n / batch
        steps, rounded up with ``"keep"`` and rounded down with ``"drop"``. With shuffled batches ``last_batch`` must be
        given if ``batch_size`` does not divide ``dataset_size``.
        """
        batches, share = batches_of_epoch(dataset_size, batch_size, last_batch, sampling)
        passes = number("epochs", epochs, 0.0, open_low=True)
        steps = passes * int(dataset_size) / float(batch_size) if last_batch is None else passes * batches
        number("epochs * dataset_size / batch_size", steps, 0.0, float(MAX_STEPS))
        return cls(
            max(1, round(steps)),
            share,
            noise_multiplier,
            sampling,
            clip_norm,
            optimizer,
            weights,
            releases,
            group_size,
            neighbours,
            noise_filter,
            min_separation,
            round(batches) if sampling == "shuffled" else None,
        )

    @classmethod
    def from_opacus(
        cls,
        privacy_engine: object,
        optimizer: object = None,
        loader: object = None,
        scheduler: object = None,
        sampling: Sampling | None = None,
    ) -> DPSGD:
        """Return the run that an Opacus ``PrivacyEngine`` has recorded, with any accountant.

        Args:
            privacy_engine: the engine, after training.
            optimizer: the optimizer that ``make_private`` returned for a ``torch.optim.SGD``, ``Adam`` or ``AdamW``,
                with the hyperparameters and the clipping norm of the whole training. They are converted to those for
                the sum of gradients. If sample rates differ, the run of SGD has ``weights`` instead. A
                ``lastiterate.SGD`` or ``Adam`` is used unchanged. None: all steps have equal weight.
            loader: the loader that ``make_private`` returned. It tells how batches are drawn. Samplers that neither use
                Poisson sampling nor shuffle all of the data are refused. A shuffling loader must have been read to its
                end in every epoch.
            scheduler: the ``torch.optim.lr_scheduler`` that changed the optimizer's learning rate, stepped once after
                each update or once after each epoch. Its number of steps tells which. A copy of the scheduler is run
                again to get the rate of each step. Schedulers that depend on losses or cycle the momentum are refused:
                pass a ``lastiterate.SGD`` or ``Adam`` with one learning rate a step instead. Opacus' noise schedulers
                need not be passed.
            sampling: how batches are drawn, if no loader is given.
        """
        read = late("integrations.opacus_run:run_from_opacus")
        run: DPSGD = read(privacy_engine, optimizer, loader, scheduler, sampling)
        return run

    @classmethod
    def from_jax_privacy(
        cls,
        config: object,
        optimizer: Optimizer | None = None,
        steps: int | None = None,
        noise_filter: Sequence[float] | NDArray[np.floating] | None = None,
    ) -> DPSGD:
        """Return the run that a jax-privacy configuration describes.

        Args:
            config: a ``BandMFExecutionPlanConfig``, whose noise is correlated if it has several bands, or the
                ``DpParams`` of an accountant. Sampling that is neither Poisson nor of fixed batch size (such as
                truncated batches) is refused, and so is noise that is not the same filter at every step.
            optimizer: the map from gradients to parameters, which no configuration contains. Its learning rate is that
                of the sum of gradients clipped to ``clip_norm``. None: all steps have equal weight.
            steps: number of updates, for ``DpParams``, which does not contain it.
            noise_filter: the coefficients of the noising matrix, for ``DpParams`` with a ``cycle_length``.
        """
        read = late("integrations.jax_privacy_run:run_from_jax_privacy")
        run: DPSGD = read(config, optimizer, steps, noise_filter)
        return run

    @property
    def epochs(self) -> float:
        """Expected number of times each example is used."""
        return float(np.sum(self.sample_rate)) * (1 if np.ndim(self.sample_rate) else self.steps)

    @property
    def amplifies(self) -> bool:
        """True if amplification by sampling holds in the standard analysis: Poisson sampling or full batches.

        Amplification by sampling has not been shown to carry over to shuffled batches or to batches of fixed size.
        """
        return self.sampling in ("poisson", "full")

    def effective_weights(self) -> PerStep:
        """Return the weight of each step in the released model; one number if all weights are equal."""
        if self.weights is not None:
            return self.weights
        if is_adam(self.optimizer):
            return self.optimizer.weights(self.steps, noise_root(self))
        return 1.0 if self.optimizer is None else self.optimizer.weights(self.steps)

    def replace(self, **changes: Any) -> DPSGD:
        """Return a copy with some fields changed.

        Neighbours that are the default of the sampling become the default of the new sampling.
        """
        kept = {f.name: getattr(self, f.name) for f in fields(self)}
        if changes.get("sampling", self.sampling) != self.sampling:
            kept["batches_per_epoch"] = None
            if self.neighbours == USUAL_NEIGHBOURS[self.sampling]:
                kept["neighbours"] = None
        rate = changes.get("sample_rate", self.sample_rate)
        if self.sampling == "shuffled" and not np.array_equal(rate, self.sample_rate):
            kept["batches_per_epoch"] = None
        return DPSGD(**(kept | changes))

    @property
    def release_count(self) -> int:
        """Number of released iterates."""
        if isinstance(self.releases, tuple):
            return len(self.releases)
        return self.releases or 1

    def released_steps(self) -> IntArray:
        """Return the steps after which an iterate is released; K equally spaced releases are after round(k T / K)."""
        if isinstance(self.releases, tuple):
            return np.array(self.releases, dtype=np.int64)
        count = self.release_count
        if count == self.steps:
            return np.arange(1, count + 1)
        return np.rint(np.arange(1, count + 1) * self.steps / count).astype(np.int64)

    def prefix(self, steps: int) -> DPSGD:
        """Return the run stopped after ``steps`` steps, with the weights that its optimizer then gives.

        The shorter run releases the iterates that were released before ``steps``, and its own last iterate.
        """
        stop = integer("steps", integer("steps", steps), 1, self.steps)
        return self.stretch(0, stop, self.releases if stop == self.steps else self._released_until(stop))

    def stretch(self, start: int, stop: int, releases: int | Sequence[int] | None = None) -> DPSGD:
        """Return the steps after ``start``, up to ``stop``, as a run."""
        start = integer("start", start, 0, self.steps - 1)
        stop = integer("stop", stop, start + 1, self.steps)
        optimizer = self.optimizer
        if optimizer is not None:
            optimizer = replace(optimizer, learning_rate=cut(optimizer.learning_rate, stop, start))
        return self.replace(
            steps=stop - start,
            sample_rate=cut(self.sample_rate, stop, start),
            noise_multiplier=cut(self.noise_multiplier, stop, start),
            weights=cut(self.weights, stop, start),
            optimizer=optimizer,
            releases=releases,
        )

    def _released_until(self, stop: int) -> int | Sequence[int] | None:
        if self.release_count == self.steps:
            return stop
        if self.release_count == 1:
            return None
        earlier = self.released_steps()
        return tuple(int(step) for step in earlier[earlier < stop])

    def __eq__(self, other: object) -> bool:
        return same(self, other)

    def __hash__(self) -> int:
        return hash(key(self))

    def __repr__(self) -> str:
        whole = whole_batches(self.sample_rate) if self.sampling == "shuffled" else None
        return call_of(self, {"neighbours": USUAL_NEIGHBOURS[self.sampling], "batches_per_epoch": whole})


def batches_of_epoch(
    dataset_size: int, batch_size: float, last_batch: LastBatch | None = None, sampling: Sampling = "poisson"
) -> tuple[float, float]:
    """Return the number of batches in an epoch, and the probability that an example is in a given batch.

    If the last batch is dropped, the probability is 1 / batches: that of an example that is not dropped, and an upper
    bound for every other example. Opacus' Poisson sampling uses the same probability.
    """
    size = integer("dataset_size", dataset_size)
    batch = number("batch_size", batch_size, 0.0, size, open_low=True)
    if last_batch is None:
        if sampling == "shuffled" and size % batch:
            raise ValueError(
                "last_batch must be 'keep' or 'drop' with sampling 'shuffled' where batch_size does not divide "
                f"dataset_size, got None with batches of {batch:g} out of {size} examples"
            )
        return size / batch, batch / size
    one_of("last_batch", last_batch, get_args(LastBatch))
    if last_batch == "keep":
        return -(-size // batch), batch / size
    return size // batch, 1.0 / (size // batch)


def _neighbours(value: object, sampling: Sampling) -> Neighbours:
    """Return the given neighbours, or the default of the sampling."""
    usual = USUAL_NEIGHBOURS[sampling]
    found = usual if value is None else cast("Neighbours", one_of("neighbours", value, get_args(Neighbours)))
    if found == "add-remove" != usual:
        raise ValueError(
            f"neighbours must be 'zero-out' or 'replace' with sampling {sampling!r}, got 'add-remove': one example "
            "more or less moves others between batches; use 'zero-out', or Poisson sampling"
        )
    return found


def whole_batches(rate: PerStep) -> int | None:
    """Return 1 / rate if it is a whole number within rounding, else None."""
    if np.ndim(rate) or not rate:
        return None
    clear = max(float(rate), 1e-300)
    batches = round(1.0 / clear)
    return batches if abs(batches * clear - 1.0) <= max(min(1e-9, 0.1 / batches), 4e-16) else None


def _batches_per_epoch(run: DPSGD) -> int | None:
    """Return the number of batches in an epoch of shuffled batches; None with other samplings."""
    given = run.batches_per_epoch
    if run.sampling != "shuffled":
        if given is not None:
            raise ValueError(f"batches_per_epoch must be None with sampling {run.sampling!r}, got {told(given)}")
        return None
    rate, whole = float(run.sample_rate), whole_batches(run.sample_rate)
    if given is None and whole is not None:
        return whole
    most = whole or math.ceil(1.0 / rate)
    if given is None:
        raise ValueError(
            f"sample_rate must be 1 over a whole number of batches with sampling 'shuffled', got {rate!r}: write "
            f"1/{round(1.0 / rate)}, or batches_per_epoch={most} if the last batch of an epoch is smaller"
        )
    count = integer("batches_per_epoch", given)
    if not (count - 1) * rate < 1.0 <= count * rate * (1.0 + 1e-9):
        raise ValueError(
            f"batches_per_epoch must be {most} with sample_rate {rate!r}, got {count}: it is 1 / sample_rate, "
            "rounded up if the last batch of an epoch is smaller"
        )
    return count


def _releases(value: object, steps: int) -> int | tuple[int, ...] | None:
    """Return None for the last iterate alone, a number of releases, or the sorted steps including the last one."""
    if value is None:
        return None
    if isinstance(value, (str, bytes)) or (not isinstance(value, Integral) and len(shape("releases", value)) != 1):
        raise ValueError(f"releases must be None, a number of iterates or a sequence of steps, got {told(value)}")
    if isinstance(value, Integral):
        count = integer("releases", value, 1, steps)
        if MOST_RELEASES < count < steps:
            raise ValueError(f"releases must be at most {MOST_RELEASES}, or all {steps}, got {count}")
        return count
    given = {integer("releases", each, 1, steps) for each in cast("Sequence[object]", value)}
    return tuple(sorted(given | {steps})) if given - {steps} else None


def _noise_filter(value: object) -> tuple[float, ...] | None:
    """Return None, or the coefficients. The first coefficient must not be 0."""
    if value is None:
        return None
    if isinstance(value, (str, bytes)) or len(shape("noise_filter", value)) != 1:
        raise ValueError(f"noise_filter must be None or a sequence of numbers, got {told(value)}")
    given = numbers("noise_filter", value, -MOST_NOISE, MOST_NOISE)
    if not 1 <= given.size <= MOST_COEFFICIENTS:
        raise ValueError(f"noise_filter must have from 1 to {MOST_COEFFICIENTS} coefficients, got {given.size}")
    if abs(given[0]) < LEAST_NOISE:
        raise ValueError(
            f"noise_filter must not begin with 0, got {float(given[0])!r}: a step would add no noise of its own"
        )
    return tuple(given.tolist())


def noise_root(run: DPSGD) -> PerStep:
    """Return the root of Adam's second moment at each step if gradients were noise alone, as the analyses assume."""
    adam = instance("run", require_run(run).optimizer, Adam, "one whose optimizer is a lastiterate.Adam")
    if run.noise_filter is not None:
        raise ValueError(
            f"noise_filter must be None with Adam for a prediction, got {len(run.noise_filter)} coefficients: "
            "what correlated noise makes of Adam's second moment is not known here; composition holds all the same"
        )
    return adam.noise_root(run.noise_multiplier * run.clip_norm, run.steps)


def require_run(run: object) -> DPSGD:
    """Return ``run``, or raise if it is not a ``DPSGD``."""
    return instance("run", run, DPSGD, "a lastiterate.DPSGD")


def require_basic(run: object, who: str, *, knows: Sequence[str] = ()) -> DPSGD:
    """Raise if a run has features that ``who`` does not support: releases, groups, replacement, correlated noise.

    ``knows`` names the fields that ``who`` supports.
    """
    checked = require_run(run)
    if checked.release_count > 1 and "releases" not in knows:
        raise ValueError(f"releases must be None for {who}, got {checked.release_count} of them: {_ONLY} know them")
    if checked.group_size > 1 and "group_size" not in knows:
        raise ValueError(f"group_size must be 1 for {who}, got {checked.group_size}: {_ONLY} know groups")
    if checked.neighbours == "replace" and "neighbours" not in knows:
        raise ValueError(
            f"neighbours must be 'add-remove' or 'zero-out' for {who}, got 'replace': {_ONLY} know replaced examples"
        )
    if checked.noise_filter is not None and "noise_filter" not in knows:
        raise ValueError(
            f"noise_filter must be None for {who}, got {len(checked.noise_filter)} coefficients: it takes the noise of "
            "steps to be independent"
        )
    if checked.min_separation > 1 and "min_separation" not in knows:
        raise ValueError(
            f"min_separation must be 1 for {who}, got {checked.min_separation}: {_ONLY} know batches that keep an "
            "example apart"
        )
    return checked
