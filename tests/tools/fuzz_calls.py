"""Calls of every public function, class and method, with good values and one or two hostile ones.

    python -m tests.tools.fuzz_calls --calls 2000 --seed 0

What must hold: a call succeeds, or it raises a ValueError or a TypeError that names an argument. Where an argument is a
path there may be an OSError, and a training that was asked to diverge may say so. What is public is read off the
modules and their signatures; a parameter that is new needs a good value only if it has no default.
"""

import argparse
import contextlib
import inspect
import io
import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from lastiterate.data.files import BadFile
from tests.tools.call_values import GOOD, INSTANCES, hostile_values

# Modules, with the names that users call where a module has others beside them.
PUBLIC = [
    "lastiterate",
    "lastiterate.compare_analyses",
    "lastiterate.attacks",
    "lastiterate.auditing.engines.engine",
    "lastiterate.auditing.engines.ray_engine:Ray",
    "lastiterate.auditing.evidence.estimates:Question,predictions_of",
    "lastiterate.auditing.evidence.audit_result:AuditResult",
    "lastiterate.checking.check_result:CheckResult",
    "lastiterate.paper.counterexamples",
    "lastiterate.paper.counterexamples.setting:Setting",
    "lastiterate.data",
    "lastiterate.integrations.gradient_canary",
    "lastiterate.integrations.own_trainer",
    "lastiterate.integrations.dp_accounting",
    "lastiterate.integrations.opacus",
    "lastiterate.lm",
    "lastiterate.schedules",
    "lastiterate.training",
    "lastiterate.training.models:CNN,MLP,Conv,Dense,GroupNorm,WideResNet,accuracy,augmentation_multiplicity",
    "lastiterate.training.problems:linear,logistic,binary_logistic,ridge,clip_features,feature_norms,mlp,cnn,wide_resnet",
    "lastiterate.training.recipes",
]
# Called by the library itself with what it has made, from within Ray, or by JAX in a compiled program.
_INNER = re.compile(
    r"Engine|cross_entropy|random_view|Answer|run_fields|released_fields|predictions_of|Attack|References|Counterexample|extra|required|require_plain|answer_fields|spell_or_none|"
    r"history_from_opacus|(Ray|Local|Displacement|GradientCanary|Problem|Question|Setting|TrainedChunk)\.\w+|"
    r"\w+\.(craft|craft_many|arm|expected|words|trained_problem|scores|sample|compose)"
)
_PATHS = ("path", "folder", "store", "model")
# What a user's own function raises is heard as it is.
_FUNCTIONS = {"question", "on_iterate", "loss", "gradient", "regulariser", "regulariser_gradient", "model", "analysis"}
_FUNCTIONS |= {"initial", "curve", "on_release"}
_SECONDS = 60


class TooLong(BaseException):
    """The call took longer than it may."""


@dataclass(frozen=True)
class Target:
    """Something to call by keywords: a function, a class, or a method of some instance."""

    name: str
    call: Callable[..., Any]
    parameters: dict[str, inspect.Parameter]


@dataclass(frozen=True)
class Called:
    """What came of a call: ``hostile`` are the arguments that were, ``names`` those that there are."""

    target: str
    hostile: dict[str, str]
    names: tuple[str, ...]
    error: BaseException | None
    seconds: float

    def fault(self) -> str | None:
        """What is wrong with it, in words."""
        if self.error is None:
            return None
        if isinstance(self.error, TooLong):
            return "takes too long"
        if isinstance(self.error, (OSError, BadFile)) and any(name in _PATHS for name in self.hostile):
            return None
        if type(self.error).__name__ == "TrainingDiverged":
            return None
        if not isinstance(self.error, (ValueError, TypeError)):
            return f"raises {type(self.error).__name__}"
        message = str(self.error)
        names = [re.escape(name.removesuffix("s")) for name in self.names]  # one of the methods is a method
        if not any(re.search(rf"(?<!\w){name}s?(?!\w)", message) for name in names):
            return f"raises a {type(self.error).__name__} that names no argument"
        return "echoes a long value" if len(message) > 1000 else None


def targets() -> list[Target]:
    """All that is public and can be called."""
    found = []
    for entry in PUBLIC:
        module_name, _, some = entry.partition(":")
        module = import_module(module_name)
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module_name]
        for name in some.split(",") if some else getattr(module, "__all__", own):
            value = getattr(module, name)
            if name.startswith("_") or not callable(value) or _INNER.fullmatch(name) or _is_exception(value):
                continue
            found.append(_target(f"{module_name}.{name}", value))
            if inspect.isclass(value):
                found += [_target(f"{module_name}.{name}.{each}", call) for each, call in _methods(value)]
    return found


