"""The command ``lastiterate estimate``: an empirical epsilon from the scores of your own attack."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastiterate.cli import option_values as values
from lastiterate.cli.audit_options import Anytime, ClaimEpsilon, ClaimNoise, Fault, Strict, UsualDelta
from lastiterate.cli.exit_status import OptionError
from lastiterate.cli.option_values import unfold
from lastiterate.cli.options import Json, MethodOptions, PerStepOption, SizeOptions, choice, number_option, option
from lastiterate.registry import METHODS, ONE_RUN_METHODS, PAIRED_METHODS, THRESHOLDS

if TYPE_CHECKING:
    from rich.text import Text

    from lastiterate.auditing.evidence.estimate import Estimate
    from lastiterate.common.types import JsonObject
    from lastiterate.run import DPSGD

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="CSV with columns world (in or out) and score; for one run also coin.")
]
Confidence = Annotated[float, number_option("--confidence", "With which the bound holds, jointly (default: 0.95).")]
Method = Annotated[
    str,
    choice(
        "--method",
        (*METHODS, "all"),
        "What is assumed (default: clopper-pearson, any mechanism). The families last-iterate and composition need the "
        "run.",
    ),
]
Threshold = Annotated[
    float | str,
    option(
        "--threshold", values.threshold, "NUMBER|split|corrected|uncorrected|a-priori", "How chosen (default: split)."
    ),
]
Noise = Annotated[
    PerStepOption | None,
    option("--noise-multiplier", values.per_step, "NUMBER", "Of the run; only a threshold chosen a-priori needs it."),
]


@unfold
def estimate(
    file: File,
    size: SizeOptions,
    training: MethodOptions,
    noise_multiplier: Noise = None,
    delta: UsualDelta = 1e-5,
    confidence: Confidence = 0.95,
    method: Method = "clopper-pearson",
    threshold: Threshold = "split",
    claim_epsilon: ClaimEpsilon = None,
    claim_noise: ClaimNoise = None,
    fault: Fault = 0.5,
    anytime: Anytime = False,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Estimate an empirical epsilon from your own attack's scores.

    FILE has one row a model: world, which is "in" if it was trained with the canary and "out" if not, and score, which
    is larger the more it speaks for the canary. The result is a lower bound that holds with the given confidence. A
    claim is judged, too. For a one-run method a row is a canary, and a column coin (or canary) names its fair coin.

    \b
    Exit status 1: the claim is refuted. 4: the scores cannot tell.

    \b
    Example:
      lastiterate estimate scores.csv --delta 1e-5 --confidence 0.95
    """
    import lastiterate
    from lastiterate.auditing.evidence.claims import check_fault, claim_of
    from lastiterate.auditing.evidence.estimate import estimate_or_zero
    from lastiterate.auditing.evidence.one_run.guesses import usual_guesses
    from lastiterate.auditing.evidence.score_signal import Kind
    from lastiterate.auditing.evidence.verdict import judge_scores
    from lastiterate.auditing.load_evidence import read_scores
    from lastiterate.cli.audit_output import estimate_fields, status_of, strength_fields, verdict_note
    from lastiterate.cli.output import print_json, print_rows

    run = _run(size, training, noise_multiplier)
    validity = "anytime" if anytime else "fixed"
    if threshold == "a-priori" and noise_multiplier is None and method not in ONE_RUN_METHODS:
        raise OptionError("--threshold a-priori needs --noise-multiplier and the run: it is predicted for them")
    if method != "all" and METHODS[method].family is not None and run is None:
        raise OptionError(f"--method {method} needs the run: give --steps and --sample-rate, or batch sizes")
    claimed = claim_epsilon is not None or claim_noise is not None
    if claim_noise is not None and run is None:
        raise OptionError("--claim-noise needs the run: give --steps and --sample-rate, or batch sizes")
    if strict and not claimed:
        raise OptionError("--strict needs --claim-epsilon or --claim-noise: without a claim nothing is judged")
    claim = claim_of(run, delta, claim_epsilon, claim_noise) if claimed else None
    scores = read_scores(file, one_run=method in ONE_RUN_METHODS)
    guesses = usual_guesses(len(scores[0]) + len(scores[1])) if noise_multiplier is None else None
    estimated = lastiterate.estimate if claim is None else estimate_or_zero  # a claim gets a verdict, not an error
    found = [
        estimated(*scores, delta, confidence, name, threshold, run, validity, guesses) for name in _methods(method, run)
    ]
    verdict = ""
    notes_on_verdict: list[str | Text] = []
    judged: JsonObject = {}
    if claim is not None:
        kind = Kind.ALL_ITERATES if method == "composition" else Kind.LAST_ITERATE
        kind = Kind.ONE_MODEL if method in ONE_RUN_METHODS else kind
        judgement = judge_scores(*scores, claim, kind, delta, confidence, threshold, run, validity, check_fault(fault))
        verdict = judgement.verdict
        judged = {"verdict": verdict, "reason": judgement.reason, "strength": strength_fields(judgement.strength)}
        notes_on_verdict = [verdict_note(verdict, judgement.reason), judgement.strength.words]
    rows = [estimate_fields(each) for each in found]
    if not json:
        title, notes = _words(found, len(scores[0]), len(scores[1]))
        notes = [note for note in notes if note != judged.get("reason")]
        print_rows(title, _table(rows), [*notes_on_verdict, *notes])
    elif method == "all":
        print_json({"delta": delta, "confidence": confidence, "rows": rows, **judged})
    else:
        print_json(rows[0] | judged)
    raise typer.Exit(status_of(verdict, claimed, strict))


