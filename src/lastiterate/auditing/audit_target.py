"""The subject of an audit from the command line: an included data set and model, or a trainer in a user's file."""

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
from lastiterate.common.errors import AttackFailed, BadArgument, TrainerFailed, guarded
from lastiterate.common.types import IntegerArray, NumberArray
from lastiterate.common.validation import told
from lastiterate.optimizer import SGD, is_sgd
from lastiterate.privacy.analyses.calibrate import calibrate
from lastiterate.privacy.analyses.composition import composition
from lastiterate.run import DPSGD

DEFAULT_EPSILON, DEFAULT_DELTA = 8.0, 1e-5  # guarantee by composition if no noise multiplier is given
DEFAULT_MOMENTUM = 0.9


@dataclass(frozen=True, eq=False)
class Subject:
    """A run, its problem and its name. A user's file may set the last three fields."""

    run: DPSGD
    problem: Any
    words: str
    name: str
    test: tuple[NumberArray, IntegerArray] | None = None
    attack: object = None
    initial: Any = None
    batch_size: Any = None

    def protecting(self, **fields: Any) -> Subject:
        """Return the subject with changed releases, group_size or neighbours. The noise is calibrated again."""
        run = self.run.replace(**fields)
        if run == self.run:
            return self
        # With momentum, the increments between releases are not independent.
        if is_sgd(run.optimizer) and 1 < run.release_count < run.steps:
            run = run.replace(optimizer=replace(run.optimizer, momentum=0.0, nesterov=False, dampening=0.0))
        return replace(self, run=_calibrated(run))

    def experiment(self, attack: object, models: int, seed: int, open_ended: bool = False) -> Experiment:
        """Return the audit of the subject by this attack. If it is None, the problem's default attack is used."""
        return experiment_on(self.problem, Given(self.run, attack, models, seed, self.test, self.words, open_ended))

    def default_store(self, experiment: Experiment) -> Path:
        """Return a path that depends only on the audit, so that the same command finds the store again."""
        return Path("runs") / f"{self.name}-{experiment.identity().digest()}.sqlite"


def find_subject(
    data: str,
    model: str,
    trainer: str | None,
    run: Callable[[int | None], DPSGD | None],
    feature_norm: float | None = None,
) -> Subject:
    """Return the subject named on the command line.

    ``run(examples)`` returns the run that the command-line options describe, or None.
    """
    if trainer is not None:
        if feature_norm is not None:
            raise ValueError(f"feature_norm is for features in an .npz file, got {feature_norm!r} with a trainer")
        return _users(trainer, run(None))
    from lastiterate.data import load

    dataset = load(data, feature_norm)
    described = run(len(dataset.x_train))
    from lastiterate.training.recipes import recipe  # imports JAX, which takes time

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
    if not examples or run.guarantee != "composition":
        why = "the default noise, for epsilon 8 by composition, is only for other sampling"
        raise BadArgument(
            "noise_multiplier", f"must be given for a trainer, and for shuffled or fixed-size batches: {why}"
        )
    return _calibrated(run)


def _calibrated(run: DPSGD) -> DPSGD:
    return calibrate(run, epsilon=DEFAULT_EPSILON, delta=DEFAULT_DELTA, analysis=composition)


def _users(where: str, run: DPSGD | None) -> Subject:
    file, name, module = _imported("trainer", where)
    train = getattr(module, name, None)
    if not callable(train):
        raise BadArgument("trainer", f"must name a function in {str(file)!r}, got {name!r}")
    own = getattr(module, "run", None)
    if run is not None and own is not None:
        raise ValueError(f"the run must be described either by options or in {str(file)!r}, not by both")
    described = run or own
    if not isinstance(described, DPSGD):
        raise ValueError(f"the run must be described by options, or as run = lastiterate.DPSGD(...) in {str(file)!r}")
    also = (getattr(module, each, None) for each in ("attack", "initial", "batch_size"))
    return Subject(described, train, f"{file.name}:{name}", file.stem, None, *also)


def users_attack(where: str) -> object:
    """Return the attack in a Python file: the named instance, or an instance of the named class."""
    file, name, module = _imported("attack", where)
    if not hasattr(module, name):
        raise BadArgument("attack", f"must name a class in {str(file)!r}, got {name!r}")
    named = getattr(module, name)
    if not isinstance(named, type):
        return named
    try:
        signature(named).bind()
    except ValueError:  # the signature is unknown
        pass
    except TypeError as error:
        must = "attack must be an instance, or a class that needs no arguments"
        raise ValueError(f"{must}, got {told(where)}: {error}") from None
    return guarded(named, f"the making of {where!r}", AttackFailed)


def _imported(what: str, where: str) -> tuple[Path, str, ModuleType]:
    path, _, name = where.rpartition(":")
    file = Path(path)
    if not path or not name.isidentifier():
        raise ValueError(f"{what} must be FILE.py:NAME, got {told(where)}")
    if not file.is_file():
        raise ValueError(f"{what} must be in a file that exists, got {str(file)!r}")
    if not is_python(file):
        raise ValueError(f"{what} must be in a Python file, got {str(file)!r}")
    failure = AttackFailed if what == "attack" else TrainerFailed
    return file, name, guarded(partial(import_file, file), f"the import of {str(file)!r}", failure)
