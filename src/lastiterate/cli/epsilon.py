"""The commands ``lastiterate epsilon`` and ``delta``: privacy of the released model of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from lastiterate.cli.option_values import unfold
from lastiterate.cli.options import (
    ConvexOptions,
    Delta,
    Epsilon,
    Json,
    MethodOptions,
    NoiseMultiplier,
    Plot,
    Sentence,
    SizeOptions,
)

if TYPE_CHECKING:
    from pathlib import Path

    from lastiterate.compare_analyses import Answer, Curves
    from lastiterate.run import DPSGD


@unfold
def epsilon(
    size: SizeOptions,
    noise_multiplier: NoiseMultiplier,
    delta: Delta,
    method: MethodOptions,
    convex: ConvexOptions,
    plot: Plot = None,
    sentence: Sentence = False,
    json: Json = False,
) -> None:
    """Epsilon of the released model, by three analyses.

    They are the last-iterate heuristic, the standard composition analysis and the full-batch baseline. With --convex
    or --diameter there is a guarantee for the last iterate beside them.

    \b
    Example:
      lastiterate epsilon --steps 1000 --sample-rate 0.01 --noise-multiplier 1 --delta 1e-5
    """
    from lastiterate.cli.output import print_answers, print_json, tracker
    from lastiterate.common.validation import number
    from lastiterate.compare_analyses import answer_fields, ask_all, run_fields
    from lastiterate.formatting import describe, notes_on, spell_exact
    from lastiterate.registry import SIDE_BY_SIDE

    run = size.run(noise_multiplier, method)
    delta = number("delta", delta, 0.0, 1.0, open_low=True, open_high=True)
    curves = convex.curves()
    if plot is not None:
        from lastiterate.plot.chart_file import check_target

        check_target(plot)
    if sentence and not json:
        _say(run, delta, curves, plot)
        return
    answers = ask_all(
        run, lambda curve: curve.epsilon(delta), "max_over_steps", track=tracker("analysing"), curves=curves
    )
    notes = [*_earlier(answers), *notes_on(run)]
    if json:
        quoted = {"sentence": _sentence(run, delta, curves)} if sentence else {}
        print_json({**run_fields(run), **convex.fields(), "delta": delta, **answer_fields(answers, run), **quoted})
    else:
        print_answers(f"{describe(run)}; delta {spell_exact(delta)}", "epsilon", answers, run, notes)
    if plot is not None:
        has_notes = bool(notes) or any(answers[name].value is None for name in SIDE_BY_SIDE)
        _draw(run, delta, curves, plot, quiet=json, has_notes=has_notes)


def _sentence(run: DPSGD, delta: float, curves: Curves) -> str:
    from lastiterate.citation import sentence
    from lastiterate.cli.output import tracker

    (words,) = [sentence(each, delta, curves) for each in tracker("analysing")([run])]
    return words


def _say(run: DPSGD, delta: float, curves: Curves, plot: Path | None) -> None:
    from lastiterate.cli.output import print_note

    print_note(_sentence(run, delta, curves))
    if plot is not None:
        _draw(run, delta, curves, plot, quiet=False, has_notes=False)


def _earlier(answers: dict[str, Answer]) -> list[str]:
    """Return a note for the paper's non-monotone case, in which further training lowers the heuristic; else none."""
    from lastiterate.formatting import spell_up

    last, largest = answers["last_iterate"].value, answers["max_over_steps"].value
    if last is None or largest is None or largest <= last + 1e-6 * max(1.0, last):
        return []
    return [f"A model released earlier leaks more: the heuristic reaches {spell_up(largest)} on the way."]


def _draw(run: DPSGD, delta: float, curves: Curves, path: Path, *, quiet: bool, has_notes: bool) -> None:
    from lastiterate.cli.output import pictures, tracker, write_beside
    from lastiterate.plot.run_charts import run_chart

    drawn = pictures(lambda: run_chart(run, delta, tracker("drawing"), curves), [path])
    raise typer.Exit(write_beside(drawn, quiet=quiet, has_notes=has_notes))


# ``lastiterate delta``: delta of the released model at a given epsilon.


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
    from lastiterate.cli.output import print_answers, print_json, tracker
    from lastiterate.common.validation import number
    from lastiterate.compare_analyses import answer_fields, ask_all, run_fields
    from lastiterate.formatting import describe, notes_on, spell_exact

    run = size.run(noise_multiplier, method)
    epsilon = number("epsilon", epsilon, 0.0)
    answers = ask_all(
        run, lambda curve: curve.delta(epsilon), "max_over_steps", track=tracker("analysing"), curves=convex.curves()
    )
    if json:
        print_json({**run_fields(run), **convex.fields(), "epsilon": epsilon, **answer_fields(answers, run)})
    else:
        print_answers(f"{describe(run)}; epsilon {spell_exact(epsilon)}", "delta", answers, run, notes_on(run))
