"""The commands ``lastiterate epsilon`` and ``delta``: privacy of the released model of a run."""

from typing import Annotated

from lastiterate.citation import mu_of, mu_sentence, risk_sentences, risks_of
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
from lastiterate.compare_analyses import Answer, Curves, answer_fields, ask, ask_all, instead_of_shuffling, run_fields
from lastiterate.formatting import describe, neighbours_of, notes_on, spell_exact, spell_up
from lastiterate.labels import PROMISES, expected_of
from lastiterate.run import DPSGD

_DIGITS = 3  # significant digits of an epsilon that people read


@unfold
def epsilon(
    size: SizeOptions,
    noise_multiplier: NoiseMultiplier,
    delta: Delta,
    method: MethodOptions,
    convex: ConvexOptions,
    plot: Plot = None,
    sentence: Annotated[bool, "Print a sentence that may be quoted, instead of the answer."] = False,
    details: Annotated[bool, "Also show mu of Gaussian DP, and all analyses with their assumptions."] = False,
    json: Json = False,
) -> None:
    """Epsilon of the released model, and what an attacker can learn.

    The answer has the guarantee (what you may promise), the prediction (what to expect), and the risk of a person in
    words. --details adds all analyses, such as the full-batch baseline. --convex or --diameter adds a guarantee for the
    last iterate.

    \b
    Example:
      lastiterate epsilon --steps 1000 --sample-rate 0.01 --noise-multiplier 1 --delta 1e-5
    """
    run = size.run(noise_multiplier, method)
    delta = number("delta", delta, 0.0, 1.0, open_low=True, open_high=True)
    curves = convex.curves()
    check_plot(plot)
    if sentence and not json:
        print_note(_sentence(run, delta, curves))
    else:
        answers = ask_all(
            run, lambda curve: curve.epsilon(delta), "max_over_steps", track=tracker("analysing"), curves=curves
        )
        if json:
            fields = {**run_fields(run), **convex.fields(), "delta": delta, **answer_fields(answers, run)}
            fields |= {"risk": [risk.fields() for risk in risks_of(run)]}
            fields |= {"mu": mu_of(run).fields()} if details else {}
            fields |= {"sentence": _sentence(run, delta, curves)} if sentence else {}
            print_json(fields)
        else:
            _print_answer(run, delta, answers)
            if details:
                print_note("")
                print_answers("All analyses", "epsilon", answers, run, [mu_sentence(run)])
    if plot is not None:
        from lastiterate.plot.run_charts import run_chart

        write_plot(lambda: run_chart(run, delta, tracker("drawing"), curves), plot, quiet=json)


def _print_answer(run: DPSGD, delta: float, answers: dict[str, Answer]) -> None:
    """Print the run, its guarantees and its prediction in one line each, and the risk of a person."""
    about = f", {neighbours_of(run).partition(',')[0]}" if run.neighbours == "add-remove" else ""
    lines = [f"{describe(run)}; delta {spell_exact(delta)}{about}"]
    shown = {run.guarantee: "guaranteed", "convex": "guaranteed", "last_iterate": "predicted"}
    for name, title in shown.items():
        if name in answers:
            value, words = answers[name].value, PROMISES.get(name, expected_of(run))
            found = f"none: {answers[name].reason}" if value is None else f"epsilon {spell_up(value, _DIGITS)} {words}"
            lines.append(f"{title:12}{found}")
    in_bins = instead_of_shuffling(run)
    possible = ask(in_bins, "composition", lambda curve: curve.epsilon(delta)).value if in_bins else None
    if possible is not None:
        words = "with --sampling balls-in-bins, which also uses each example once per epoch"
        lines.insert(2, f"{'possible':12}epsilon {spell_up(possible, _DIGITS)} {words}")
    last, largest = answers["last_iterate"].value, answers["max_over_steps"].value
    notes = notes_on(run)
    if last is not None and largest is not None and largest > last + 1e-6 * max(1.0, last):
        # As in the paper, more steps can lower the heuristic.
        worst = spell_up(largest, _DIGITS)
        notes.insert(0, f"By the heuristic, a model released after fewer steps can leak more: up to {worst}.")
    print_note("\n".join([*lines, "", *risk_sentences(run), *notes]))


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
