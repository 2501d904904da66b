"""Training of many models in one call, and measurement of Adam's second moment."""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import Literal, get_args

import jax
import numpy as np
from jaxtyping import PyTree
from numpy.typing import ArrayLike

from lastiterate.common.progress import TrainingProgress
from lastiterate.common.types import BoolArray, IntArray, RealArray
from lastiterate.common.validation import as_array, boolean, instance, integer, one_of, shape, told
from lastiterate.run import DPSGD
from lastiterate.supported_runs import TRAINER, require_supported
from lastiterate.trainers.adam_second_moment import LEAST_MODELS, SecondMoment, SecondMomentWatch
from lastiterate.training.problem import Canary, Problem, flatten, sizes_of
from lastiterate.training.trainer import OnIterate, TrainedChunk, Trainer, peak_bytes

Release = Literal["last_iterate_only", "intermediate_iterates"]


@dataclass(frozen=True, eq=False)
class Trained:
    """Trained models, in the order in which they were requested.

    Attributes:
        parameters: the released parameters (the last iterate, or an average if the optimizer averages). A pytree of
            NumPy arrays with a leading axis of models.
        iterates: if requested, all iterates including the initial one, with a second axis of length steps + 1.
        chunk_size: the number of models that the compiled program trained at once.
        peak_bytes: the peak memory of the process, or of the accelerator.
        released: the released iterates, with a second axis of releases, if the run releases several.
    """

    problem: Problem
    models: IntArray
    present: BoolArray
    parameters: PyTree[RealArray]
    iterates: PyTree[RealArray] | None
    chunk_size: int
    seconds: float
    peak_bytes: int
    released: PyTree[RealArray] | None = None

    def flat(self) -> RealArray:
        """Return the released parameters as a matrix [models, parameters]."""
        return flatten(self.parameters)

    def model(self, position: int) -> PyTree:
        """Return one of the models, in the form of the problem's parameters."""
        return self.problem.model(jax.tree.map(lambda leaf: leaf[position], self.parameters))


def train(
    run: DPSGD,
    problem: Problem,
    canary: Canary | None = None,
    *,
    models: int | ArrayLike = 64,
    present: bool | ArrayLike = False,
    seed: int = 0,
    release: Release | None = None,
    on_iterate: OnIterate | None = None,
    on_release: OnIterate | None = None,
    chunk_size: int | None = None,
    workers: int | None = None,
    progress: bool | None = None,
) -> Trained:
    """Train many models with DP-SGD (Algorithm 1 of the paper), each with its own randomness.

    Model i depends only on ``seed``, i and the presence of the canary.

    Args:
        run: steps, sampling, clipping, noise and optimizer. The analyses take the same object.
        models: how many models to train, or a list of model numbers.
        present: whether the canary is present: one value for all models, or a list.
        seed: the seed of the whole audit.
        release: "intermediate_iterates" keeps all iterates. By default, the iterates that the run releases are kept.
        on_iterate: called as ``on_iterate(step, chunk)`` for each chunk of models before the first step (as step 0) and
            after every step, from several threads.
        on_release: called in the same way before the first step, and after each step whose iterate the run releases.
        chunk_size, workers: see ``Trainer``. The chunk size changes results only by rounding.
        progress: show a progress bar on stderr. By default, only if stderr is a terminal.

    Raises:
        TrainingDiverged: if parameters of a model become infinite or NaN.
    """
    began = monotonic()
    require_supported(run, TRAINER)
    instance("problem", problem, Problem, "a training.Problem")
    if progress is not None:
        boolean("progress", progress)
    numbers, worlds = _models(models, present)
    if worlds.any() and canary is None:
        raise ValueError("canary must be given where present is true, got None")
    integer("seed", seed, 0, 2**64 - 1)
    if release is not None:
        one_of("release", release, get_args(Release))
    trainer = Trainer(run, problem, canary, models=len(numbers), chunk_size=chunk_size, workers=workers)
    kept = released = None
    if release == "intermediate_iterates":
        kept = _Iterates(numbers, worlds, range(run.steps + 1), on_iterate)
    if release is None and run.release_count > 1:
        released = _Iterates(numbers, worlds, run.released_steps().tolist(), on_release)
    with TrainingProgress(len(numbers), run.steps, progress) as bar:
        parts = list(trainer.chunks(numbers, worlds, seed, bar, kept or on_iterate, released or on_release))
    parameters = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(part.parameters for part in parts))
    all_of_them, some = (each.iterates if each else None for each in (kept, released))
    seconds = monotonic() - began
    return Trained(problem, numbers, worlds, parameters, all_of_them, trainer.chunk_size, seconds, peak_bytes(), some)


