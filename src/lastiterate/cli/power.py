"""The command ``lastiterate power``: the power of an audit, and the number of models that refute a claim."""

import math
from typing import TYPE_CHECKING, Annotated

import typer

from lastiterate.cli import option_values as values
from lastiterate.cli.audit_options import Anytime, ClaimEpsilon, ClaimNoise, UsualDelta
from lastiterate.cli.option_values import unfold
from lastiterate.cli.options import (
    Json,
    MethodOptions,
    NoiseMultiplier,
    Plot,
    SizeOptions,
    choice,
    flag,
    integer_option,
    number_option,
    option,
)

if TYPE_CHECKING:
    from lastiterate.auditing.evidence.audit_power import Power
    from lastiterate.common.types import JsonObject, Row

Models = Annotated[int, integer_option("--models", "Models a world, or canaries of one run (default: 512).")]
Confidence = Annotated[float, number_option("--confidence", "Of the bounds, and of a verdict (default: 0.95).")]
Signal = Annotated[float, number_option("--signal", "Share of the canary that the attack sees (default: 1).")]
Spread = Annotated[float, number_option("--spread", "Of its scores, in deviations of the noise (default: 1).")]
Threshold = Annotated[
    float | str,
    option("--threshold", values.threshold, "a-priori|split|corrected|NUMBER", "As in the audit (default: a-priori)."),
]
Method = Annotated[str | None, option("--method", None, "M1,M2,...", "Of estimation (default: all that apply).")]
LeaksEpsilon = Annotated[
    float | None, number_option("--leaks-epsilon", "The training to find out, by its guarantee's epsilon.")
]
LeaksNoise = Annotated[
    float | None, number_option("--leaks-noise", "The same by its noise (default: half of what is claimed).")
]
OneRun = Annotated[bool, flag("--one-run", "One training with many canaries: --models of them.")]
Scores = Annotated[
    str,
    choice("--scores", ("known", "own", "all-iterates"), "known: of our attacks (default); own: of your trainer."),
]


@unfold
def power(
    size: SizeOptions,
    noise_multiplier: NoiseMultiplier,
    training: MethodOptions,
    models: Models = 512,
    delta: UsualDelta = 1e-5,
    confidence: Confidence = 0.95,
    signal: Signal = 1.0,
    spread: Spread = 1.0,
    method: Method = None,
    threshold: Threshold = "a-priori",
    anytime: Anytime = False,
    claim_epsilon: ClaimEpsilon = None,
    claim_noise: ClaimNoise = None,
    leaks_epsilon: LeaksEpsilon = None,
    leaks_noise: LeaksNoise = None,
    one_run: OneRun = False,
    scores: Scores = "known",
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Compute the power of an audit, and how many models it needs.

    Before anything is trained: the epsilon that so many models will find if the training is exactly as described, and
    how many it takes until the claim about a training with less noise is refuted with probability 80%.

    \b
    Example:
      lastiterate power --steps 100 --sample-rate 0.1 --noise-multiplier 0.94 --models 512
      lastiterate power --steps 100 --sample-rate 0.1 --noise-multiplier 0.94 --leaks-noise 0.7 --plot power.png
    """
    import lastiterate
    from lastiterate.cli.output import print_json, print_whole, tracker

    run = size.run(noise_multiplier, training)
    if plot is not None:
        from lastiterate.plot.chart_file import check_target

        check_target(plot)
    for each in tracker("weighing")([run]):
        found = lastiterate.power(
            each,
            models,
            delta,
            confidence,
            signal=signal,
            spread=spread,
            methods=None if method in (None, "all") else method.split(","),
            threshold=threshold,
            validity="anytime" if anytime else "fixed",
            claim_epsilon=claim_epsilon,
            claim_noise=claim_noise,
            leaks_epsilon=leaks_epsilon,
            leaks_noise=leaks_noise,
            one_run=one_run,
            scores=scores,
        )
    if json:
        print_json(_fields(found))
    else:
        print_whole(found.table())
    if plot is not None:
        from lastiterate.cli.output import pictures, write_beside
        from lastiterate.plot.run_charts import power_chart

        raise typer.Exit(write_beside(pictures(lambda: power_chart(found), [plot]), quiet=json))


def _fields(found: "Power") -> "JsonObject":
    from lastiterate.compare_analyses import run_fields

    fields: JsonObject = {
        **run_fields(found.run),
        "delta": found.delta,
        "models": found.models,
        "one_run": found.one_run,
        "confidence": found.confidence,
        "validity": found.validity,
        "signal": found.signal,
        "spread": found.spread,
        "rows": [_row(each.method, each.detectable, each.median) for each in found.rows],
        "claim": found.claim,
        "leak": found.leak,
        "leaks_noise": found.noise_multiplier,
        "chance": found.chance,
        "needed": found.needed,
    }
    if found.needed is None:
        fields["needed_reason"] = f"more than {found.chances[-1][0]:,} would be needed"
    fields["chances"] = [{"models": models, "chance": chance} for models, chance in found.chances]
    fields["notes"] = list(found.notes)
    return fields


def _row(method: str, detectable: float, median: float) -> "Row":
    """Return the row of one method. An infinite epsilon is null, with a reason."""
    row: Row = {"method": method}
    for name, value in (("detectable", detectable), ("median", median)):
        row[name] = value if math.isfinite(value) else None
        if row[name] is None:
            row[f"{name}_reason"] = "infinite: such error rates are below what the family reaches even without noise"
    return row
