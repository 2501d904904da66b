"""What a DP-SGD training run is: the one object that is analysed and trained.

Seen through linear losses a run releases ``sum_t w_t A_t + N(0, sum_t w_t^2 sigma_t^2)``, where A_t says
whether the canary is in batch t. The optimizer (or ``weights``) gives w_t, ``sampling`` the law of A_t.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from lastiterate.optimizer import SGD, require_linear
from lastiterate.values import (
    MAX_STEPS,
    PerStep,
    PerStepGiven,
    cut,
    instance,
    integer,
    key,
    noise_multipliers,
    number,
    one_of,
    per_step,
    same,
)

Sampling = Literal["poisson", "fixed", "shuffled", "full"]
MOST_OF_A_GROUP = 10**6


@dataclass(frozen=True, eq=False)
class DPSGD:
    """A DP-SGD run. Immutable and validated; per-step quantities are one number or an array of ``steps`` numbers.

    Args:
        steps: number of updates T.
        sample_rate: probability q that an example is in a batch.
        noise_multiplier: standard deviation sigma of the noise, in units of ``clip_norm``.
        sampling: ``"poisson"`` (each example independently), ``"fixed"`` (batches of fixed size, drawn without
            replacement at each step), ``"shuffled"`` (each example once an epoch) or ``"full"`` (the whole data set).
        clip_norm: norm to which per-example gradients are clipped. The analyses do not depend on it.
        optimizer: how gradients become parameters; the weights follow from it. None: every step counts alike.
        weights: how much each step counts in the released model, instead of an optimizer. Only ratios matter.
        group_size: how many examples a person has, all of which are to be protected together. Each of them is sampled
            and clipped by itself.
    """

    steps: int
    sample_rate: PerStep
    noise_multiplier: PerStep
    sampling: Sampling = "poisson"
    clip_norm: float = 1.0
    optimizer: SGD | None = None
    weights: PerStep | None = None
    group_size: int = 1

    if TYPE_CHECKING:  # lists may be given, and arrays are kept

        def __init__(
            self,
            steps: int,
            sample_rate: PerStepGiven,
            noise_multiplier: PerStepGiven,
            sampling: Sampling = "poisson",
            clip_norm: float = 1.0,
            optimizer: SGD | None = None,
            weights: PerStepGiven | None = None,
            group_size: int = 1,
        ) -> None: ...

    def __post_init__(self) -> None:
        def fix(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        fix("steps", integer("steps", self.steps))
        fix("sample_rate", per_step("sample_rate", self.sample_rate, self.steps, 0.0, 1.0))
        fix("noise_multiplier", noise_multipliers(self.noise_multiplier, self.steps))
        fix("clip_norm", number("clip_norm", self.clip_norm, 0.0, open_low=True))
        fix("group_size", integer("group_size", self.group_size, 1, MOST_OF_A_GROUP))
        self._check_sampling()
        if self.optimizer is not None:
            if self.weights is not None:
                raise ValueError("optimizer and weights were both given, but the first determines the second: give one")
            require_linear(self.optimizer)
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
        optimizer: SGD | None = None,
        weights: PerStepGiven | None = None,
        group_size: int = 1,
    ) -> DPSGD:
        """The run of ``epochs`` passes in batches of expected size ``batch_size``: steps = round(epochs n / batch)."""
        size = integer("dataset_size", dataset_size)
        batch = number("batch_size", batch_size, 0.0, size, open_low=True)
        passes = number("epochs", epochs, 0.0, open_low=True)
        steps = number("epochs * dataset_size / batch_size", passes * size / batch, 0.0, float(MAX_STEPS))
        return cls(
            max(1, round(steps)),
            batch / size,
            noise_multiplier,
            sampling,
            clip_norm,
            optimizer,
            weights,
            group_size=group_size,
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
        """The run that an Opacus ``PrivacyEngine`` has recorded, whichever accountant it uses.

        Args:
            privacy_engine: the engine, after training.
            optimizer: the one that ``make_private`` returned around a ``torch.optim.SGD``, with the hyperparameters and
                the clipping norm of the whole training. Its learning rate is turned into one of the sum of gradients;
                where sampling rates differ the run has ``weights`` instead. Or a ``lastiterate.SGD``, which is taken as
                it is. None: every step counts alike.
            loader: the loader that ``make_private`` returned, from which it is read how batches are drawn. Samplers
                that neither draw by Poisson sampling nor shuffle all of the data are refused. A shuffling one must have
                been read to its end in every epoch.
            scheduler: must be None. A schedule is told by a ``lastiterate.SGD`` with one learning rate a step.
            sampling: how batches are drawn, if there is no loader to tell.
        """
        from lastiterate.integrations.opacus_run import run_from_opacus

        return run_from_opacus(privacy_engine, optimizer, loader, scheduler, sampling)

    @property
    def epochs(self) -> float:
        """Expected number of times each example is used."""
        return float(np.sum(self.sample_rate)) * (1 if np.ndim(self.sample_rate) else self.steps)

    @property
    def amplifies(self) -> bool:
        """Whether the standard analysis may count on how batches are drawn: by Poisson sampling, or always full.

        Amplification by sampling has not been shown to carry over to shuffled batches or to batches of fixed size.
        """
        return self.sampling in ("poisson", "full")

    def effective_weights(self) -> PerStep:
        """The weight of each step in the released model; one number where all are equal."""
        if self.weights is not None:
            return self.weights
        return 1.0 if self.optimizer is None else self.optimizer.weights(self.steps)

    def replace(self, **changes: Any) -> DPSGD:
        """A copy with some fields changed."""
        return DPSGD(**({f.name: getattr(self, f.name) for f in fields(self)} | changes))

    def prefix(self, steps: int) -> DPSGD:
        """The run stopped after ``steps`` steps, with the weights its optimizer gives it then."""
        stop = integer("steps", integer("steps", steps), 1, self.steps)
        return self.replace(
            steps=stop,
            sample_rate=cut(self.sample_rate, stop),
            noise_multiplier=cut(self.noise_multiplier, stop),
            weights=cut(self.weights, stop),
            optimizer=None if self.optimizer is None else self.optimizer.prefix(stop),
        )

    def __eq__(self, other: object) -> bool:
        return same(self, other)

    def __hash__(self) -> int:
        return hash(key(self))


def require_run(run: object) -> DPSGD:
    """Refuse what is no run, for all that takes one."""
    return instance("run", run, DPSGD, "a lastiterate.DPSGD")