def _run(size: SizeOptions, training: MethodOptions, noise_multiplier: PerStepOption | None) -> "DPSGD | None":
    """Return the described run, or None. Without a noise multiplier it is 1: only the shape of the noise matters."""
    if size == SizeOptions() and training == MethodOptions() and noise_multiplier is None:
        return None
    return size.run(1.0 if noise_multiplier is None else noise_multiplier, training)


def _methods(method: str, run: "DPSGD | None") -> tuple[str, ...]:
    """Return the methods to show. Composition is left out for shuffled and fixed-size batches, which it refuses."""
    if method != "all":
        return (method,)
    if run is None:
        return tuple(name for name in PAIRED_METHODS if METHODS[name].family is None)
    return tuple(name for name in PAIRED_METHODS if name != "composition" or run.amplifies)


def _table(rows: "list[JsonObject]") -> "list[JsonObject]":
    """Return the columns that fit into a table, with the reasons for missing values."""
    shown = ("method", "epsilon", "largest", "threshold", "false_positives", "false_negatives")
    return [{key: row[key] for name in shown for key in (name, f"{name}_reason") if key in row} for row in rows]


def _words(found: "list[Estimate]", models_in: int, models_out: int) -> tuple[str, list[str]]:
    """Return the title of the table and the notes below."""
    from lastiterate.formatting import spell, spell_exact

    first = found[0]
    one_run = METHODS[first.method].is_one_run
    what = "canaries of one run" if one_run else "models"
    title = (
        f"{models_in:,} {what} in, {models_out:,} out; delta {spell_exact(first.delta)}, "
        f"{spell(100 * first.confidence)}% confidence{'' if one_run else ' (joint for both error rates)'}; "
        f"threshold {first.threshold_choice}"
    )
    notes = [
        "Epsilon is a lower bound: the scores show at least so much, at this confidence.",
        f"Largest: what {first.models_in:,} + {first.models_out:,} {what} could have shown at most, without a single "
        "error.",
    ]
    if first.threshold_choice == "split":
        notes.append("The other models chose the threshold.")
    if first.validity == "anytime":
        notes.append("It holds for every number of models at once: one may have looked and stopped at any time.")
    if not THRESHOLDS[first.threshold_choice].is_valid:
        notes.append("The best of all thresholds was taken without correction: this is not a valid bound.")
    return title, [*notes, *dict.fromkeys(sentence for each in found for sentence in each.caveats)]
