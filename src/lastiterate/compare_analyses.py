"""Comparison of the analyses of a run: the value of each analysis, or the reason why it has none.

The answers, runs and optimizers are also written as JSON fields here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from lastiterate.common.validation import function, instance, number, one_of
from lastiterate.optimizer import is_adam, is_sgd
from lastiterate.registry import ANALYSES, SIDE_BY_SIDE, kind_of_prediction
from lastiterate.run import DPSGD, require_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lastiterate.common.types import Fields, Track
    from lastiterate.privacy.curve import PrivacyCurve

    Curves = Mapping[str, Callable[[DPSGD], PrivacyCurve]]


QUICK_STEPS = 1000
_Key = TypeVar("_Key")


@dataclass(frozen=True)
class Answer:
    """A finite value, or the reason why there is none."""

    value: float | None
    reason: str = ""


def ask(
    run: DPSGD,
    name: str,
    question: Callable[[PrivacyCurve], float],
    curve: Callable[[DPSGD], PrivacyCurve] | None = None,
) -> Answer:
    """Return the answer of one analysis, or of ``curve`` in its place if the analysis needs more than the run.

    The maximum over steps is not computed if it takes long: more than 1,000 steps of different weight.

    If the analysis refuses the run or the question, the refusal becomes the reason of the answer. Callers must
    therefore check arguments that no analysis can accept, such as a delta of 2, before they ask.
    """
    require_run(run)
    one_of("name", name, ANALYSES)
    function("question", question, "a function of a PrivacyCurve")
    if curve is not None:
        function("curve", curve, "a function of a run, or None")
    try:
        if name == "max_over_steps" and run.steps > QUICK_STEPS and np.ndim(run.effective_weights()):
            return Answer(None, f"not computed for more than {QUICK_STEPS} steps of different weight: it takes long")
        value = question((curve or ANALYSES[name].curve)(run))
    except ValueError as refusal:
        return Answer(None, str(refusal))
    return Answer(value) if math.isfinite(value) else Answer(None, "larger than a floating-point number holds")


def ask_all(
    run: DPSGD,
    question: Callable[[PrivacyCurve], float],
    *also: str,
    track: Track = iter,
    curves: Curves | None = None,
) -> dict[str, Answer]:
    """Return the answer of each analysis by its name.

    The three analyses of ``SIDE_BY_SIDE`` are always asked. If composition does not hold, the guarantee that does is
    asked, too. ``also`` names further analyses. ``curves`` holds analyses that need more than the run, such as a
    contraction.
    """
    curves = require_curves(curves)
    names = dict.fromkeys([*SIDE_BY_SIDE, guarantee_of(run), *curves, *also])
    return {name: ask(run, name, question, curves.get(name)) for name in track(list(names))}


def guarantee_of(run: DPSGD) -> str:
    """Return the name of the analysis that is a guarantee for the run's sampling."""
    return "composition" if require_run(run).amplifies else "no_amplification"


def noise_rows(
    runs: dict[_Key, DPSGD],
    names: Sequence[str],
    epsilon: float,
    delta: float,
    track: Track = iter,
    curves: Curves | None = None,
) -> list[tuple[_Key, Fields]]:
    """Return, for each analysis and each run, the noise with which the analysis reaches the target for the run.

    Each row has the key of its run, and the answers of every analysis with that noise or the reason why there is none.
    Raises ValueError if no row has a noise multiplier.
    """
    number("epsilon", epsilon, 0.0, open_low=True)
    number("delta", delta, 0.0, 1.0, open_low=True, open_high=True)
    for name in instance("names", names, Sequence, "a list of analyses"):
        one_of("names", name, ANALYSES)
    for run in instance("runs", runs, dict, "runs by their keys").values():
        require_run(run)
    if not names or not runs:
        raise ValueError("names and runs must hold one each at least, got none")
    curves = require_curves(curves)
    asked = [(key, run, name) for name in names for key, run in runs.items()]
    rows = [(key, _noise_row(run, name, epsilon, delta, curves)) for key, run, name in track(asked)]
    if all(row["noise_multiplier"] is None for _, row in rows):
        raise ValueError(rows[0][1]["noise_multiplier_reason"])
    return rows


def require_curves(curves: Curves | None) -> Curves:
    """Return the analyses that need more than a run, by name. Raise if ``curves`` is not a dictionary or None."""
    if curves is None:
        return {}
    return instance("curves", curves, dict, "a dictionary of analyses by their names, or None")


def _noise_row(run: DPSGD, name: str, epsilon: float, delta: float, curves: Curves) -> Fields:
    from lastiterate.privacy.analyses.calibrate import calibrate

    try:
        analysis = curves.get(name) or ANALYSES[name].curve
        run = calibrate(run, epsilon=epsilon, delta=delta, analysis=analysis)
        noise = Answer(float(run.noise_multiplier))
        answers = ask_all(run, lambda curve: curve.epsilon(delta), curves=curves)
    except ValueError as refusal:
        noise = Answer(None, str(refusal))
        answers = dict.fromkeys([*SIDE_BY_SIDE, guarantee_of(run), *curves], noise)
    answered = answer_fields({"noise_multiplier": noise, **answers})
    return {"analysis": name, "is_guarantee": ANALYSES[name].is_guarantee, **answered}


def answer_fields(answers: dict[str, Answer], run: DPSGD | None = None) -> Fields:
    """Return answers as JSON: ``name`` and, if null, ``name_reason``; first the kind of prediction for ``run``."""
    fields: Fields = prediction_fields(run)
    for name, answer in answers.items():
        fields[name] = answer.value
        if answer.value is None:
            fields[f"{name}_reason"] = answer.reason
    return fields


def prediction_fields(run: DPSGD | None) -> Fields:
    """Return the kind of prediction that ``last_iterate`` is for a run; empty if it is the heuristic itself."""
    if run is None or not is_adam(require_run(run).optimizer):
        return {}
    return {"prediction": kind_of_prediction(run)}


def run_fields(run: DPSGD) -> Fields:
    """Return a run as JSON. Fields that were added later are included only if they are set."""
    fields = {name: _plain(getattr(run, name)) for name in ("steps", "sample_rate", "noise_multiplier", "sampling")}
    if run.batches_per_epoch is not None:
        fields["batches_per_epoch"] = run.batches_per_epoch
    if run.weights is not None:
        fields["weights"] = _plain(run.weights)
    return fields | optimizer_fields(run) | released_fields(run)


def optimizer_fields(run: DPSGD) -> Fields:
    """Return the optimizer with its name; empty if there is none."""
    optimizer = require_run(run).optimizer
    if optimizer is None:
        return {}
    name = "sgd" if is_sgd(optimizer) else "adamw" if optimizer.decoupled else "adam"
    return {"optimizer": {"name": name, **{each: _plain(value) for each, value in vars(optimizer).items()}}}


def released_fields(run: DPSGD) -> Fields:
    """Return releases, group size, neighbours and correlated noise, if they are not the defaults."""
    fields: Fields = {}
    if run.releases is not None:
        fields["releases"] = list(run.releases) if isinstance(run.releases, tuple) else run.releases
    if run.group_size > 1:
        fields["group_size"] = run.group_size
    if run.neighbours != "add-remove":
        fields["neighbours"] = run.neighbours
    if run.noise_filter is not None:
        fields["noise_filter"] = list(run.noise_filter)
    if run.min_separation > 1:
        fields["min_separation"] = run.min_separation
    return fields


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, np.ndarray) else value
