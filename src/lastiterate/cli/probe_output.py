"""What ``probe`` prints and draws."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lastiterate.answers import answer_fields, run_fields
from lastiterate.cli.output import print_json, print_note, print_table
from lastiterate.cli.probe_sentences import STORIES, tell_range
from lastiterate.plot.style import FOUND
from lastiterate.vocabulary import ANALYSES
from lastiterate.wording import describe, per_cent, spell, spell_down, spell_exact, spell_up

if TYPE_CHECKING:
    from lastiterate.counterexamples.finding import Case, Probe
    from lastiterate.counterexamples.setting import Setting
    from lastiterate.counterexamples.worst import Violation
    from lastiterate.rows import Fields
    from lastiterate.run import DPSGD


def print_list(json: bool) -> None:
    """The counterexamples, with their stories."""
    rows = [{"name": name, "title": each.title, "story": each.story} for name, each in STORIES.items()]
    if json:
        print_json({"rows": rows})
    else:
        table = [(row["name"], row["title"]) for row in rows]
        print_table("Counterexamples", ("", "what happens"), table, set(), ["lastiterate probe NAME runs one."])


def print_probe(found: Probe, files: list[Path], json: bool) -> int:
    """Print the table or the JSON object, draw, and say with which status to exit."""
    from lastiterate.cli.pictures import pictures, write_beside
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


def probe_fields(found: Probe) -> Fields:
    """A probe as JSON: the most telling case first, then all of them, then the numbers of the picture."""
    setting, case = found.setting, found.cases[-1]
    fields: Fields = {"name": found.name, **run_fields(found.run), "delta": setting.delta}
    fields |= answer_fields({**found.predictions, "true_epsilon": case.exact})
    fields |= {"empirical": case.empirical, "confidence": setting.confidence, "models": setting.models}
    fields |= {"method": case.method, **found.fields, "findings": STORIES[found.name].sentences(found)}
    fields["cases"] = [_case_fields(each) for each in found.cases]
    return fields | {"rows": found.rows}


def _case_fields(case: Case) -> Fields:
    fields: Fields = {"label": case.label, **answer_fields({"exact": case.exact}), "empirical": case.empirical}
    fields |= {"method": case.method, **answer_fields({"empirical_upper": case.at_most})}
    if case.by_composition is not None:
        fields["empirical_composition"] = case.by_composition
    return fields


def print_worst(run: DPSGD, delta: float, found: list[Violation], json: bool) -> None:
    """How large the violation of a run can get at all."""
    largest = found[0].largest
    rows: list[Fields] = [
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
