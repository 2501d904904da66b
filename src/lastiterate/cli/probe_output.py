"""Output of ``lastiterate probe``: stories of the counterexamples, tables, JSON and pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lastiterate.cli.output import print_json, print_note, print_table
from lastiterate.common.types import Row, largest, number_in
from lastiterate.compare_analyses import answer_fields, run_fields
from lastiterate.formatting import CAVEAT, describe, per_cent, spell, spell_down, spell_exact, spell_up
from lastiterate.paper.counterexamples.setting import Case, Probe, known
from lastiterate.paper.counterexamples.shift import is_one_number
from lastiterate.paper.counterexamples.zeroing import MOST_STEPS
from lastiterate.plot.style import FOUND
from lastiterate.registry import ANALYSES

if TYPE_CHECKING:
    from lastiterate.common.types import JsonObject
    from lastiterate.paper.counterexamples.setting import Case, Probe, Setting
    from lastiterate.paper.counterexamples.worst import Violation
    from lastiterate.run import DPSGD


# Stories: descriptions of the counterexamples, and sentences about their results.

_EQUAL = 1e-6  # relative difference below which epsilons are reported as equal
_MATCHES = 0.999  # ratio of epsilons from which on they match


@dataclass(frozen=True)
class Story:
    """The description of a counterexample: its title, its story, and the sentences about a result."""

    title: str
    story: str
    sentences: Callable[[Probe], tuple[str, ...]]


def _zeroing(found: Probe) -> tuple[str, ...]:
    case, predicted, first = found.cases[-1], known(found.predictions["last_iterate"]), found.fields["region_first"]
    exact = known(case.exact)
    if first is None:
        where = (
            "With this sample rate and noise the heuristic is nowhere below that of one step: the regulariser only "
            "makes the model forget, and this is no counterexample."
        )
    else:
        last = found.fields["region_last"]
        end = f"{last:,}" if last else f"more than {MOST_STEPS:,}"
        where = (
            f"The heuristic is below that of one step for {first:,} to {end} steps, and lowest at "
            f"{found.fields['lowest_steps']:,}. The largest heuristic of any shorter run, which includes one step, is "
            "not too low."
        )
    steps = tell_steps(found.run.steps)
    return (
        f"Only the last step is left in the model, so that it leaks what one step leaks, epsilon {spell(exact)}, after "
        f"{steps} as after any number; {tell_found(case)}.",
        f"The heuristic predicts {spell_up(predicted, 4)} for {steps}: {compare(exact, predicted)}.",
        where,
        f"{CAVEAT} The example needs an unclipped regulariser that erases the whole model at every step, which no "
        "ordinary training has.",
    )


def _quadratic(found: Probe) -> tuple[str, ...]:
    case, predicted = found.cases[-1], known(found.predictions["max_over_steps"])
    exact, worst = known(case.exact), largest(found.rows, "epsilon")
    alpha, most = number_in(worst, "alpha"), number_in(worst, "epsilon")
    hidden = "; so small a difference takes more models to show" if case.empirical < predicted < exact else ""
    return (
        f"With alpha = {spell(found.setting.alpha)} the last iterate leaks epsilon {spell(exact, 5)}. The largest "
        f"heuristic of any run of up to {tell_steps(found.run.steps)} is {spell_up(predicted)}: "
        f"{compare(exact, predicted)}.",
        f"With {found.setting.models:,} models in each world {tell_found(case)}{hidden}.",
        f"Of the values of alpha in the picture, {spell(alpha)} leaks most: epsilon {spell(most, 5)}, where "
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
        f"{_share(known(case.exact), standard)} of the standard analysis' {spell_up(standard, 4)}; {tell_found(case)} "
        f"({_share(case.empirical, standard)}).",
        f"The heuristic predicts {spell_up(heuristic, 4)}: {compare(number_in(asked, 'exact_lower'), heuristic)}.",
        f"The larger the growth, the closer to the standard analysis: epsilon is {_spell_exact(rows[0])} at growth "
        f"{spell(number_in(rows[0], 'growth'))} and {_spell_exact(rows[-1])} at "
        f"{spell(number_in(rows[-1], 'growth'))}. Of the growths in the picture it {where}.",
        f"{CAVEAT} The example needs an unclipped regulariser that moves and enlarges coordinates, one for each step; "
        "nothing like it is in ordinary training.",
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
                f"One bit a step, the paper's encoding, leaks an epsilon of {spell(exact)}, where the heuristic says "
                f"{spell_up(heuristic, 4)} and composition {spell_up(standard, 4)}: with {spell(share, 2)} of "
                f"composition it {matches} the standard analysis."
            )
        elif exact <= heuristic * (2.0 - _MATCHES):
            sentences.append(f"The value of every step leaks {spell(exact, 5)}: this is no counterexample.")
        else:
            sentences.append(
                f"The value of every step leaks {spell(exact, 5)}: the last iterate is as good as all iterates; "
                f"where the heuristic says {spell_up(heuristic, 4)}, {compare(exact, heuristic)}."
            )
    return (
        *sentences,
        f"{CAVEAT} The example needs a data set in which all other examples conspire, with gradients that know the "
        "parameters and the step. Natural data do nothing of the kind; data that an adversary can choose might.",
    )


STORIES = {
    "zeroing": Story(
        "Zeroing: the last iterate is a single step",
        "An unclipped regulariser takes back the whole model at every step, and only the last step's canary and noise "
        "are left. With small noise one step leaks more than many, whose noise adds up before their signal does: the "
        "heuristic for many steps is then too low.",
        _zeroing,
    ),
    "quadratic": Story(
        "Quadratic regulariser: each step forgets a share of the model",
        "The canary's loss is linear, as the heuristic assumes, but an unclipped regulariser pulls the model towards "
        "zero and lets it forget a share alpha at every step. At alpha = 0 the heuristic is exact, at alpha = 1 the "
        "last iterate is a single step. In between, the largest heuristic epsilon of any shorter run can be too low.",
        _quadratic,
    ),
    "shift": Story(
        "Shift: the last iterate remembers every step",
        "An unclipped regulariser keeps what each step did to the first coordinate, by moving it to the next one and "
        "enlarging it by a factor, the growth, so that later noise hardly matters. The last iterate then shows what "
        "all iterates would, and leaks what the standard analysis says: hiding the other iterates gains nothing.",
        _shift,
    ),
    "malicious": Story(
        "Malicious data set: other examples make the last iterate remember every step",
        "There is no regulariser, and every gradient is clipped. But all other examples are engineered: their "
        "gradients depend on the parameters and the step. The canary marks one coordinate at each step; the others "
        "keep coordinates clean until their step comes, and then write what is there so large that later noise does "
        "not reach it. Who sees only the final model reads all steps from it.",
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


def tell_steps(steps: int) -> str:
    """Return a number of steps, in words."""
    return f"{steps:,} step{'' if steps == 1 else 's'}"


def tell_found(case: Case) -> str:
    """Return the lower bound that the attack found, in words."""
    return (
        f"the attack found at least {spell_down(case.empirical, 4)}"
        if case.empirical > 0.0
        else "the attack found nothing"
    )


def tell_range(lower: float, upper: float) -> str:
    """Return the range of an epsilon, in words; one number if the bounds nearly agree."""
    return spell(upper) if is_one_number(lower, upper) else f"{spell_down(lower, 4)} to {spell_up(upper, 4)}"


def print_list(json: bool) -> None:
    """Print the list of counterexamples; as JSON with their stories."""
    rows = [{"name": name, "title": each.title, "story": each.story} for name, each in STORIES.items()]
    if json:
        print_json({"rows": rows})
    else:
        table = [(row["name"], row["title"]) for row in rows]
        print_table("Counterexamples", ("", "what happens"), table, set(), ["lastiterate probe NAME runs one."])


def print_probe(found: Probe, files: list[Path], json: bool) -> int:
    """Print the table or the JSON object, draw the pictures, and return the exit status."""
    from lastiterate.cli.output import pictures, write_beside
    from lastiterate.plot.counterexample import counterexample_chart

    if json:
        print_json(probe_fields(found))
    else:
        _print_table(found)
    drawn = pictures(lambda: counterexample_chart(found, STORIES[found.name].title), files)
    return write_beside(drawn, quiet=json)


def _print_table(found: Probe) -> None:
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
    print_note(f"{story.title}.\n\n{story.story}\n")
    title = f"{describe(found.run)}; delta {spell_exact(setting.delta)}"
    print_table(title, ("", "epsilon", "what it is"), rows, {1}, story.sentences(found))


def _case_rows(case: Case, setting: Setting) -> list[tuple[str, str, str]]:
    label = f", {case.label}" if case.label else ""
    exact = "none" if case.exact.value is None else spell(case.exact.value, 5)
    models = f"{setting.models:,} + {setting.models:,} models"
    sure = f"at least this, at {per_cent(setting.confidence)} confidence, from {models}"
    if case.at_most.value is not None:
        sure = (
            f"at least this and at most {spell_up(case.at_most.value, 4)}, each {sure.removeprefix('at least this, ')}"
        )
    rows = [
        (f"true epsilon{label}", exact, _exactness(case)),
        (f"{FOUND}{label}", spell_down(case.empirical), f"{sure}; {case.method}"),
    ]
    if case.by_composition is not None:
        rows.append((f"{FOUND}{label}", spell_down(case.by_composition), "the same scores, by the composition family"))
    return rows


def _exactness(case: Case) -> str:
    if case.exact_lower is not None and case.exact.value is not None:
        return f"at most this: the numerics leave {tell_range(case.exact_lower, case.exact.value)}"
    return case.exact.reason or "exact, of the last iterate of this example"


def probe_fields(found: Probe) -> JsonObject:
    """Return a probe as JSON: the main case (the last), then all cases, then the numbers of the picture."""
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


def print_worst(run: DPSGD, delta: float, found: list[Violation], json: bool) -> None:
    """Print the largest violations of the heuristic that were found for a run, by family of weights."""
    largest = found[0].largest
    rows: list[JsonObject] = [
        {"family": each.family, "epsilon": each.epsilon, "ratio": each.ratio, **each.parameters} for each in found
    ]
    if json:
        fields = {"name": "quadratic", **run_fields(run), "delta": delta, "max_over_steps": largest}
        rows = [{**row, "weights": each.weights.tolist()} for row, each in zip(rows, found, strict=True)]
        print_json({**fields, "rows": rows})
        return
    table = [(each.family, spell(each.epsilon, 5), f"{each.ratio:.4f}", _spell_parameters(each)) for each in found]
    notes = [
        f"If all steps count alike, the heuristic predicts {spell_up(largest)} at most, whenever stopped. Ratio: how "
        "much more leaks if they count as stated; the worst that was found, so at least this.",
        "Give the weights, or the optimizer, to the run, and the heuristic itself predicts these epsilons.",
    ]
    title = f"{describe(run)}; delta {spell_exact(delta)}\nThe worst weights of the steps, family by family"
    print_table(title, ("family", "epsilon", "ratio", "at"), table, {1, 2}, notes)


def _spell_parameters(found: Violation) -> str:
    if found.ratio <= 1.0 + 1e-9:
        return "no violation"
    return ", ".join(f"{name.replace('_', ' ')} {spell(value, 5)}" for name, value in found.parameters.items()) or "-"
