"""What counterexamples are about, and what was found in them, in sentences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lastiterate.counterexamples.finding import Case, Probe, known
from lastiterate.counterexamples.shift import is_one_number
from lastiterate.counterexamples.zeroing import MOST_STEPS
from lastiterate.rows import Row, largest, number
from lastiterate.wording import CAVEAT, spell, spell_down, spell_up

_EQUAL = 1e-6  # relative: what differs less is told as equal
_MATCHES = 0.999  # of an epsilon: as good as equal


@dataclass(frozen=True)
class Story:
    """A counterexample for people: its title, what happens in it, and how to say what was found."""

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
    alpha, most = number(worst, "alpha"), number(worst, "epsilon")
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
    above = [number(row, "growth") for row in rows if number(row, "exact_lower") > heuristic]
    where = f"is above the heuristic from growth {spell(above[0])} on" if above else "is never above the heuristic"
    return (
        f"With growth {spell(found.setting.growth)} the last iterate leaks epsilon {_spell_exact(asked)}, "
        f"{_share(known(case.exact), standard)} of the standard analysis' {spell_up(standard, 4)}; {tell_found(case)} "
        f"({_share(case.empirical, standard)}).",
        f"The heuristic predicts {spell_up(heuristic, 4)}: {compare(number(asked, 'exact_lower'), heuristic)}.",
        f"The larger the growth, the closer to the standard analysis: epsilon is {_spell_exact(rows[0])} at growth "
        f"{spell(number(rows[0], 'growth'))} and {_spell_exact(rows[-1])} at {spell(number(rows[-1], 'growth'))}. Of "
        f"the growths in the picture it {where}.",
        f"{CAVEAT} The example needs an unclipped regulariser that moves and enlarges coordinates, one for each step; "
        "nothing like it is in ordinary training.",
    )


def _spell_exact(row: Row) -> str:
    return tell_range(number(row, "exact_lower"), number(row, "exact"))


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
    """What an example leaks against what was predicted for it, in words."""
    if epsilon <= predicted * (1.0 + _EQUAL):
        return "the example does not leak more"
    if predicted == 0.0:
        return "the example leaks something"
    ratio = epsilon / predicted
    if ratio < 2.0:
        return f"the example leaks {100.0 * (ratio - 1.0):.3g}% more"
    return f"the example leaks {spell(ratio, 3) if ratio < 1000.0 else f'{ratio:,.0f}'} times as much"


def tell_steps(steps: int) -> str:
    """A number of steps, in words."""
    return f"{steps:,} step{'' if steps == 1 else 's'}"


def tell_found(case: Case) -> str:
    """What the attack found, in words."""
    return (
        f"the attack found at least {spell_down(case.empirical, 4)}"
        if case.empirical > 0.0
        else "the attack found nothing"
    )


def tell_range(lower: float, upper: float) -> str:
    """An epsilon between two bounds, by one number where they are as good as equal."""
    return spell(upper) if is_one_number(lower, upper) else f"{spell_down(lower, 4)} to {spell_up(upper, 4)}"
