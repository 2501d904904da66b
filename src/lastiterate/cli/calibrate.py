"""The commands ``lastiterate calibrate`` and ``plan``: the noise for a target epsilon, of one run or by batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lastiterate.cli import option_values as values
from lastiterate.cli.option_values import unfold
from lastiterate.cli.options import (
    Analysis,
    ConvexOptions,
    Delta,
    Epsilon,
    Json,
    LastBatchOption,
    MethodOptions,
    Plot,
    SizeOptions,
    integer_option,
    number_option,
    option,
)
from lastiterate.cli.output import print_note, print_rows
from lastiterate.common.types import number_in
from lastiterate.formatting import ADAM_CAVEAT, neighbours_of, spell_up
from lastiterate.optimizer import is_adam

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lastiterate.common.types import JsonObject, Row
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


def _side_by_side(run: DPSGD, epsilon: float, delta: float, convex: ConvexOptions, json: bool) -> None:
    from lastiterate.cli.output import print_json, tracker
    from lastiterate.compare_analyses import guarantee_of, noise_rows, run_fields
    from lastiterate.formatting import describe, spell_exact
    from lastiterate.registry import ANALYSES

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


def _by(chosen: str, run: DPSGD, epsilon: float, delta: float, convex: ConvexOptions, json: bool) -> None:
    import lastiterate
    from lastiterate.cli.output import print_answers, print_json, print_note, tracker
    from lastiterate.compare_analyses import answer_fields, ask_all, run_fields
    from lastiterate.formatting import describe, notes_on, spell_exact, spell_up
    from lastiterate.registry import ANALYSES

    curves = convex.curves(chosen)
    curve = curves.get(chosen, ANALYSES[chosen].curve)
    for uncalibrated in tracker("calibrating")([run]):
        run = lastiterate.calibrate(uncalibrated, epsilon=epsilon, delta=delta, analysis=curve)
    answers = ask_all(run, lambda curve: curve.epsilon(delta), track=tracker("analysing"), curves=curves)
    if json:
        target: JsonObject = {"analysis": chosen, "epsilon": epsilon, "delta": delta}
        print_json({**run_fields(run), **convex.fields(), **target, **answer_fields(answers, run)})
        return
    noise = spell_up(float(run.noise_multiplier), 7)
    reached = f"epsilon {spell_exact(epsilon)} at delta {spell_exact(delta)}"
    print_note(f"Noise multiplier {noise} for {reached} by {ANALYSES[chosen].label_of(run)}.\n")
    print_answers(f"{describe(run)}; delta {spell_exact(delta)}", "epsilon", answers, run, notes_on(run))


# ``lastiterate plan``: noise and epsilon by batch size, as in the paper's tables.

DatasetSize = Annotated[int, integer_option("--dataset-size", "Number of examples.")]
Epochs = Annotated[float, number_option("--epochs", "Passes over the data.")]
BatchSizes = Annotated[list[int], option("--batch-sizes", values.integers, "B1,B2,...", "Batch sizes to compare.")]


@unfold
def plan(
    dataset_size: DatasetSize,
    epochs: Epochs,
    batch_sizes: BatchSizes,
    epsilon: Epsilon,
    delta: Delta,
    method: MethodOptions,
    convex: ConvexOptions,
    analysis: Analysis = None,
    last_batch: LastBatchOption = None,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Compare batch sizes by the noise that each needs.

    For each batch size: steps, sample rate, the noise multiplier for the target epsilon, and epsilon under all analyses
    then. One table for a guarantee and one for the heuristic, or a single one by the analysis of your choice.

    \b
    Example:
      lastiterate plan --dataset-size 50000 --epochs 60 --batch-sizes 256,512,4096 --epsilon 6 --delta 1e-5
    """
    from lastiterate.cli.output import print_json, tracker
    from lastiterate.common.types import among
    from lastiterate.compare_analyses import (
        guarantee_of,
        noise_rows,
        optimizer_fields,
        prediction_fields,
        released_fields,
    )
    from lastiterate.formatting import caveat_of, released, spell, spell_exact, training
    from lastiterate.registry import ANALYSES
    from lastiterate.run import DPSGD

    if plot is not None:
        from lastiterate.plot.chart_file import check_target

        check_target(plot)
    fields = method.fields() | {"last_batch": last_batch}
    runs = {
        size: method.scheduled(DPSGD.from_batches(dataset_size, size, epochs, 1.0, **fields)) for size in batch_sizes
    }
    any_run = runs[batch_sizes[0]]
    curves = convex.curves(analysis)
    names = [analysis.replace("-", "_")] if analysis else [guarantee_of(any_run), *curves, "last_iterate"]
    found = noise_rows(runs, names, epsilon, delta, tracker("calibrating"), curves)
    rows = [_row(runs[size], size, row) for size, row in found]
    described = ", ".join(training(any_run, epochs=False) + released(any_run))
    words = (
        f"{dataset_size:,} examples, {spell(epochs)} epochs, {described}; "
        f"noise for epsilon {spell_exact(epsilon)} at delta {spell_exact(delta)}"
    )
    if json:
        asked: JsonObject = {"dataset_size": dataset_size, "epochs": epochs, "sampling": method.sampling}
        asked |= optimizer_fields(any_run) | released_fields(any_run) | prediction_fields(any_run)
        asked |= convex.fields()
        chosen = {"analysis": names[0]} if analysis else {}
        print_json({**asked, "epsilon": epsilon, "delta": delta, **chosen, "rows": rows})
    else:
        tables = [(f"{words} by {ANALYSES[name].label_of(any_run)}", among(rows, "analysis", name)) for name in names]
        print_noise(tables, any_run)
    if plot is not None:
        from lastiterate.cli.output import pictures, write_beside
        from lastiterate.plot.run_charts import plan_chart

        drawn = pictures(lambda: plan_chart(rows, delta, words, caveat_of(any_run)), [plot])
        raise typer.Exit(write_beside(drawn, quiet=json))


