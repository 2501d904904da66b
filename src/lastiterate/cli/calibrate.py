"""``lastiterate calibrate``: the noise that a run needs for a given epsilon and delta."""

from lastiterate.cli.options import Analysis, Delta, Epsilon, Json, MethodOptions, SizeOptions
from lastiterate.cli.unfold import unfold


@unfold
def calibrate(
    size: SizeOptions,
    epsilon: Epsilon,
    delta: Delta,
    method: MethodOptions,
    analysis: Analysis = "last-iterate",
    json: Json = False,
) -> None:
    """The least noise that reaches a target epsilon.

    \b
    Example:
      lastiterate calibrate --steps 1000 --sample-rate 0.01 --epsilon 8 --delta 1e-5 --analysis composition
    """
    import lastiterate
    from lastiterate.answers import answer_fields, ask_all, find_analysis, run_fields
    from lastiterate.cli.output import print_answers, print_json, print_note
    from lastiterate.cli.progress import tracker
    from lastiterate.plot.words import LABELS, describe, spell, spell_up

    chosen = analysis.replace("-", "_")
    for uncalibrated in tracker("calibrating")([size.run(1.0, method)]):
        run = lastiterate.calibrate(uncalibrated, epsilon=epsilon, delta=delta, analysis=find_analysis(chosen))
    answers = ask_all(run, lambda curve: curve.epsilon(delta), track=tracker("analysing"))
    if json:
        target = {"analysis": chosen, "epsilon": epsilon, "delta": delta}
        print_json({**run_fields(run), **target, **answer_fields(answers)})
        return
    noise = spell_up(run.noise_multiplier, 7)
    print_note(f"Noise multiplier {noise} for epsilon {spell(epsilon)} at delta {spell(delta)} by {LABELS[chosen]}.\n")
    print_answers(f"{describe(run)}; delta {spell(delta)}", "epsilon", answers)
