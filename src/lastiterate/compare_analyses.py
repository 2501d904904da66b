"""Comparison of the analyses of a run: the value of each analysis, or the reason why it has none.

Functions for answers, runs and optimizers as JSON fields are here, too.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias, TypeVar

import numpy as np

from lastiterate.common.types import Fields, Track, with_reasons
from lastiterate.common.validation import function, instance, one_of
from lastiterate.formatting import spell_up
from lastiterate.labels import ANALYSES, SIDE_BY_SIDE, kind_of_prediction
from lastiterate.optimizer import APPROXIMATION
from lastiterate.privacy.curve import PrivacyCurve, Target
from lastiterate.run import DPSGD, require_run

Curves: TypeAlias = Mapping[str, Callable[[DPSGD], PrivacyCurve]]  # analyses that need more than the run
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
    """Return the answer of one analysis. If an analysis needs more than the run, ``curve`` makes its privacy curve.

    "max_over_steps" is not computed for more than 1,000 steps of different weights, because it takes long.

    If the analysis raises ValueError for the run or the question, the message becomes the reason of the answer. Callers
    must therefore check arguments that no analysis accepts, such as a delta of 2, beforehand.
    """
    require_run(run)
    one_of("name", name, ANALYSES)
    function("question", question, "a function of a PrivacyCurve")
    if curve is not None:
        function("curve", curve, "a function of a run, or None")
    try:
        if name == "max_over_steps" and run.steps > QUICK_STEPS and np.ndim(run.effective_weights()):
            return Answer(None, f"not computed for more than {QUICK_STEPS} steps of different weights: it takes long")
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
    """Return the answer of each analysis by its name: guarantees first, then the prediction, then the others.

    The three analyses of ``SIDE_BY_SIDE`` and the analysis that guarantees the run are always included. ``also`` names
    further analyses. ``curves`` has analyses that need more than the run, such as a contraction.
    """
    curves = require_curves(curves)
    names = dict.fromkeys([require_run(run).guarantee, *curves, "last_iterate", *SIDE_BY_SIDE, *also])
    answers = {name: ask(run, name, question, curves.get(name)) for name in track(list(names))}
    if (in_bins := instead_of_shuffling(run)) and (value := ask(in_bins, "composition", question).value) is not None:
        reason = f"{answers['composition'].reason} and would have the guarantee {spell_up(value)} here"
        answers["composition"] = Answer(None, reason)
    return answers


def instead_of_shuffling(run: DPSGD) -> DPSGD | None:
    """Return the run with balls in bins instead of shuffled batches, or None if it has other sampling."""
    if require_run(run).sampling != "shuffled" or run.noise_filter is not None or run.batches_per_epoch is None:
        return None
    return run.replace(sampling="balls-in-bins", sample_rate=1.0 / run.batches_per_epoch)


def support_matrix() -> str:
    """Return a Markdown table that shows which analyses support which features of a run."""
    from lastiterate.supported_runs import FEATURES

    analyses = list(ANALYSES.values())
    lines = [["a run with", *(f"`{each.name}`" for each in analyses)], ["---"] * (1 + len(analyses))]
    lines += [[each.label, *("yes" if each in a.supports.features else "" for a in analyses)] for each in FEATURES]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def noise_rows(
    runs: dict[_Key, DPSGD],
    names: Sequence[str],
    target: Target,
    track: Track = iter,
    curves: Curves | None = None,
) -> list[tuple[_Key, Fields]]:
    """Return, for each analysis and each run, the noise at which the analysis reaches the target.

    Each row has the key of its run and JSON fields: the noise or the reason why there is none, and the number of the
    target, such as epsilon, by all analyses with this noise. Raise ValueError if no row has a noise multiplier.
    """
    for name in instance("names", names, Sequence, "a list of analyses"):
        one_of("names", name, ANALYSES)
    for run in instance("runs", runs, dict, "runs by their keys").values():
        require_run(run)
    instance("target", target, Target, "a lastiterate.privacy.curve.Target")
    if not names or not runs:
        raise ValueError("names and runs must not be empty: give at least one analysis and one run")
    curves = require_curves(curves)
    asked = [(key, run, name) for name in names for key, run in runs.items()]
    rows = [(key, _noise_row(run, name, target, curves)) for key, run, name in track(asked)]
    if all(row["noise_multiplier"] is None for _, row in rows):
        raise ValueError(rows[0][1]["noise_multiplier_reason"])
    return rows


def require_curves(curves: Curves | None) -> Curves:
    """Return ``curves``, or an empty dictionary for None. Raise ValueError for anything else."""
    if curves is None:
        return {}
    return instance("curves", curves, dict, "a dictionary of analyses by their names, or None")


def _noise_row(run: DPSGD, name: str, target: Target, curves: Curves) -> Fields:
    from lastiterate.privacy.analyses.calibrate import calibrate

    try:
        analysis = curves.get(name) or ANALYSES[name].curve
        run = calibrate(run, analysis=analysis, **target.fields())
        noise = Answer(float(run.noise_multiplier))
        answers = ask_all(run, target.of, curves=curves)
    except ValueError as refusal:
        noise = Answer(None, str(refusal))
        answers = dict.fromkeys([run.guarantee, *curves, "last_iterate", *SIDE_BY_SIDE], noise)
    answered = answer_fields({"noise_multiplier": noise, **answers})
    return {"analysis": name, "is_guarantee": ANALYSES[name].is_guarantee, **answered}


def answer_fields(answers: dict[str, Answer], run: DPSGD | None = None) -> Fields:
    """Return the kind of prediction and the answers as JSON fields. ``<name>_reason`` says why a field is null."""
    values = {name: answer.value for name, answer in answers.items()}
    return prediction_fields(run) | with_reasons(values, {name: answer.reason for name, answer in answers.items()})


def prediction_fields(run: DPSGD | None) -> Fields:
    """Return the kind of prediction that ``last_iterate`` is for a run. Empty if it is the heuristic itself."""
    if run is None or require_run(run).prediction != APPROXIMATION:
        return {}
    return {"prediction": kind_of_prediction(run)}


_ALWAYS = ("steps", "sample_rate", "noise_multiplier", "sampling")
_ELSEWHERE = ("clip_norm", "optimizer", "weights", "batches_per_epoch")  # not among the released fields


def run_fields(run: DPSGD) -> Fields:
    """Return a run as JSON fields, without the clipping norm. Other than ``_ALWAYS``, fields are included if set."""
    names = [each.name for each in fields(DPSGD) if each.name not in ("clip_norm", "optimizer")]
    return {name: _plain(getattr(run, name)) for name in names if name in _ALWAYS or _is_set(run, name)} | (
        optimizer_fields(run)
    )


def optimizer_fields(run: DPSGD) -> Fields:
    """Return the optimizer with its name as JSON. Empty if there is no optimizer."""
    optimizer = require_run(run).optimizer
    if optimizer is None:
        return {}
    return {"optimizer": {"name": optimizer.name, **{each: _plain(value) for each, value in vars(optimizer).items()}}}


def released_fields(run: DPSGD) -> Fields:
    """Return releases, group size, neighbours and correlated noise, if they are not the defaults."""
    names = [each.name for each in fields(DPSGD) if each.name not in (*_ALWAYS, *_ELSEWHERE)]
    return {name: _plain(getattr(run, name)) for name in names if _is_set(run, name)}


def _is_set(run: DPSGD, name: str) -> bool:
    default = "add-remove" if name == "neighbours" else getattr(DPSGD, name)
    value = getattr(run, name)
    return value is not None if default is None else bool(value != default)


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value
