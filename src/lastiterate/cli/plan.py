"""``lastiterate plan``: which batch size? The noise each needs, and what each leaks then, as in the paper's tables."""

from typing import TYPE_CHECKING, Annotated

import typer

from lastiterate.cli import values
from lastiterate.cli.options import (
    Analysis,
    ConvexOptions,
    Delta,
    Epsilon,
    Json,
    LastBatchOption,
    MethodOptions,
    Plot,
    integer_option,
    number_option,
    option,
)
from lastiterate.cli.unfold import unfold

if TYPE_CHECKING:
    from lastiterate.rows import Fields, Row
    from lastiterate.run import DPSGD

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
    """Which batch size? The noise that each needs.

    For each batch size: steps, sample rate, the noise multiplier for the target epsilon, and epsilon under all analyses
    then. One table for a guarantee and one for the heuristic, or a single one by the analysis of your choice.

    \b
    Example:
      lastiterate plan --dataset-size 50000 --epochs 60 --batch-sizes 256,512,4096 --epsilon 6 --delta 1e-5
    """
    from lastiterate.answers import guarantee_of, noise_rows, optimizer_fields, prediction_fields, released_fields
    from lastiterate.cli.noise_output import print_noise
    from lastiterate.cli.output import print_json
    from lastiterate.cli.progress import tracker
    from lastiterate.rows import among
    from lastiterate.run import DPSGD
    from lastiterate.vocabulary import ANALYSES
    from lastiterate.wording import caveat_of, released, spell, spell_exact, training

    if plot is not None:
        from lastiterate.plot.file import check_target

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
        asked: Fields = {"dataset_size": dataset_size, "epochs": epochs, "sampling": method.sampling}
        asked |= optimizer_fields(any_run) | released_fields(any_run) | prediction_fields(any_run)
        asked |= convex.fields()
        chosen = {"analysis": names[0]} if analysis else {}
        print_json({**asked, "epsilon": epsilon, "delta": delta, **chosen, "rows": rows})
    else:
        tables = [(f"{words} by {ANALYSES[name].label_of(any_run)}", among(rows, "analysis", name)) for name in names]
        print_noise(tables, any_run)
    if plot is not None:
        from lastiterate.cli.pictures import pictures, write_beside
        from lastiterate.plot.plan import plan_chart

        drawn = pictures(lambda: plan_chart(rows, delta, words, caveat_of(any_run)), [plot])
        raise typer.Exit(write_beside(drawn, quiet=json))


def _row(run: "DPSGD", size: int, row: "Row") -> "Row":
    """The size and shape of a run before what was found, the analysis first."""
    shape: Row = {"batch_size": size, "steps": run.steps, "sample_rate": float(run.sample_rate)}
    return {"analysis": row["analysis"], "is_guarantee": row["is_guarantee"], **shape, **row}
