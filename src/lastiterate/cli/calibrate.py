"""``lastiterate calibrate``: the noise that a run needs for a given epsilon and delta."""

from typing import TYPE_CHECKING

from lastiterate.cli.options import Analysis, ConvexOptions, Delta, Epsilon, Json, MethodOptions, SizeOptions
from lastiterate.cli.unfold import unfold

if TYPE_CHECKING:
    from lastiterate.rows import Fields
    from lastiterate.run import DPSGD


@unfold
def calibrate(
    size: SizeOptions,
    epsilon: Epsilon,
    delta: Delta,
    method: MethodOptions,
    convex: ConvexOptions,
    analysis: Analysis = None,
    json: Json = False,
) -> None:
    """The least noise that reaches a target epsilon.

    Twice: for a guarantee, and for the heuristic, which needs less and guarantees nothing. Or by one analysis of your
    choice.

    \b
    Example:
      lastiterate calibrate --steps 1000 --sample-rate 0.01 --epsilon 8 --delta 1e-5
    """
    run = size.run(1.0, method)
    if analysis is None:
        _side_by_side(run, epsilon, delta, convex, json)
    else:
        _by(analysis.replace("-", "_"), run, epsilon, delta, convex, json)


def _side_by_side(run: "DPSGD", epsilon: float, delta: float, convex: ConvexOptions, json: bool) -> None:
    from lastiterate.answers import guarantee_of, noise_rows, run_fields
    from lastiterate.cli.noise_output import print_noise
    from lastiterate.cli.output import print_json
    from lastiterate.cli.progress import tracker
    from lastiterate.vocabulary import ANALYSES
    from lastiterate.wording import describe, spell_exact

    curves = convex.curves()
    names = (guarantee_of(run), *curves, "last_iterate")
    rows = [row for _, row in noise_rows({None: run}, names, epsilon, delta, tracker("calibrating"), curves)]
    if json:
        fields = run_fields(run)
        del fields["noise_multiplier"]  # each row has its own
        print_json({**fields, **convex.fields(), "epsilon": epsilon, "delta": delta, "rows": rows})
        return
    title = f"{describe(run, noise=False)}; noise for epsilon {spell_exact(epsilon)} at delta {spell_exact(delta)}"
    print_noise([(title, [{"reached by": ANALYSES[row["analysis"]].label_of(run), **row} for row in rows])], run)


def _by(chosen: str, run: "DPSGD", epsilon: float, delta: float, convex: ConvexOptions, json: bool) -> None:
    import lastiterate
    from lastiterate.answers import answer_fields, ask_all, run_fields
    from lastiterate.cli.output import print_answers, print_json, print_note
    from lastiterate.cli.progress import tracker
    from lastiterate.vocabulary import ANALYSES
    from lastiterate.wording import describe, notes_on, spell_exact, spell_up

    curves = convex.curves(chosen)
    curve = curves.get(chosen, ANALYSES[chosen].curve)
    for uncalibrated in tracker("calibrating")([run]):
        run = lastiterate.calibrate(uncalibrated, epsilon=epsilon, delta=delta, analysis=curve)
    answers = ask_all(run, lambda curve: curve.epsilon(delta), track=tracker("analysing"), curves=curves)
    if json:
        target: Fields = {"analysis": chosen, "epsilon": epsilon, "delta": delta}
        print_json({**run_fields(run), **convex.fields(), **target, **answer_fields(answers, run)})
        return
    noise = spell_up(float(run.noise_multiplier), 7)
    reached = f"epsilon {spell_exact(epsilon)} at delta {spell_exact(delta)}"
    print_note(f"Noise multiplier {noise} for {reached} by {ANALYSES[chosen].label_of(run)}.\n")
    print_answers(f"{describe(run)}; delta {spell_exact(delta)}", "epsilon", answers, run, notes_on(run))
