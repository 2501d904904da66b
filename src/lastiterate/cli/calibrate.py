"""The commands ``lastiterate calibrate`` and ``plan``: the noise for a target, of one run or by batch size."""

from typing import Annotated

import lastiterate
from lastiterate import compare_analyses
from lastiterate.cli.options import (
    Analysis,
    ConvexOptions,
    Json,
    LastBatchOption,
    MethodOptions,
    Option,
    Plot,
    SizeOptions,
    TargetOptions,
    parse_integers,
    unfold,
)
from lastiterate.cli.output import check_plot, print_answers, print_json, print_note, print_rows, tracker, write_plot
from lastiterate.common.types import JsonObject, Row, among, number_in
from lastiterate.formatting import (
    ADAM_CAVEAT,
    caveat_of,
    describe,
    neighbours_of,
    notes_on,
    released,
    spell,
    spell_exact,
    spell_up,
    training,
)
from lastiterate.labels import ANALYSES
from lastiterate.optimizer import is_adam
from lastiterate.privacy.curve import SMALLEST_ERROR, Target
from lastiterate.run import DPSGD


@unfold
def calibrate(
    size: SizeOptions,
    aim: TargetOptions,
    method: MethodOptions,
    convex: ConvexOptions,
    analysis: Analysis = None,
    json: Json = False,
) -> None:
    """The least noise that reaches a target.

    The target is one of --epsilon with --delta, --mu, --advantage, or --tpr with --fpr. The command computes the noise
    for a guarantee and for the heuristic, or only for the analysis that --analysis names. The heuristic needs less
    noise and guarantees nothing.

    \b
    Example:
      lastiterate calibrate --steps 1000 --sample-rate 0.01 --epsilon 8 --delta 1e-5
    """
    run, target = size.run(1.0, method), aim.target()
    if analysis is not None:
        _by(analysis.replace("-", "_"), run, target, convex, json)
        return
    curves = convex.curves()
    names = (run.guarantee, *curves, "last_iterate")
    found = compare_analyses.noise_rows({None: run}, names, target, tracker("calibrating"), curves)
    rows = [row for _, row in found]
    if json:
        fields = compare_analyses.run_fields(run)
        del fields["noise_multiplier"]  # each row has another noise multiplier
        print_json({**fields, **convex.fields(), **_asked(target), "rows": rows})
        return
    title = f"{describe(run, noise=False)}; noise for {target.words(spell_exact)}"
    shown = [{"reached by": ANALYSES[row["analysis"]].label_of(run), **row} for row in rows]
    _print_noise([(title, shown)], run, target)


def _asked(target: Target) -> JsonObject:
    return {**target.fields(), **({"smallest_error": SMALLEST_ERROR} if target.mu is not None else {})}


def _by(chosen: str, run: DPSGD, target: Target, convex: ConvexOptions, json: bool) -> None:
    curves = convex.curves(chosen)
    curve = curves.get(chosen, ANALYSES[chosen].curve)
    for uncalibrated in tracker("calibrating")([run]):
        run = lastiterate.calibrate(uncalibrated, analysis=curve, **target.fields())
    answers = compare_analyses.ask_all(run, target.of, track=tracker("analysing"), curves=curves)
    if json:
        fields: JsonObject = {**compare_analyses.run_fields(run), **convex.fields(), "analysis": chosen}
        print_json(fields | _asked(target) | compare_analyses.answer_fields(answers, run))
        return
    noise = spell_up(float(run.noise_multiplier), 7)
    reached = target.words(spell_exact)
    print_note(f"Noise multiplier {noise} for {reached} by {ANALYSES[chosen].label_of(run)}.\n")
    title = f"{describe(run)}; {target.quantity}{target.condition(spell_exact)}"
    print_answers(title, target.quantity, answers, run, notes_on(run))


