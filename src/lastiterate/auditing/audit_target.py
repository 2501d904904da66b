"""The subject of an audit from the command line: a data set and a model that ship, or a trainer in a user's file."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

from lastiterate.auditing.experiments.choose import Given, experiment_on
from lastiterate.auditing.experiments.protocol import Experiment
from lastiterate.auditing.user_code import import_file, is_python
from lastiterate.common.errors import AttackFailed, TrainerFailed, guarded
from lastiterate.common.types import IntegerArray, RealArray
from lastiterate.optimizer import SGD, is_sgd
from lastiterate.privacy.analyses.calibrate import calibrate
from lastiterate.privacy.analyses.composition import composition
from lastiterate.run import DPSGD

DEFAULT_EPSILON, DEFAULT_DELTA = 8.0, 1e-5  # by composition, if no noise is given
DEFAULT_MOMENTUM = 0.9
_ALSO = ("attack", "initial", "batch_size")  # optional definitions in a trainer's file, beside ``run``


@dataclass(frozen=True, eq=False)
class Subject:
    """A run, its problem and its name. The last three fields come from a user's file, if the file defines them."""

    run: DPSGD
    problem: Any
    words: str
    name: str
    test: tuple[RealArray, IntegerArray] | None = None
    attack: object = None
    initial: Any = None
    batch_size: Any = None

    def protecting(self, **fields: Any) -> Subject:
        """Return the subject with other releases, group_size or neighbours, and with noise calibrated for them.

        If several iterates are released, momentum is turned off: with it, the increments between releases are not
        independent.
        """
        run = self.run.replace(**fields)
        if run == self.run:
            return self
        if is_sgd(run.optimizer) and 1 < run.release_count < run.steps:
            run = run.replace(optimizer=replace(run.optimizer, momentum=0.0, nesterov=False, dampening=0.0))
        return replace(self, run=_calibrated(run))

    def experiment(self, attack: object, models: int, seed: int, open_ended: bool = False) -> Experiment:
        """Return the audit of the subject by this attack; None: by the default attack of the problem."""
        return experiment_on(self.problem, Given(self.run, attack, models, seed, self.test, self.words, open_ended))

    def default_store(self, experiment: Experiment) -> Path:
        """Return a store path that is unique to the audit, so that the same command finds the store again."""
        return Path("runs") / f"{self.name}-{experiment.identity().digest()}.sqlite"


def find_subject(data: str, model: str, trainer: str | None, run: Callable[[int | None], DPSGD | None]) -> Subject:
    """Return the subject that the command line names. ``run(examples)`` returns the run of its options, or None."""
    if trainer is not None:
        return _users(trainer, run(None))
    from lastiterate.data import load

    dataset = load(data)
    described = run(len(dataset.x_train))
    from lastiterate.training.recipes import recipe  # imports JAX: only if there is something to train

    usual = recipe(dataset, model)
    name = f"{re.sub('[^a-z0-9]+', '-', dataset.name.lower()).strip('-')}-{model}"
    words = f"{model} on {dataset.name}, {len(dataset.x_train):,} examples"
    return Subject(described or usual.run, usual.problem, words, name, usual.test)


def with_defaults(
    run: DPSGD, *, calibrated: bool, examples: int | None, usual: Callable[[float], SGD] | None = None
) -> DPSGD:
    """Add the default optimizer and noise to a run; ``usual`` returns the optimizer for a batch size."""
    if run.optimizer is None and run.weights is None and examples:
        batch = max(1.0, run.epochs / run.steps * examples)
        # With momentum, the increments between releases are not independent.
        momentum = DEFAULT_MOMENTUM if run.release_count in (1, run.steps) else 0.0
        run = run.replace(optimizer=usual(batch) if usual else SGD(0.5 / batch, momentum=momentum))
    if calibrated:
        return run
    if not examples or not run.amplifies:
        raise ValueError(
            "noise_multiplier must be given for a trainer, and for shuffled batches or those of fixed size: the "
            "default, epsilon 8 by composition, is for Poisson sampling"
        )
    return _calibrated(run)


def _calibrated(run: DPSGD) -> DPSGD:
    """Return the run with the default noise: epsilon 8 at delta 1e-5, by composition."""
    return calibrate(run, epsilon=DEFAULT_EPSILON, delta=DEFAULT_DELTA, analysis=composition)


def _users(where: str, run: DPSGD | None) -> Subject:
    """Return the subject of a trainer in a Python file, which may also define ``run`` and ``attack``."""
    file, name, module = _imported("trainer", where)
    train = getattr(module, name, None)
    if not callable(train):
        raise ValueError(f"trainer must name a function in {str(file)!r}, got {name!r}")
    own = getattr(module, "run", None)
    if run is not None and own is not None:
        raise ValueError(f"the run must be described either by options or in {str(file)!r}, not by both")
    described = run or own
    if not isinstance(described, DPSGD):
        raise ValueError(f"the run must be described by options, or as run = lastiterate.DPSGD(...) in {str(file)!r}")
    return Subject(
        described, train, f"{file.name}:{name}", file.stem, None, *(getattr(module, each, None) for each in _ALSO)
    )


def users_attack(where: str) -> object:
    """Return the attack in a Python file: the named instance, or an instance of the named class."""
    file, name, module = _imported("attack", where)
    if not hasattr(module, name):
        raise ValueError(f"attack must name a class in {str(file)!r}, got {name!r}")
    named = getattr(module, name)
    return _made(named, where) if isinstance(named, type) else named


def _made(kind: type, where: str) -> object:
    """Instantiate a user's class. Raise if it requires arguments."""
    try:
        signature(kind).bind()
    except ValueError:  # the signature is unknown
        pass
    except TypeError as error:
        raise ValueError(
            f"attack must be a class that is made without arguments, or an instance, got {where!r}: {error}"
        ) from None
    return guarded(kind, f"the making of {where!r}", AttackFailed)


def _imported(what: str, where: str) -> tuple[Path, str, ModuleType]:
    """Return the file of FILE.py:NAME, the name, and the imported module."""
    path, _, name = where.rpartition(":")
    file = Path(path)
    if not path or not name.isidentifier():
        raise ValueError(f"{what} must be FILE.py:NAME, got {where!r}")
    if not file.is_file():
        raise ValueError(f"{what} must be in a file that exists, got {str(file)!r}")
    if not is_python(file):
        raise ValueError(f"{what} must be in a Python file, got {str(file)!r}")
    failure = AttackFailed if what == "attack" else TrainerFailed
    return file, name, guarded(partial(import_file, file), f"the import of {str(file)!r}", failure)