def _row(run: DPSGD, size: int, row: Row) -> Row:
    """Return the row in order: analysis, batch size, steps, sample rate, results."""
    shape: Row = {"batch_size": size, "steps": run.steps, "sample_rate": float(run.sample_rate)}
    return {"analysis": row["analysis"], "is_guarantee": row["is_guarantee"], **shape, **row}


# Output: tables of noise, and a note on which analysis is a guarantee.


def print_noise(tables: Sequence[tuple[str, list[Row]]], run: DPSGD, notes: Sequence[str] = ()) -> None:
    """Print tables of noise, each with a title and rows; the notes follow the last table.

    The title or another column must name the analysis of a row. Analyses without any value have no column.
    """
    rows = [row for _, of_table in tables for row in of_table]
    answers = [key for key in rows[0] if not key.endswith("_reason") and key != "noise_multiplier"]
    empty = [key for key in answers if all(row[key] is None for row in rows)]
    reasons = dict.fromkeys(f"No {key.replace('_', ' ')}: {row[f'{key}_reason']}" for key in empty for row in rows)
    about = f"Neighbours: {neighbours_of(run)}."
    hidden = {"analysis", "is_guarantee", *empty}
    for index, (title, of_table) in enumerate(tables, start=1):
        shown = [{key: row[key] for key in row if key.removesuffix("_reason") not in hidden} for row in of_table]
        is_last = index == len(tables)
        print_rows(title, shown, [*reasons, about, _caution(rows, run), *notes] if is_last else [])
        if not is_last:
            print_note("")


def _caution(rows: list[Row], run: DPSGD) -> str:
    """Return a note: which analysis is a guarantee, and the guaranteed epsilon with the noise of the heuristic."""
    name = "no_amplification" if "no_amplification" in rows[0] else "composition"
    label = name.replace("_", " ").capitalize()
    note = f"{label} is a guarantee. Last iterate is a heuristic: it predicts, it does not guarantee."
    if is_adam(run.optimizer):
        note = f"{label} is a guarantee. {ADAM_CAVEAT}"
    promised = [number_in(row, name) for row in rows if row["analysis"] == "last_iterate" and row[name] is not None]
    if not promised:
        return note
    low, high = spell_up(min(promised)), spell_up(max(promised))
    return f"{note} With its noise the guarantee is epsilon {low if low == high else f'{low} to {high}'}."
