"""Functions that run in Ray's workers. A worker keeps its task and compiled programs for its next chunk."""

import os
import traceback
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache

from lastiterate.auditing.experiments.protocol import Trials
from lastiterate.auditing.identity import versions
from lastiterate.auditing.stores.audit_record import ScoredTrials
from lastiterate.common.errors import not_installed
from lastiterate.common.types import BoolArray, Foreign, IntArray

AGREED: dict[str, str | None] = {}  # digests of this worker's imports, filled once they match the driver's
# Ray reads these when it is imported. They turn off usage reports and harmless messages about dead workers.
_SETTINGS = {"RAY_DEDUP_LOGS_SKIP_REGEX": ".", "RAY_USAGE_STATS_ENABLED": "0"}


def import_ray() -> Foreign:
    """Import Ray, or raise an error that says how to install it."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise ValueError(not_installed("engine 'ray'", "Ray", "ray")) from None
    return ray


@dataclass(frozen=True)
class SentTask:
    """A small reference to a task in the cluster's memory, and the resources of its workers."""

    reference: Foreign
    cpus: float
    gpus: float
    double: bool  # whether JAX uses double precision in the process that sent the task


def answer(function: str, sent: SentTask, arguments: tuple[Foreign, ...]) -> bytes:
    """Return the pickled result or exception of ``chunk_size`` or ``train``."""
    ray = import_ray()
    try:
        return bytes(ray.cloudpickle.dumps(("returned", globals()[function](sent, *arguments))))
    except (Exception, SystemExit) as error:
        error.add_note(f"in a Ray worker:\n{''.join(traceback.format_tb(error.__traceback__))}")
        return _dump_error(ray, error)


def chunk_size(sent: SentTask) -> int:
    """Return the chunk size that suits the worker."""
    with _precision(sent):
        return _trials(sent).chunk_size


def train(sent: SentTask, models: IntArray, present: BoolArray) -> ScoredTrials:
    """Train one chunk. Return its trials with the package versions of this worker."""
    with _precision(sent):
        chunk = ScoredTrials.mixed(list(_trials(sent).chunks(models.copy(), present.copy(), None)))
        return replace(chunk, versions=versions())


@lru_cache(maxsize=1)
def _trials(sent: SentTask) -> Trials:
    ray = import_ray()
    # XLA reads these when it starts. They limit its threads to the task's cores and its memory to the task's share.
    os.environ.setdefault("NPROC", str(max(1, int(sent.cpus))))
    if 0.0 < sent.gpus < 1.0:
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 * sent.gpus:.3f}")
    pickled = ray.get(sent.reference)
    try:
        experiment, *given = ray.cloudpickle.loads(pickled)
    except ImportError as error:
        raise ValueError(
            f"all machines of the cluster must have the packages that the trainer imports: {error}"
        ) from None
    found: Trials = experiment.trials(*given)
    return found


def _precision(sent: SentTask) -> Foreign:
    if not sent.double:
        return nullcontext()
    import jax

    return jax.enable_x64(True)


def _dump_error(ray: Foreign, error: BaseException) -> bytes:
    """Pickle an error, or a RuntimeError with its message if it cannot be pickled."""
    try:
        pickled = bytes(ray.cloudpickle.dumps(("raised", error)))
        ray.cloudpickle.loads(pickled)
    except Exception:
        told = RuntimeError(f"{type(error).__name__}: {error}")
        told.__notes__ = list(getattr(error, "__notes__", ()))
        return bytes(ray.cloudpickle.dumps(("raised", told)))
    return pickled