@unfold
def plan(
    dataset_size: Annotated[int, "Number of examples."],
    epochs: Annotated[float, "Passes over the data."],
    batch_sizes: Annotated[list[int], Option("Batch sizes to compare.", "B1,B2,...", parse_integers)],
    aim: TargetOptions,
    method: MethodOptions,
    convex: ConvexOptions,
    analysis: Analysis = None,
    last_batch: LastBatchOption = None,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Compare batch sizes by the noise that each needs.

    A row has the steps, the sample rate, the noise multiplier for the target, and what all analyses say with this
    noise. The target is one of --epsilon with --delta, --mu, --advantage, or --tpr with --fpr. There is one table for a
    guarantee and one for the heuristic, or one for the analysis of your choice.

    \b
    Example:
      lastiterate plan --dataset-size 50000 --epochs 60 --batch-sizes 256,512,4096 --epsilon 6 --delta 1e-5
    """
    check_plot(plot)
    target = aim.target()
    fields = method.fields() | {"last_batch": last_batch}
    runs = {
        size: method.scheduled(DPSGD.from_batches(dataset_size, size, epochs, 1.0, **fields)) for size in batch_sizes
    }
    any_run = runs[batch_sizes[0]]
    curves = convex.curves(analysis)
    names = [analysis.replace("-", "_")] if analysis else [any_run.guarantee, *curves, "last_iterate"]
    found = compare_analyses.noise_rows(runs, names, target, tracker("calibrating"), curves)
    rows: list[Row] = []
    for size, row in found:  # in order: analysis, batch size, steps, sample rate, results
        shape = {"batch_size": size, "steps": runs[size].steps, "sample_rate": float(runs[size].sample_rate)}
        rows.append({"analysis": row["analysis"], "is_guarantee": row["is_guarantee"], **shape, **row})
    described = ", ".join(training(any_run, epochs=False) + released(any_run))
    words = f"{dataset_size:,} examples, {spell(epochs)} epochs, {described}; noise for {target.words(spell_exact)}"
    if json:
        asked: JsonObject = {"dataset_size": dataset_size, "epochs": epochs, "sampling": method.sampling}
        asked |= compare_analyses.optimizer_fields(any_run) | compare_analyses.released_fields(any_run)
        asked |= compare_analyses.prediction_fields(any_run) | convex.fields()
        chosen = {"analysis": names[0]} if analysis else {}
        print_json({**asked, **_asked(target), **chosen, "rows": rows})
    else:
        tables = [(f"{words} by {ANALYSES[name].label_of(any_run)}", among(rows, "analysis", name)) for name in names]
        _print_noise(tables, any_run, target)
    if plot is not None:
        from lastiterate.plot.run_charts import plan_chart

        write_plot(lambda: plan_chart(rows, target, words, caveat_of(any_run)), plot, quiet=json)


def _print_noise(tables: list[tuple[str, list[Row]]], run: DPSGD, target: Target) -> None:
    rows = [row for _, of_table in tables for row in of_table]
    answers = [key for key in rows[0] if not key.endswith("_reason") and key != "noise_multiplier"]
    empty = [key for key in answers if all(row[key] is None for row in rows)]
    reasons = dict.fromkeys(f"No {key.replace('_', ' ')}: {row[f'{key}_reason']}" for key in empty for row in rows)
    about = f"Neighbours: {neighbours_of(run)}."
    hidden = {"analysis", "is_guarantee", *empty}
    for index, (title, of_table) in enumerate(tables, start=1):
        shown = [{key: row[key] for key in row if key.removesuffix("_reason") not in hidden} for row in of_table]
        is_last = index == len(tables)
        print_rows(title, shown, [*reasons, about, _caution(rows, run, target)] if is_last else [])
        if not is_last:
            print_note("")


def _caution(rows: list[Row], run: DPSGD, target: Target) -> str:
    name = "no_amplification" if "no_amplification" in rows[0] else "composition"
    label = name.replace("_", " ").capitalize()
    note = f"{label} is a guarantee. Last iterate is a heuristic: it predicts, it does not guarantee."
    if is_adam(run.optimizer):
        note = f"{label} is a guarantee. {ADAM_CAVEAT}"
    promised = [number_in(row, name) for row in rows if row["analysis"] == "last_iterate" and row[name] is not None]
    if not promised:
        return note
    low, high = spell_up(min(promised)), spell_up(max(promised))
    span = low if low == high else f"{low} to {high}"
    return f"{note} With the heuristic's noise, the guarantee is {target.quantity} {span}."
