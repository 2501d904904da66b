"""A DP-SGD training run: the one object that is analysed and trained.

With linear losses a run releases ``sum_t w_t A_t + N(0, sum_t w_t^2 sigma_t^2)``, where A_t is 1 if the canary is in
batch t and 0 otherwise. The optimizer (or ``weights``) gives the weights w_t. The mechanism gives the distribution of
the A_t and the noise sigma_t. The question says which iterates are released and whose data are protected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

from lastiterate.common.errors import BadArgument
from lastiterate.common.system import late
from lastiterate.common.types import IntArray
from lastiterate.common.validation import (
    MAX_STEPS,
    ByFields,
    PerStep,
    PerStepGiven,
    cut,
    instance,
    integer,
    number,
    one_of,
    per_step,
    shape,
    told,
)
from lastiterate.mechanism import (
    SAMPLINGS,
    Guarantee,
    LastBatch,
    Mechanism,
    Neighbours,
    Sampling,
    batches_of_epoch,
    parts_of,
    whole_batches,
)
from lastiterate.optimizer import HEURISTIC, Optimizer, require_optimizer

MOST_OF_A_GROUP = 10**6
MOST_RELEASES = 10**6  # unless all iterates are released


@dataclass(frozen=True)
class Question:
    """The released iterates and the data that are protected. ``DPSGD`` has the same fields and describes them."""

    releases: int | tuple[int, ...] | None
    group_size: int
    neighbours: Neighbours

    @classmethod
    def about(cls, mechanism: Mechanism, releases: object, group_size: object, neighbours: object) -> Question:
        """Return the validated question about a mechanism. The default of ``neighbours`` depends on its sampling."""
        return cls(
            _releases(releases, mechanism.steps),
            integer("group_size", group_size, 1, MOST_OF_A_GROUP),
            _neighbours(neighbours, mechanism.sampling),
        )


@dataclass(frozen=True, eq=False, repr=False)
class DPSGD(ByFields):
    """A DP-SGD run, immutable and validated. Per-step quantities are one number or an array of ``steps`` numbers.

    Args:
        steps: number of updates T.
        sample_rate: probability q that an example is in a batch.
        noise_multiplier: standard deviation sigma of the noise, in units of ``clip_norm``.
        sampling: ``"poisson"`` (each example independently), ``"fixed"`` (batches of fixed size, drawn without
            replacement at each step), ``"shuffled"`` (each example once per epoch), ``"balls-in-bins"`` (each example
            in one random batch of each epoch) or ``"full"`` (the whole data set). ``"truncated-poisson"`` is Poisson
            sampling with at most ``max_batch_size`` of ``dataset_size`` examples in a batch. If more are drawn, a
            random part of them is used and the others are dropped.
        clip_norm: norm to which per-example gradients are clipped. The analyses depend on it only through Adam's
            ``eps`` and L2 decay.
        optimizer: the map from gradients to parameters. It determines the weights of the steps. If it is None, all
            steps have equal weight.
        weights: weight of each step in the released model, instead of an optimizer. Only ratios matter.
        releases: the released iterates: None for the last one only, a number for this many equally spaced iterates, or
            a sequence of the steps after which an iterate is released. The last iterate is always released.
        group_size: number of examples of one person, which are protected together. Each example is sampled and clipped
            by itself.
        neighbours: the neighbouring relation: ``"add-remove"`` (an example is added or removed), ``"zero-out"`` (an
            example gets a gradient of zero) or ``"replace"`` (an example is replaced by another). The default is
            add-remove for sampling ``"poisson"``, ``"balls-in-bins"`` or ``"full"``. It is zero-out for the other
            ones, where adding or removing an example also changes the batches of other examples.
        noise_filter: coefficients (c_0, c_1, ...) of correlated noise, as in DP-FTRL. The noise of step t is the sum of
            c_j z_(t-j), where z_s is drawn with the noise multiplier of step s, and z_s = 0 before the first step.
            These are the coefficients of jax-privacy's noising matrix C^-1. None means independent noise.
        min_separation: with a noise filter, the minimum number of steps between two batches with the same example. With
            Poisson sampling and ``min_separation`` > 1, examples are split into ``min_separation`` groups that take
            turns.
        batches_per_epoch: number of batches per epoch, for shuffled batches and balls in bins. The default is 1 /
            ``sample_rate``, if this is a whole number. If the last shuffled batch of an epoch is smaller, give 1 /
            ``sample_rate``, rounded up.
        max_batch_size: largest number of examples in a batch, for truncated Poisson sampling.
        dataset_size: number of examples, for truncated Poisson sampling. Its guarantee depends on this number.
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
    max_batch_size: int | None = None
    dataset_size: int | None = None

    if TYPE_CHECKING:  # accepts lists; the fields hold arrays
        mechanism: ClassVar[Mechanism]  # parts of every run, set in __post_init__
        question: ClassVar[Question]

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
            max_batch_size: int | None = None,
            dataset_size: int | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        mechanism = Mechanism(**parts_of(self, Mechanism))
        question = Question.about(mechanism, **parts_of(self, Question))
        self._fix(**vars(mechanism), **vars(question), mechanism=mechanism, question=question)
        if self.optimizer is not None:
            if self.weights is not None:
                raise ValueError("optimizer and weights were both given: give one, as an optimizer has its own weights")
            require_optimizer(self.optimizer)
            per_step("learning_rate", self.optimizer.learning_rate, self.steps)
        if self.weights is not None:
            self._fix(weights=per_step("weights", self.weights, self.steps))
            if not np.any(self.weights):
                raise BadArgument("weights", "must not all be zero: such a run releases nothing")

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
        max_batch_size: int | None = None,
    ) -> DPSGD:
        """Return a run of ``epochs`` epochs with batches of expected size ``batch_size``.

        An epoch has ``dataset_size / batch_size`` steps. ``last_batch`` says what the loader does with the smaller
        batch at the end of an epoch: ``"keep"`` rounds the steps of an epoch up, ``"drop"`` rounds them down. With
        shuffled batches ``last_batch`` must be given if ``batch_size`` does not divide ``dataset_size``. With balls in
        bins the batches of an epoch are a whole number, by default the nearest one, and the expected batch size is
        ``dataset_size`` divided by this number.
        """
        batches, share = batches_of_epoch(dataset_size, batch_size, last_batch, sampling)
        passes = number("epochs", epochs, 0.0, open_low=True)
        whole = last_batch is not None or SAMPLINGS[sampling].whole_batches
        steps = passes * batches if whole else passes * int(dataset_size) / float(batch_size)
        number("epochs * dataset_size / batch_size", steps, 0.0, float(MAX_STEPS))
        once = SAMPLINGS[sampling].once_per_epoch
        count, per_epoch = max(1, round(steps)), round(batches) if once else None
        method = sampling, clip_norm, optimizer, weights, releases, group_size, neighbours, noise_filter, min_separation
        size = dataset_size if sampling == "truncated-poisson" else None
        return cls(count, share, noise_multiplier, *method, per_epoch, max_batch_size, size)

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
            optimizer: the optimizer that ``make_private`` returned for a ``torch.optim.SGD``, ``Adam`` or ``AdamW``.
                Its hyperparameters and clipping norm must not have changed during training. They are converted to those
                for the sum of gradients. If sample rates differ, the run has ``weights`` instead of an SGD. A
                ``lastiterate.SGD`` or ``Adam`` is used unchanged. None means that all steps have equal weight.
            loader: the loader that ``make_private`` returned. It shows how batches are drawn. Only Poisson sampling and
            shuffling of all data are accepted. A shuffling loader must have been read to its
                end in every epoch.
            scheduler: the ``torch.optim.lr_scheduler`` that changed the optimizer's learning rate. It must have been
                stepped once after each update or once after each epoch. A copy of the scheduler is run again to get the
                rate of each step. Schedulers that depend on losses or cycle the momentum are refused: pass a
                ``lastiterate.SGD`` or ``Adam`` with one learning rate per step instead. Opacus' noise schedulers need
                not be passed.
            sampling: how batches are drawn, if no loader is given.
        """
        read = late("integrations.opacus_run:run_from_opacus")
        return require_run(read(privacy_engine, optimizer, loader, scheduler, sampling))

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
                ``DpParams`` of an accountant. The noise filter must be the same at every step. Truncated batches must
                have a single band.
            optimizer: the map from gradients to parameters, which no configuration contains. Its learning rate is for
                the sum of gradients clipped to ``clip_norm``. None means that all steps have equal weight.
            steps: number of updates, for ``DpParams``, which does not contain it.
            noise_filter: the coefficients of the noising matrix, for ``DpParams`` with a ``cycle_length``.
        """
        read = late("integrations.jax_privacy_run:run_from_jax_privacy")
        return require_run(read(config, optimizer, steps, noise_filter))

    @property
    def epochs(self) -> float:
        """Expected number of times each example is used."""
        return float(np.sum(self.sample_rate)) * (1 if np.ndim(self.sample_rate) else self.steps)

    @property
    def guarantee(self) -> Guarantee:
        """Name of the analysis that is a guarantee for the run's sampling."""
        return SAMPLINGS[self.sampling].guarantee

    @property
    def prediction(self) -> str:
        """Kind of the prediction by the last-iterate analysis: "heuristic" or "approximation of a heuristic" (Adam)."""
        return HEURISTIC if self.optimizer is None else self.optimizer.prediction

    @property
    def is_adaptive(self) -> bool:
        """True if the optimizer divides gradients by their second moment, as Adam does."""
        return self.optimizer is not None and self.optimizer.is_adaptive

    @property
    def is_mirrored(self) -> bool:
        """True if one example replaces another, so that the world without the canary has a canary of its own."""
        return self.neighbours == "replace"

    def effective_weights(self) -> PerStep:
        """Return the weight of each step in the released model, or one number for equal weights."""
        if self.weights is not None:
            return self.weights
        return 1.0 if self.optimizer is None else self.optimizer.weights_in(self.mechanism)

    def replace(self, **changes: Any) -> DPSGD:
        """Return a copy with some fields changed.

        If the sampling changes and the neighbours are the default of the old sampling, they become the new default.
        """
        kept = {f.name: getattr(self, f.name) for f in fields(self)}
        sampling = changes.get("sampling", self.sampling)
        if not (isinstance(sampling, str) and sampling == self.sampling):
            kept |= {"batches_per_epoch": None, "max_batch_size": None, "dataset_size": None}
            if self.neighbours == SAMPLINGS[self.sampling].neighbours:
                kept["neighbours"] = None
        rate = changes.get("sample_rate", self.sample_rate)
        if SAMPLINGS[self.sampling].once_per_epoch and not np.array_equal(rate, self.sample_rate):
            kept["batches_per_epoch"] = None
        return DPSGD(**(kept | changes))

    @property
    def release_count(self) -> int:
        """Number of released iterates."""
        if isinstance(self.releases, tuple):
            return len(self.releases)
        return self.releases or 1

    def released_steps(self) -> IntArray:
        """Return the steps after which an iterate is released. Equally spaced releases are after round(k T / K)."""
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
        """Return the steps ``start + 1`` to ``stop`` as a run."""
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

    def _usual(self) -> dict[str, object]:
        whole = whole_batches(self.sample_rate) if SAMPLINGS[self.sampling].once_per_epoch else None
        return {"neighbours": SAMPLINGS[self.sampling].neighbours, "batches_per_epoch": whole}


