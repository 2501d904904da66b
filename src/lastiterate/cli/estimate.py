"""The command ``lastiterate estimate``: an empirical epsilon from the scores of your own attack."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastiterate.cli.app import INCONCLUSIVE, OptionError
from lastiterate.cli.audit_options import ClaimOptions, Fault, Strict, parse_threshold
from lastiterate.cli.options import Json, MethodOptions, Option, PerStep, SizeOptions, choice, unfold
from lastiterate.cli.output import print_json, print_note, print_rows
from lastiterate.common.types import JsonObject
from lastiterate.labels import METHODS, ONE_RUN_METHODS, PAIRED_METHODS, THRESHOLDS
from lastiterate.run import DPSGD

if TYPE_CHECKING:
    from rich.text import Text

    from lastiterate.auditing.evidence.estimate import Estimate


@dataclass(frozen=True)
class ZeroRunOptions:
    """Options for a model that exists."""

    zero_run: Annotated[bool, "For one model that exists: correct for how members and non-members differ."] = False
    members: Annotated[Path | None, Option("CSV with column score and features of members.", "FILE.csv")] = None
    non_members: Annotated[Path | None, Option("The same of non-members, sorted by time or source.", "FILE.csv")] = None
    odds: Annotated[float | None, "Factor by which modelled odds of membership may be wrong (default: 1)."] = None


@unfold
def estimate(
    size: SizeOptions,
    training: MethodOptions,
    claims: ClaimOptions,
    zero: ZeroRunOptions,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="CSV with columns world (in or out) and score; for one run also coin."),
    ] = None,
    noise_multiplier: Annotated[PerStep | None, "Noise of the run; only a threshold chosen a-priori needs it."] = None,
    confidence: Annotated[float, "Joint confidence in both error rates (default: 0.95)."] = 0.95,
    method: Annotated[
        str,
        choice(
            (*METHODS, "all"),
            "Assumption about the mechanism (default: clopper-pearson, any mechanism). The families last-iterate and "
            "composition need the run.",
        ),
    ] = "clopper-pearson",
    threshold: Annotated[
        float | str,
        Option(
            "The threshold, or how to choose it (default: split).",
            "NUMBER|split|corrected|uncorrected|a-priori",
            parse_threshold,
        ),
    ] = "split",
    fault: Fault = 0.5,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Estimate an empirical epsilon from your own attack's scores.

    FILE has one row per model. Column world is "in" if the model was trained with the canary, else "out". Column score
    is larger if the canary is more likely. The result is a lower bound that holds with the given confidence. A claim
    gets a verdict. For a one-run method, a row is a canary, and column coin (or canary) names the fair coin of this
    canary. With --zero-run, scores are those of members and of non-members of one model that exists.

    \b
    Exit status 1: the claim is refuted. 4: the verdict is inconclusive, or --zero-run refuses its result.

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
    from lastiterate.cli.report import estimate_fields, status_of, strength_fields
    from lastiterate.common.progress import tell
    from lastiterate.labels import headline_of

    if zero.zero_run:
        others = file, size, training, replace(claims, delta=1e-5), noise_multiplier, method, threshold, fault, strict
        raise typer.Exit(_zero_run(zero, claims.delta, confidence, json, others == _USUAL))
    if file is None or zero != ZeroRunOptions():
        raise OptionError("FILE must be given, or --zero-run with --members and --non-members; --odds needs --zero-run")
    run, delta, validity = None, claims.delta, claims.validity
    if size != SizeOptions() or training != MethodOptions() or noise_multiplier is not None:
        # The default noise multiplier is 1, because only the shape of the noise matters.
        run = size.run(1.0 if noise_multiplier is None else noise_multiplier, training)
    if threshold == "a-priori" and noise_multiplier is None and method not in ONE_RUN_METHODS:
        raise OptionError("--threshold a-priori needs --noise-multiplier and the run, which predict it")
    if method != "all" and METHODS[method].family is not None and run is None:
        raise OptionError(f"--method {method} needs the run: give --steps and --sample-rate, or batch sizes")
    claimed = claims.claim_epsilon is not None or claims.claim_noise is not None
    if claims.claim_noise is not None and run is None:
        raise OptionError("--claim-noise needs the run: give --steps and --sample-rate, or batch sizes")
    if strict and not claimed:
        raise OptionError("--strict needs --claim-epsilon or --claim-noise: without a claim nothing is judged")
    claim = claim_of(run, delta, claims.claim_epsilon, claims.claim_noise) if claimed else None
    tell("reading scores")
    scores = read_scores(file, one_run=method in ONE_RUN_METHODS)
    tell(f"estimating from {len(scores[0]) + len(scores[1]):,} scores")
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
        headline = headline_of(verdict, len(scores[0]) + len(scores[1]), kind is Kind.ONE_MODEL)
        judged = {"verdict": verdict, "headline": headline, "reason": judgement.reason}
        judged["strength"] = strength_fields(judgement.strength)
        notes_on_verdict = [f"{headline} {judgement.reason}", judgement.strength.words]
    rows = [estimate_fields(each) for each in found]
    if not json:
        title, notes = _words(found, len(scores[0]), len(scores[1]))
        notes = [note for note in notes if note != judged.get("reason")]
        columns = ("method", "epsilon", "largest", "threshold", "false_positives", "false_negatives")
        table = [{key: row[key] for name in columns for key in (name, f"{name}_reason") if key in row} for row in rows]
        print_rows(title, table, [*notes_on_verdict, *notes])
    elif method == "all":
        print_json({"delta": delta, "confidence": confidence, "rows": rows, **judged})
    else:
        print_json(rows[0] | judged)
    raise typer.Exit(status_of(verdict, claimed, strict))


_USUAL = None, SizeOptions(), MethodOptions(), ClaimOptions(), None, "clopper-pearson", "split", 0.5, False


def _zero_run(zero: ZeroRunOptions, delta: float, confidence: float, json: bool, alone: bool) -> int:
    """Print the bound for a model that exists, or the reason why there is none, and return the exit status."""
    import lastiterate
    from lastiterate.auditing.load_evidence import read_examples
    from lastiterate.common.types import with_reasons

    if zero.members is None or zero.non_members is None or not alone:
        allowed = "--odds, --delta, --confidence and --json"
        raise OptionError(f"--zero-run must be given with --members, --non-members, and no others but {allowed}")
    members, others = read_examples(zero.members), read_examples(zero.non_members)
    names = ", ".join(members[0])
    if members[0] != others[0]:
        got = f"{names} and {', '.join(others[0])}"
        raise OptionError(f"--members and --non-members must have the same columns in the same order, got {got}")
    odds = 1.0 if zero.odds is None else zero.odds
    found = lastiterate.zero_run(members[1], others[1], members[2], others[2], delta, confidence, odds=odds)
    if json:
        fields = {name: value for name, value in asdict(found).items() if name != "refusal"}
        print_json(with_reasons(fields, {"epsilon": found.refusal}) | {"features": members[0]})
    else:
        about = f"{len(members[1]):,} members, {len(others[1]):,} non-members, features {names}"
        print_note(about, *found.sentences)
    return INCONCLUSIVE if found.refusal else 0


def _methods(method: str, run: DPSGD | None) -> tuple[str, ...]:
    """Return the methods to show. The method composition refuses shuffled and fixed-size batches."""
    if method != "all":
        return (method,)
    if run is None:
        return tuple(name for name in PAIRED_METHODS if METHODS[name].family is None)
    return tuple(name for name in PAIRED_METHODS if name != "composition" or run.guarantee == name)


def _words(found: list[Estimate], models_in: int, models_out: int) -> tuple[str, list[str]]:
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
        "Epsilon is a lower bound, at this confidence.",
        (
            f"Largest: the epsilon of an attack that makes no errors with {first.models_in:,} + "
            f"{first.models_out:,} {what}."
        ),
    ]
    if first.threshold_choice == "split":
        notes.append("The threshold was chosen with other models, which are not counted.")
    if first.validity == "anytime":
        notes.append("The bound holds for every number of models at once: looking and stopping at any time is allowed.")
    if not THRESHOLDS[first.threshold_choice].is_valid:
        notes.append("The threshold is the best one for these scores, without a correction: this is not a valid bound.")
    return title, [*notes, *dict.fromkeys(sentence for each in found for sentence in each.caveats)]