class _Iterates:
    """A collector of the iterates after some steps, in arrays [models, steps, ...]."""

    def __init__(self, numbers: IntArray, worlds: BoolArray, steps: Sequence[int], also: OnIterate | None) -> None:
        self.iterates: PyTree[RealArray] | None = None
        self._rows = {which: row for row, which in enumerate(zip(numbers.tolist(), worlds.tolist(), strict=True))}
        self._columns = {step: column for column, step in enumerate(steps)}
        self._also, self._lock = also, Lock()

    def __call__(self, step: int, chunk: TrainedChunk) -> None:
        if self._also:
            self._also(step, chunk)
        if step not in self._columns:
            return
        with self._lock:
            if self.iterates is None:
                size = (len(self._rows), len(self._columns))
                self.iterates = jax.tree.map(lambda leaf: np.empty(size + leaf.shape[1:], leaf.dtype), chunk.parameters)
        rows = [self._rows[which] for which in zip(chunk.models.tolist(), chunk.present.tolist(), strict=True)]
        for kept, leaf in zip(jax.tree.leaves(self.iterates), jax.tree.leaves(chunk.parameters), strict=True):
            kept[rows, self._columns[step]] = leaf


def _models(models: int | ArrayLike, present: bool | ArrayLike) -> tuple[IntArray, BoolArray]:
    given_count = shape("models", models) == ()
    if given_count:
        numbers = np.arange(integer("models", models, 1, 2**32))
    else:
        numbers = as_array("models", models)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or not np.all((numbers >= 0) & (numbers < 2**32)):
            raise ValueError(f"models must be a number or a list of integers in [0, 2^32), got {told(models)}")
        numbers = numbers.astype(np.int64, copy=False)
    worlds = as_array("present", present)
    if worlds.dtype != np.bool_ or worlds.shape not in ((), numbers.shape):
        raise ValueError(f"present must be a boolean, or one for each of {len(numbers)} models, got {told(present)}")
    worlds = np.broadcast_to(worlds, numbers.shape)
    if not given_count and len(set(zip(numbers.tolist(), worlds.tolist(), strict=True))) < len(numbers):
        raise ValueError("models must be different in number or in present: two equal ones would be the same model")
    return numbers, worlds


def second_moment(
    run: DPSGD, problem: Problem, *, models: int = 8, seed: int = 0, first: int = 0, progress: bool | None = None
) -> SecondMoment:
    """Train a few models with Adam, and measure Adam's second moment during training.

    Args:
        run: a run whose optimizer is a ``lastiterate.Adam``.
        first: the number of the first model.
        progress: show a progress bar on stderr. By default, only if stderr is a terminal.
    """
    count = integer("models", models, LEAST_MODELS, 2**20)
    integer("seed", seed, 0, 2**64 - 1)
    integer("first", first, 0, 2**32 - count)
    if progress is not None:
        boolean("progress", progress)
    instance("problem", problem, Problem, "a training.Problem")
    watch = SecondMomentWatch(run, sum(sizes_of(problem)), count)

    def see(step: int, chunk: TrainedChunk) -> None:
        if step and watch.wants(step):
            watch.see(step, (chunk.models - first).tolist(), flatten(chunk.second_moment))

    trainer = Trainer(run, problem, models=count)
    numbers = first + np.arange(count)
    with TrainingProgress(count, run.steps, progress) as bar:
        for _ in trainer.chunks(numbers, np.zeros(count, bool), seed, bar, see):
            pass
    return watch.result()
