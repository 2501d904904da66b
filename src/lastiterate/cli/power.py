"""The command ``lastiterate power``: the power of an audit, and the number of models that refute a claim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import lastiterate
from lastiterate.cli.audit_options import ClaimOptions, parse_threshold
from lastiterate.cli.options import Json, MethodOptions, NoiseMultiplier, Option, Plot, SizeOptions, unfold
from lastiterate.cli.output import check_plot, print_json, print_table, tracker, write_plot
from lastiterate.common.types import JsonObject, with_reasons
from lastiterate.compare_analyses import run_fields

if TYPE_CHECKING:
    from lastiterate.auditing.evidence.audit_power import Power

_INFINITE = "infinite: even without noise, the family has larger error rates than these"


@unfold
def power(
    size: SizeOptions,
    noise_multiplier: NoiseMultiplier,
    training: MethodOptions,
    claim: ClaimOptions,
    models: Annotated[int, "Models per world, or canaries of one run (default: 512)."] = 512,
    confidence: Annotated[float, "Confidence of the bounds and of a verdict (default: 0.95)."] = 0.95,
    signal: Annotated[float, "Share of the canary that the attack sees (default: 1)."] = 1.0,
    spread: Annotated[float, "Spread of the attack's scores, in standard deviations of the noise (default: 1)."] = 1.0,
    method: Annotated[str | None, Option("Methods of estimation (default: all that apply).", "M1,M2,...")] = None,
    threshold: Annotated[
        float | str,
        Option(
            "The threshold, as in the audit (default: a-priori).", "a-priori|split|corrected|NUMBER", parse_threshold
        ),
    ] = "a-priori",
    leaks_epsilon: Annotated[
        float | None, "The fault to detect: training with the noise that guarantees this epsilon."
    ] = None,
    leaks_noise: Annotated[
        float | None, "The fault to detect: training with this noise multiplier (default: half of the claimed noise)."
    ] = None,
    one_run: Annotated[bool, "One training run with many canaries. --models is their number."] = False,
    scores: Annotated[
        Literal["known", "own", "all-iterates"],
        "Scores of built-in attacks (known, default) or of your own trainer (own).",
    ] = "known",
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Compute the power of an audit, and how many models it needs.

    Nothing is trained. The first result is the epsilon that an audit with this many models finds if training is
    correct. The second is the number of models with which 80% of audits refute the claim if training has less noise.

    \b
    Example:
      lastiterate power --steps 100 --sample-rate 0.1 --noise-multiplier 0.94 --models 512
      lastiterate power --steps 100 --sample-rate 0.1 --noise-multiplier 0.94 --leaks-noise 0.7 --plot power.png
    """
    run = size.run(noise_multiplier, training)
    check_plot(plot)
    for each in tracker("computing power")([run]):
        found = lastiterate.power(
            each,
            models,
            claim.delta,
            confidence,
            signal=signal,
            spread=spread,
            methods=None if method in (None, "all") else method.split(","),
            threshold=threshold,
            validity=claim.validity,
            claim_epsilon=claim.claim_epsilon,
            claim_noise=claim.claim_noise,
            leaks_epsilon=leaks_epsilon,
            leaks_noise=leaks_noise,
            one_run=one_run,
            scores=scores,
        )
    if json:
        print_json(power_fields(found))
    else:
        print_table(found.table())
    if plot is not None:
        from lastiterate.plot.run_charts import power_chart

        write_plot(lambda: power_chart(found), plot, quiet=json)


def power_fields(found: Power) -> JsonObject:
    """Return the power of an audit as JSON."""
    infinite = {"detectable": _INFINITE, "median": _INFINITE}
    names = ("delta", "models", "one_run", "confidence", "validity", "signal", "spread")
    after: JsonObject = {name: getattr(found, name) for name in ("claim", "leak")}
    after |= {"leaks_noise": found.noise_multiplier, "chance": found.chance, "needed": found.needed}
    return {
        **run_fields(found.run),
        **{name: getattr(found, name) for name in names},
        "rows": [with_reasons(vars(each), infinite) for each in found.rows],
        **with_reasons(after, {"needed": f"more than {found.chances[-1][0]:,} models or canaries would be needed"}),
        "chances": [{"models": models, "chance": chance} for models, chance in found.chances],
        "notes": list(found.notes),
    }
