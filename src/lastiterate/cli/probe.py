"""The command ``lastiterate probe``: counterexamples whose last iterate leaks more than the heuristic predicts."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from lastiterate.cli import output as out
from lastiterate.cli.app import OptionError
from lastiterate.cli.audit_options import EngineOptions, resumable
from lastiterate.cli.options import Json, Option, unfold
from lastiterate.common.types import JsonObject, Row, largest, number_in
from lastiterate.compare_analyses import answer_fields, run_fields
from lastiterate.formatting import CAVEAT, Table, describe, per_cent, spell, spell_down, spell_exact, spell_up
from lastiterate.labels import ANALYSES
from lastiterate.paper.counterexamples import NAMES, find
from lastiterate.paper.counterexamples.setting import Case, Encoding, Probe, Setting, known
from lastiterate.paper.counterexamples.shift import is_one_number
from lastiterate.paper.counterexamples.zeroing import MOST_STEPS
from lastiterate.plot.style import FOUND

STORE = Path("runs") / "probe"
_SEARCHED = ("steps", "sample_rate", "noise_multiplier", "delta")  # options of the search for the worst case


@dataclass(frozen=True)
class SettingOptions:
    """Options for the fields of a ``Setting``. The defaults depend on the counterexample."""

    steps: Annotated[int | None, "Number of updates."] = None
    sample_rate: Annotated[float | None, "Probability that an example is in a batch."] = None
    noise_multiplier: Annotated[float | None, "Standard deviation of the noise over the clipping norm."] = None
    delta: Annotated[float | None, "Delta of (epsilon, delta)-DP, in (0, 1)."] = None
    models: Annotated[int | None, "Models per world."] = None
    confidence: Annotated[float | None, "Confidence of the empirical epsilon (default: 0.95)."] = None
    seed: Annotated[int | None, "Seed of all randomness (default: 0)."] = None
    store: Annotated[
        Path | None, Option(f"Folder for every score, for resuming (default: {STORE.as_posix()}).", "FOLDER")
    ] = None
    alpha: Annotated[float | None, "quadratic: the share forgotten at each step (default: 0.5)."] = None
    growth: Annotated[float | None, "shift: the factor v of every step (default: 10)."] = None
    encoding: Annotated[Encoding | None, "malicious: what the model keeps of each step (default: both)."] = None


@unfold
def probe(
    options: SettingOptions,
    engine: EngineOptions,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help=f"The counterexample: {', '.join(NAMES)}.", show_default=False)
    ] = None,
    list_: Annotated[bool, "List the counterexamples."] = False,
    worst: Annotated[bool, "quadratic: search for the worst case, and train nothing."] = False,
    output: Annotated[
        Path | None,
        Option("Folder for probe-NAME.png and .html (default: the current one), or one file.", "FOLDER|FILE"),
    ] = None,
    json: Json = False,
) -> None:
    """Analyse, run and attack a counterexample of the paper.

    Each counterexample leaks more than the heuristic predicts for its run. A stopped probe resumes with the same
    command.

    \b
    Example:
      lastiterate probe --list
      lastiterate probe zeroing
      lastiterate probe quadratic --worst --steps 10 --sample-rate 0.1 --noise-multiplier 1 --delta 1e-6
    """
    if list_:
        if name is not None:
            raise OptionError(f"--list takes no NAME, got {name!r}")
        return _print_list(json)
    if name is None:
        raise OptionError(f"NAME must be given, one of {', '.join(NAMES)}; --list describes them")
    example = find(name)
    given = {field: value for field, value in vars(options).items() if value is not None}
    if options.store is not None and options.store.exists() and not options.store.is_dir():
        raise OptionError(f"--store must be a folder, got the file {str(options.store)!r}")
    for each in ("alpha", "growth", "encoding", "worst"):
        if (each in given or (each == "worst" and worst)) and each not in example.TAKES:
            own = " and ".join(f"--{taken}" for taken in example.TAKES)
            raise OptionError(f"--{each} does not apply to {name}" + (f": it takes {own}" if own else ""))
    setting = replace(example.DEFAULTS, **{"store": STORE, **given, "engine": engine.find()})
    if worst:
        also = {"output": output is not None, "engine": engine != EngineOptions()}
        for each in [*given, *(other for other, is_given in also.items() if is_given)]:
            if each not in _SEARCHED:
                raise OptionError(f"--{each} does not apply to --worst, which trains no models and draws no picture")
        return _print_worst(setting, json)
    files = [] if json and output is None else out.picture_files(f"probe-{name}", output or Path())
    out.check_apart({"--output": files, "--store": out.store_files(options.store or STORE)}, {})
    with resumable(setting.store or STORE):
        found = example.probe(setting, out.announcer(name))
    raise typer.Exit(_print_probe(found, files, json))


# Descriptions of the counterexamples, and sentences about their results.

_EQUAL = 1e-6  # relative difference below which epsilons are reported as equal
_MATCHES = 0.999  # epsilons with at least this ratio are reported as a match


@dataclass(frozen=True)
class Story:
    """The description of a counterexample: a title, an explanation, and sentences about a result."""

    title: str
    story: str
    sentences: Callable[[Probe], tuple[str, ...]]


def _zeroing(found: Probe) -> tuple[str, ...]:
    case, predicted, first = found.cases[-1], known(found.predictions["last_iterate"]), found.fields["region_first"]
    exact = known(case.exact)
    if first is None:
        where = (
            "With this sample rate and noise, the heuristic of many steps is never below the heuristic of one step. "
            "The regulariser only makes the model forget: this is no counterexample."
        )
    else:
        last = found.fields["region_last"]
        end = f"{last:,}" if last else f"more than {MOST_STEPS:,}"
        where = (
            f"The heuristic of {first:,} to {end} steps is below the heuristic of one step. It is lowest at "
            f"{found.fields['lowest_steps']:,} steps. The largest heuristic over all prefixes of this run is not too "
            "low."
        )
    steps = _tell_steps(found.run.steps)
    return (
        f"Only the last step is left in the model. After any number of steps it leaks epsilon {spell(exact)}, as much "
        f"as one step; {_tell_found(case)}.",
        f"The heuristic predicts {spell_up(predicted, 4)} for {steps}: {compare(exact, predicted)}.",
        where,
        f"{CAVEAT} The example needs an unclipped regulariser that erases the whole model at every step. Ordinary "
        "training has none.",
    )


def _quadratic(found: Probe) -> tuple[str, ...]:
    case, predicted = found.cases[-1], known(found.predictions["max_over_steps"])
    exact, worst = known(case.exact), largest(found.rows, "epsilon")
    alpha, most = number_in(worst, "alpha"), number_in(worst, "epsilon")
    hidden = "; more models are needed to show this difference" if case.empirical < predicted < exact else ""
    return (
        f"With alpha = {spell(found.setting.alpha)} the last iterate leaks epsilon {spell(exact, 5)}. The largest "
        f"heuristic of any run of up to {_tell_steps(found.run.steps)} is {spell_up(predicted)}: "
        f"{compare(exact, predicted)}.",
        f"With {found.setting.models:,} models in each world {_tell_found(case)}{hidden}.",
        f"The worst alpha in the picture is {spell(alpha)}. It leaks epsilon {spell(most, 5)}: "
        f"{compare(most, predicted)}.",
        f"{CAVEAT} The example needs a regulariser that is not clipped. Weight decay is one, with alpha = learning "
        "rate x weight decay, which is close to 0 in ordinary training.",
    )


def _shift(found: Probe) -> tuple[str, ...]:
    heuristic, standard = known(found.predictions["last_iterate"]), known(found.predictions["composition"])
    case, rows = found.cases[-1], found.rows
    (asked,) = (row for row in rows if row["growth"] == found.setting.growth)
    above = [number_in(row, "growth") for row in rows if number_in(row, "exact_lower") > heuristic]
    where = f"is above the heuristic from growth {spell(above[0])} on" if above else "is never above the heuristic"
    return (
        f"With growth {spell(found.setting.growth)} the last iterate leaks epsilon {_spell_exact(asked)}, "
        f"{_share(known(case.exact), standard)} of the standard analysis' {spell_up(standard, 4)}; {_tell_found(case)} "
        f"({_share(case.empirical, standard)}).",
        f"The heuristic predicts {spell_up(heuristic, 4)}: {compare(number_in(asked, 'exact_lower'), heuristic)}.",
        f"Epsilon approaches the standard analysis as growth increases: it is {_spell_exact(rows[0])} at growth "
        f"{spell(number_in(rows[0], 'growth'))} and {_spell_exact(rows[-1])} at "
        f"{spell(number_in(rows[-1], 'growth'))}. In the picture, epsilon {where}.",
        f"{CAVEAT} The example needs an unclipped regulariser that moves and enlarges one coordinate for each step. "
        "Ordinary training has none.",
    )


def _spell_exact(row: Row) -> str:
    return tell_range(number_in(row, "exact_lower"), number_in(row, "exact"))


def _share(part: float, whole: float) -> str:
    return f"{100.0 * part / whole:.3g}%" if whole > 0.0 else "100%"


def _malicious(found: Probe) -> tuple[str, ...]:
    heuristic, standard = known(found.predictions["last_iterate"]), known(found.predictions["composition"])
    sentences = []
    for case in found.cases:
        exact = known(case.exact)
        if case.label == "one-bit":
            share = exact / standard if standard > 0.0 else 1.0
            matches = "cannot match" if share < _MATCHES else "matches"
            sentences.append(
                f"One bit per step, the paper's encoding, leaks epsilon {spell(exact)}. The heuristic predicts "
                f"{spell_up(heuristic, 4)}, and composition guarantees {spell_up(standard, 4)}. This encoding leaks "
                f"{spell(share, 2)} of composition's epsilon: it {matches} the standard analysis."
            )
        elif exact <= heuristic * (2.0 - _MATCHES):
            sentences.append(f"The value of every step leaks {spell(exact, 5)}: this is no counterexample.")
        else:
            sentences.append(
                f"The value of every step leaks {spell(exact, 5)}: the last iterate leaks as much as all iterates. "
                f"The heuristic predicts {spell_up(heuristic, 4)}: {compare(exact, heuristic)}."
            )
    return (
        *sentences,
        f"{CAVEAT} The example needs a data set in which the gradients of all other examples depend on the parameters "
        "and the step. Natural data do not do this; data chosen by an adversary might.",
    )


STORIES = {
    "zeroing": Story(
        "Zeroing: the last iterate is a single step",
        "An unclipped regulariser erases the whole model at every step: only the canary and the noise of the last "
        "step are left. With small noise, the heuristic for many steps is below that for one step, because noise adds "
        "up faster than the canary's signal. The heuristic is then too low.",
        _zeroing,
    ),
    "quadratic": Story(
        "Quadratic regulariser: each step forgets a share of the model",
        "The canary's loss is linear, as the heuristic assumes. But an unclipped regulariser pulls the model towards "
        "zero, so that it forgets a share alpha at every step. At alpha = 0 the heuristic is exact. At alpha = 1 the "
        "last iterate is a single step. In between, the largest heuristic epsilon of any shorter run can be too low.",
        _quadratic,
    ),
    "shift": Story(
        "Shift: the last iterate remembers every step",
        "Each step changes the first coordinate. An unclipped regulariser then moves every coordinate to the next one "
        "and multiplies it by a factor, the growth, so that later noise hardly matters. The last iterate shows what "
        "all iterates show, and leaks as much as the standard analysis allows: hiding other iterates gains nothing.",
        _shift,
    ),
    "malicious": Story(
        "Malicious data set: other examples make the last iterate remember every step",
        "There is no regulariser, and every gradient is clipped. But all other examples are engineered: their "
        "gradients depend on the parameters and the step. The canary marks one coordinate at each step. The other "
        "examples keep a coordinate clean until its step, and then enlarge its value so much that later noise does not "
        "hide it. The final model alone shows all steps.",
        _malicious,
    ),
}


def compare(epsilon: float, predicted: float) -> str:
    """Compare the epsilon of an example with the prediction, in words."""
    if epsilon <= predicted * (1.0 + _EQUAL):
        return "the example does not leak more"
    if predicted == 0.0:
        return "the example leaks something"
    ratio = epsilon / predicted
    if ratio < 2.0:
        return f"the example leaks {100.0 * (ratio - 1.0):.3g}% more"
    return f"the example leaks {spell(ratio, 3) if ratio < 1000.0 else f'{ratio:,.0f}'} times as much"


def _tell_steps(steps: int) -> str:
    return f"{steps:,} step{'' if steps == 1 else 's'}"


def _tell_found(case: Case) -> str:
    found = f"at least {spell_down(case.empirical, 4)}" if case.empirical > 0.0 else "nothing"
    return f"the attack found {found}"


def tell_range(lower: float, upper: float) -> str:
    """Return the range of an epsilon in words, or one number if the bounds nearly agree."""
    return spell(upper) if is_one_number(lower, upper) else f"{spell_down(lower, 4)} to {spell_up(upper, 4)}"


def _print_list(json: bool) -> None:
    rows = [{"name": name, "title": each.title, "story": each.story} for name, each in STORIES.items()]
    if json:
        out.print_json({"rows": rows})
    else:
        table = [(row["name"], row["title"]) for row in rows]
        notes = ["lastiterate probe NAME runs one."]
        out.print_table(Table("Counterexamples", ("", "what happens"), table, set(), notes))


def _print_probe(found: Probe, files: list[Path], json: bool) -> int:
    from lastiterate.plot.counterexample import counterexample_chart

    if json:
        out.print_json(_probe_fields(found))
    else:
        _print_tables(found)
    drawn = out.pictures(lambda: counterexample_chart(found, STORIES[found.name].title), files)
    return out.write_beside(drawn, quiet=json)


def _print_tables(found: Probe) -> None:
    story, setting = STORIES[found.name], found.setting
    rows = [
        (
            ANALYSES[name].label,
            "none" if answer.value is None else spell_up(answer.value),
            answer.reason or ANALYSES[name].assumes,
        )
        for name, answer in found.predictions.items()
    ]
    for case in found.cases:
        rows += _case_rows(case, setting)
    out.print_note(f"{story.title}.\n\n{story.story}\n")
    title = f"{describe(found.run)}; delta {spell_exact(setting.delta)}"
    out.print_table(Table(title, ("", "epsilon", "what it is"), rows, {1}, story.sentences(found)))


def _case_rows(case: Case, setting: Setting) -> list[tuple[str, str, str]]:
    label = f", {case.label}" if case.label else ""
    exact = "none" if case.exact.value is None else spell(case.exact.value, 5)
    models = f"{setting.models:,} + {setting.models:,} models"
    meaning = case.exact.reason or "exact, for the last iterate of this example"
    if case.exact_lower is not None and case.exact.value is not None:
        meaning = f"upper bound: the numerical error leaves {tell_range(case.exact_lower, case.exact.value)}"
    sure = f"lower bound, at {per_cent(setting.confidence)} confidence, from {models}"
    if case.at_most.value is not None:
        sure = sure.replace("bound,", f"bound, and an upper bound of {spell_up(case.at_most.value, 4)}, each", 1)
    rows = [
        (f"true epsilon{label}", exact, meaning),
        (f"{FOUND}{label}", spell_down(case.empirical), f"{sure}; {case.method}"),
    ]
    if case.by_composition is not None:
        rows.append((f"{FOUND}{label}", spell_down(case.by_composition), "the same scores, by the composition family"))
    return rows


def _probe_fields(found: Probe) -> JsonObject:
    setting, case = found.setting, found.cases[-1]
    fields: JsonObject = {"name": found.name, **run_fields(found.run), "delta": setting.delta}
    fields |= answer_fields({**found.predictions, "true_epsilon": case.exact})
    fields |= {"empirical": case.empirical, "confidence": setting.confidence, "models": setting.models}
    fields |= {"method": case.method, **found.fields, "findings": STORIES[found.name].sentences(found)}
    fields["cases"] = [_case_fields(each) for each in found.cases]
    return fields | {"rows": found.rows}


def _case_fields(case: Case) -> JsonObject:
    fields: JsonObject = {"label": case.label, **answer_fields({"exact": case.exact}), "empirical": case.empirical}
    fields |= {"method": case.method, **answer_fields({"empirical_upper": case.at_most})}
    if case.by_composition is not None:
        fields["empirical_composition"] = case.by_composition
    return fields


def _print_worst(setting: Setting, json: bool) -> None:
    from lastiterate.paper.counterexamples.worst import worst

    run, delta = setting.calibrated_run(), setting.delta
    found = worst(run, delta, out.tracker("searching"))
    largest = found[0].largest
    if json:
        fields = {"name": "quadratic", **run_fields(run), "delta": delta, "max_over_steps": largest}
        rows: list[JsonObject] = [
            {"family": each.family, "epsilon": each.epsilon, "ratio": each.ratio, **each.parameters}
            | {"weights": each.weights.tolist()}
            for each in found
        ]
        out.print_json({**fields, "rows": rows})
        return
    table = []
    for each in found:
        parameters = [f"{name.replace('_', ' ')} {spell(value, 5)}" for name, value in each.parameters.items()]
        at = "no violation" if each.ratio <= 1.0 + 1e-9 else ", ".join(parameters) or "-"
        table.append((each.family, spell(each.epsilon, 5), f"{each.ratio:.4f}", at))
    notes = [
        f"If all steps have the same weight, the heuristic is at most {spell_up(largest)}, whenever training stops. "
        "Ratio: the epsilon with these weights, divided by this maximum. The search may miss larger ratios.",
        "If the run declares these weights, or this optimizer, the heuristic itself predicts these epsilons.",
    ]
    title = f"{describe(run)}; delta {spell_exact(delta)}\nThe worst weights of the steps, family by family"
    out.print_table(Table(title, ("family", "epsilon", "ratio", "at"), table, {1, 2}, notes))