def _is_exception(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseException)


def _methods(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, value in vars(kind).items():
        if name.startswith("_") or _INNER.fullmatch(f"{kind.__name__}.{name}"):
            continue
        if isinstance(value, (classmethod, staticmethod)):
            yield name, getattr(kind, name)
        elif inspect.isfunction(value) and kind.__name__ in INSTANCES:
            yield name, _Late(kind.__name__, name, value)


class _Late:
    """A method of an instance that is made when it is called."""

    def __init__(self, kind: str, name: str, function: Callable[..., Any]) -> None:
        self.kind, self.name = kind, name
        whole = inspect.signature(function)
        self.__signature__ = whole.replace(parameters=list(whole.parameters.values())[1:])

    def __call__(self, **arguments: Any) -> Any:
        result = getattr(INSTANCES[self.kind](), self.name)(**arguments)
        return list(result) if inspect.isgenerator(result) else result


def _target(name: str, call: Callable[..., Any]) -> Target:
    parameters = dict(inspect.signature(call).parameters)
    plain = {
        key: each
        for key, each in parameters.items()
        if each.kind.name in ("POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY") and key != "track"  # which commands pass on
    }
    if any(each.kind.name == "VAR_KEYWORD" for each in parameters.values()):  # DPSGD.replace takes its fields
        plain |= dict(inspect.signature(import_module("lastiterate").DPSGD).parameters)
    return Target(name.removeprefix("lastiterate."), call, plain)


def calls(seed: int) -> Iterator[tuple[Target, dict[str, Any], dict[str, str]]]:
    """Calls without end: target, arguments, and which of them are hostile. Every parameter has its turn."""
    rng = random.Random(seed)
    pairs = [(target, parameter) for target in targets() for parameter in target.parameters or [""]]
    while True:
        for target, parameter in rng.sample(pairs, len(pairs)):
            arguments = {
                name: rng.choice(_good(target, name))()
                for name, each in target.parameters.items()
                if each.default is inspect.Parameter.empty or (_is_known(target, name) and rng.random() < 0.3)
                if not target.name.endswith(".replace")
            }
            others = list(target.parameters)
            chosen = {parameter, *([rng.choice(others)] if others and rng.random() < 0.3 else [])} - {""}
            hostile = {name: rng.choice(hostile_values()) for name in sorted(chosen)}
            for name, (_, make) in hostile.items():
                arguments[name] = make()
            if not any(callable(arguments[name]) for name in _FUNCTIONS & chosen):
                yield target, arguments, {name: words for name, (words, _) in hostile.items()}


def _is_known(target: Target, name: str) -> bool:
    return name in GOOD or f"{target.name}.{name}" in GOOD


def _good(target: Target, name: str) -> list[Callable[[], Any]]:
    """Values of records that the library makes are not checked, so that None will do for those."""
    return GOOD.get(f"{target.name}.{name}") or GOOD.get(name) or [lambda: None]


def make_call(target: Target, arguments: dict[str, Any], hostile: dict[str, str]) -> Called:
    """Do it, quietly and not for too long."""
    error: BaseException | None = None
    began = time.monotonic()
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(_SECONDS)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            target.call(**arguments)
    except (Exception, TooLong, SystemExit) as raised:
        error = raised
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return Called(target.name, hostile, tuple(target.parameters), error, time.monotonic() - began)


def _too_long(number: int, frame: object) -> None:
    raise TooLong


def run_calls(count: int, seed: int) -> Iterator[Called]:
    """Call so often, in a temporary folder."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            source = calls(seed)
            for _ in range(count):
                yield make_call(*next(source))
        finally:
            os.chdir(here)


def main() -> int:
    """Call, print what does not hold and a count of what came of it; status 1 if anything does not."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    ends: Counter[str] = Counter()
    faulty = 0
    for called in run_calls(asked.calls, asked.seed):
        ends["succeeded" if called.error is None else type(called.error).__name__] += 1
        if fault := called.fault():
            faulty += 1
            print(f"{called.target}({', '.join(f'{name}={value}' for name, value in called.hostile.items())})")
            print(f"    {fault}: {' '.join(str(called.error).split())[:200]} ({called.seconds:.1f} s)")
            for frame in traceback.extract_tb(called.error.__traceback__)[-1:] if called.error else []:
                print(f"    at {frame.filename}:{frame.lineno}")
    print(f"{asked.calls} calls: {', '.join(f'{count} {end}' for end, count in ends.most_common())}; {faulty} faulty")
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