def _neighbours(value: object, sampling: Sampling) -> Neighbours:
    usual = SAMPLINGS[sampling].neighbours
    found = usual if value is None else cast("Neighbours", one_of("neighbours", value, get_args(Neighbours)))
    if found == "add-remove" != usual:
        raise BadArgument(
            "neighbours",
            f"must be 'zero-out' or 'replace' with sampling {sampling!r}, got 'add-remove': adding or removing "
            "an example moves others between batches; use 'zero-out', or Poisson sampling",
        )
    return found


def _releases(value: object, steps: int) -> int | tuple[int, ...] | None:
    """Return the releases in one form: None for the last iterate alone, a count as it is, or sorted steps that
    include the last step.
    """
    if value is None:
        return None
    if isinstance(value, (str, bytes)) or (not isinstance(value, Integral) and len(shape("releases", value)) != 1):
        raise BadArgument("releases", f"must be None, a number of iterates or a sequence of steps, got {told(value)}")
    if isinstance(value, Integral):
        count = integer("releases", value, 1, steps)
        if MOST_RELEASES < count < steps:
            raise BadArgument("releases", f"must be at most {MOST_RELEASES}, or {steps} for all iterates, got {count}")
        return count
    given = {integer("releases", each, 1, steps) for each in cast("Sequence[object]", value)}
    return tuple(sorted(given | {steps})) if given - {steps} else None


def require_run(run: object) -> DPSGD:
    """Return ``run``, or raise if it is not a ``DPSGD``."""
    return instance("run", run, DPSGD, "a lastiterate.DPSGD")
