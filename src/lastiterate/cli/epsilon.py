"""The commands ``lastiterate epsilon`` and ``delta``: privacy of the released model of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from lastiterate.cli.options import (
    ConvexOptions,
    Delta,
    Epsilon,
    Json,
    MethodOptions,
    NoiseMultiplier,
    Plot,
    SizeOptions,
    unfold,
)
from lastiterate.cli.output import check_plot, print_answers, print_json, print_note, tracker, write_plot
from lastiterate.common.validation import number
from lastiterate.compare_analyses import answer_fields, ask_all, run_fields
from lastiterate.formatting import describe, notes_on, spell_exact, spell_up
from lastiterate.registry import SIDE_BY_SIDE
from lastiterate.run import DPSGD

if TYPE_CHECKING:
    from lastiterate.compare_analyses import Curves


@unfold
def epsilon(
    size: SizeOptions,
    noise_multiplier: NoiseMultiplier,
    delta: Delta,
    method: MethodOptions,
    convex: ConvexOptions,
    plot: Plot = None,
    sentence: Annotated[bool, "Print a sentence that may be quoted, instead of a table."] = False,
    json: Json = False,
) -> None:
    """Epsilon of the released model, by three analyses.

    The analyses are the last-iterate heuristic, the standard composition analysis and the full-batch baseline. --convex
    or --diameter adds a guarantee for the last iterate.

    \b
    Example:
      lastiterate epsilon --steps 1000 --sample-rate 0.01 --noise-multiplier 1 --delta 1e-5
    """
    run = size.run(noise_multiplier, method)
    delta = number("delta", delta, 0.0, 1.0, open_low=True, open_high=True)
    curves = convex.curves()
    check_plot(plot)
    has_notes = False
    if sentence and not json:
        print_note(_sentence(run, delta, curves))
    else:
        answers = ask_all(
            run, lambda curve: curve.epsilon(delta), "max_over_steps", track=tracker("analysing"), curves=curves
        )
        notes, last, largest = notes_on(run), answers["last_iterate"].value, answers["max_over_steps"].value
        if last is not None and largest is not None and largest > last + 1e-6 * max(1.0, last):
            # As in the paper, more steps can lower the heuristic.
            earlier = f"By the heuristic, a model released after fewer steps can leak more: up to {spell_up(largest)}."
            notes = [earlier, *notes]
        has_notes = bool(notes) or any(answers[name].value is None for name in SIDE_BY_SIDE)
        if json:
            quoted = {"sentence": _sentence(run, delta, curves)} if sentence else {}
            print_json({**run_fields(run), **convex.fields(), "delta": delta, **answer_fields(answers, run), **quoted})
        else:
            print_answers(f"{describe(run)}; delta {spell_exact(delta)}", "epsilon", answers, run, notes)
    if plot is not None:
        from lastiterate.plot.run_charts import run_chart

        write_plot(lambda: run_chart(run, delta, tracker("drawing"), curves), plot, quiet=json, has_notes=has_notes)


def _sentence(run: DPSGD, delta: float, curves: Curves) -> str:
    from lastiterate.citation import sentence

    (words,) = [sentence(each, delta, curves) for each in tracker("analysing")([run])]
    return words


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

    The analyses are the last-iterate heuristic, the standard composition analysis and the full-batch baseline.

    \b
    Example:
      lastiterate delta --steps 1000 --sample-rate 0.01 --noise-multiplier 1 --epsilon 1
    """
    run = size.run(noise_multiplier, method)
    epsilon = number("epsilon", epsilon, 0.0)
    answers = ask_all(
        run, lambda curve: curve.delta(epsilon), "max_over_steps", track=tracker("analysing"), curves=convex.curves()
    )
    if json:
        print_json({**run_fields(run), **convex.fields(), "epsilon": epsilon, **answer_fields(answers, run)})
    else:
        print_answers(f"{describe(run)}; epsilon {spell_exact(epsilon)}", "delta", answers, run, notes_on(run))
