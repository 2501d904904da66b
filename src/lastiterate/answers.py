"""One question put to the three analyses of a run; where one has no answer, the reason stands in its place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lastiterate.plot.words import ANALYSES

if TYPE_CHECKING:
    from collections.abc import Callable

    from lastiterate.plot.style import Track
    from lastiterate.privacy.curve import PrivacyCurve
    from lastiterate.run import DPSGD


QUICK_STEPS = 1000


@dataclass(frozen=True)
class Answer:
    """A finite value, or the reason why there is none."""

    value: float | None
    reason: str = ""


def find_analysis(name: str) -> Callable[[DPSGD], PrivacyCurve]:
    """The analysis of this name, as Python or the command line spells it."""
    import lastiterate

    found: Callable[[DPSGD], PrivacyCurve] = getattr(lastiterate, name.replace("-", "_"))
    return found


def ask(run: DPSGD, name: str, question: Callable[[PrivacyCurve], float]) -> Answer:
    """What one analysis says. The maximum over steps is asked for only where it does not keep people waiting.

    Whatever the analysis refuses, the run or the question, is its reason and leaves the others alone. What nobody could
    answer, such as a delta of 2, must therefore be refused before anyone is asked.
    """
    try:
        if name == "max_over_steps" and run.steps > QUICK_STEPS and np.ndim(run.effective_weights()):
            return Answer(None, f"not computed for more than {QUICK_STEPS} steps of different weight: it takes long")
        value = question(find_analysis(name)(run))
    except ValueError as refusal:
        return Answer(None, str(refusal))
    return Answer(value) if math.isfinite(value) else Answer(None, "larger than a floating-point number holds")


def ask_all(
    run: DPSGD, question: Callable[[PrivacyCurve], float], *also: str, track: Track = iter
) -> dict[str, Answer]:
    """What each analysis says, by its name; ``also`` names more than the three.

    Where the standard one does not hold, the bound that does comes with them.
    """
    names = dict.fromkeys([*ANALYSES, guarantee_of(run), *also])
    return {name: ask(run, name, question) for name in track(list(names))}


def guarantee_of(run: DPSGD) -> str:
    """The analysis that is a guarantee for this way of drawing batches."""
    return "no_amplification" if run.sampling in ("shuffled", "fixed") else "composition"


def answer_fields(answers: dict[str, Answer]) -> dict[str, Any]:
    """Answers as JSON: ``name`` and, where that is null, ``name_reason``."""
    fields: dict[str, Any] = {}
    for name, answer in answers.items():
        fields[name] = answer.value
        if answer.value is None:
            fields[f"{name}_reason"] = answer.reason
    return fields


def run_fields(run: DPSGD) -> dict[str, Any]:
    """A run as JSON: the fields that describe it, weights and optimizer only where given."""
    fields = {name: _plain(getattr(run, name)) for name in ("steps", "sample_rate", "noise_multiplier", "sampling")}
    if run.weights is not None:
        fields["weights"] = _plain(run.weights)
    if run.optimizer is not None:
        fields["optimizer"] = {name: _plain(value) for name, value in vars(run.optimizer).items()}
    return fields


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
