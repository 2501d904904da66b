"""``lastiterate delta``: what a run's released model leaks, as delta at a given epsilon."""

from lastiterate.cli.options import ConvexOptions, Epsilon, Json, MethodOptions, NoiseMultiplier, SizeOptions
from lastiterate.cli.unfold import unfold


@unfold
def delta(
    size: SizeOptions,
    noise_multiplier: NoiseMultiplier,
    epsilon: Epsilon,
    method: MethodOptions,
    convex: ConvexOptions,
    json: Json = False,
) -> None:
    """Delta of the released model, by three analyses.

    They are the last-iterate heuristic, the standard composition analysis and the full-batch baseline.

    \b
    Example:
      lastiterate delta --steps 1000 --sample-rate 0.01 --noise-multiplier 1 --epsilon 1
    """
    from lastiterate.answers import answer_fields, ask_all, run_fields
    from lastiterate.cli.output import print_answers, print_json
    from lastiterate.cli.progress import tracker
    from lastiterate.values import number
    from lastiterate.wording import describe, notes_on, spell_exact

    run = size.run(noise_multiplier, method)
    epsilon = number("epsilon", epsilon, 0.0)
    answers = ask_all(
        run, lambda curve: curve.delta(epsilon), "max_over_steps", track=tracker("analysing"), curves=convex.curves()
    )
    if json:
        print_json({**run_fields(run), **convex.fields(), "epsilon": epsilon, **answer_fields(answers, run)})
    else:
        print_answers(f"{describe(run)}; epsilon {spell_exact(epsilon)}", "delta", answers, run, notes_on(run))
