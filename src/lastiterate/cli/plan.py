"""``lastiterate plan``: which batch size? The noise each needs, and what each leaks then, as in the paper's tables."""

from typing import TYPE_CHECKING, Annotated, Any

from lastiterate.cli import values
from lastiterate.cli.options import Analysis, Delta, Epsilon, Json, MethodOptions, Plot, option
from lastiterate.cli.unfold import unfold

if TYPE_CHECKING:
    from lastiterate.run import DPSGD

DatasetSize = Annotated[int, option("--dataset-size", values.integer, "INTEGER", "Number of examples.")]
Epochs = Annotated[float, option("--epochs", values.number, "NUMBER", "Passes over the data.")]
BatchSizes = Annotated[Any, option("--batch-sizes", values.integers, "B1,B2,...", "Batch sizes to compare.")]


@unfold
def plan(
    dataset_size: DatasetSize,
    epochs: Epochs,
    batch_sizes: BatchSizes,
    epsilon: Epsilon,
    delta: Delta,
    method: MethodOptions,
    analysis: Analysis = "last-iterate",
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Which batch size? The noise that each needs.

    For each batch size: steps, sample rate, the noise multiplier for the target epsilon under the chosen analysis, and
    epsilon under all three analyses then.

    \b
    Example:
      lastiterate plan --dataset-size 50000 --epochs 60 --batch-sizes 256,512,4096 --epsilon 6 --delta 1e-5
    """
    from lastiterate.cli.output import print_json, print_rows
    from lastiterate.plot.words import LABELS, spell, training
    from lastiterate.run import DPSGD

    if plot is not None:
        from lastiterate.plot.file import check_target

        check_target(plot)
    chosen = analysis.replace("-", "_")
    runs = {size: DPSGD.from_batches(dataset_size, size, epochs, 1.0, **method.fields()) for size in batch_sizes}
    rows = _rows(runs, epsilon, delta, chosen)
    words = (
        f"{dataset_size:,} examples, {spell(epochs)} epochs, {', '.join(training(runs[batch_sizes[0]]))}; "
        f"noise for epsilon {spell(epsilon)} at delta {spell(delta)} by {LABELS[chosen]}"
    )
    if plot is not None:
        from lastiterate.plot.file import save
        from lastiterate.plot.plan import plan_chart

        save(plan_chart(rows, delta, words), plot)
    if json:
        asked = {"dataset_size": dataset_size, "epochs": epochs, "sampling": method.sampling}
        print_json({**asked, "epsilon": epsilon, "delta": delta, "analysis": chosen, "rows": rows})
        return
    guarantee = "No amplification" if "no_amplification" in rows[0] else "Composition"
    notes = [f"Last iterate is a heuristic: it predicts, it does not guarantee. {guarantee} is the guarantee."]
    if plot is not None:
        notes.append(f"Picture: {plot}")
    print_rows(words, rows, notes)


def _rows(runs: "dict[int, DPSGD]", epsilon: float, delta: float, chosen: str) -> list[dict[str, Any]]:
    import lastiterate
    from lastiterate.answers import answer_fields, ask_all, find_analysis
    from lastiterate.cli.progress import tracker

    rows = []
    for size, uncalibrated in tracker("calibrating")(list(runs.items())):
        run = lastiterate.calibrate(uncalibrated, epsilon=epsilon, delta=delta, analysis=find_analysis(chosen))
        shape = {name: getattr(run, name) for name in ("steps", "sample_rate", "noise_multiplier")}
        rows.append({"batch_size": size, **shape, **answer_fields(ask_all(run, lambda curve: curve.epsilon(delta)))})
    return rows
