"""The paper's pathological regulariser, over the factor by which it enlarges: from nothing to all that steps show.

The attack itself, and why composition is exact for it, is in `shifter`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lastiterate.answers import Answer
from lastiterate.attacks.likelihood import telling_threshold
from lastiterate.counterexamples.probe import Case, Probe, Setting, last_iterate_scores, predict, required
from lastiterate.counterexamples.shifter import Shift
from lastiterate.counterexamples.words import compare, known, tell_found
from lastiterate.plot.probe import level, lines, picture, points
from lastiterate.plot.style import EXACT, Row, Track, epsilon_y, log_x
from lastiterate.privacy.analyses.composition import composition
from lastiterate.run import DPSGD
from lastiterate.vocabulary import ANALYSES
from lastiterate.wording import CAVEAT, spell

TITLE = "Shift: the last iterate remembers every step"
STORY = (
    "An unclipped regulariser keeps what each step did to the first coordinate, by moving it to the next one and "
    "enlarging it by a factor, the growth, so that later noise hardly matters. The last iterate then shows what all "
    "iterates would, and leaks what the standard analysis says: hiding the other iterates gains nothing."
)
TAKES = ("growth",)
DEFAULTS = Setting(steps=50, sample_rate=0.1, noise_multiplier=None, delta=1e-5, models=100_000, growth=10.0)
_CURVE = (1.0, 1.05, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0)
_AUDITED = (1.5, 2.0, 3.0)  # beside the growth that was asked for, with fewer models
_FEWER = 20_000
_ASIDE = 1.05  # between the outermost points and the picture's frame
_TIGHT = 1e-4  # bounds this close, relative to epsilon, are one number to a reader


def probe(setting: Setting, track: Track = iter) -> Probe:
    """Epsilon over growth, and audits at some of them, with most models at the one that was asked for."""
    Shift(setting.growth).check(required("steps", setting.steps))
    run = setting.calibrated_run()
    growths = sorted({*_CURVE, setting.growth})
    rows = [_row(setting, run, Shift(growth)) for growth in track(growths)]
    row = rows[growths.index(setting.growth)]
    tight = row["exact"] - row["exact_lower"] < _TIGHT * row["exact"]
    reason = "" if tight else f"at most this: the numerics leave {_spell_exact(row)}"
    case = Case("", Answer(row["exact"], reason), row["empirical"], "composition family of the plain run")
    predictions = predict(run, setting.delta)
    return Probe("shift", setting, run, predictions, (case,), _sentences(row, case, predictions, rows), rows)


def _row(setting: Setting, run: DPSGD, attack: Shift) -> Row:
    """One growth, exact and, for some, audited.

    ``exact`` is never too low. Near growth 1, where few coordinates count, it can be some per cent too high, and the
    truth lies between ``exact_lower`` and it.
    """
    curve = composition(attack.seen(run))
    exact, (lower, _) = curve.epsilon(setting.delta), curve.bracket(setting.delta)
    models = setting.models
    if attack.growth != setting.growth:
        models = min(models, _FEWER) if attack.growth in _AUDITED and attack.fits(run.steps) else 0
    row = {"growth": attack.growth, "exact": exact, "exact_lower": lower, "models": models}
    if not models:
        return {**row, "empirical": None, "empirical_reason": "no models were trained with this growth"}
    return {**row, "empirical": find_epsilon(replace(setting, models=models), run, attack)}


def find_epsilon(setting: Setting, run: DPSGD, attack: Shift) -> float:
    """What the attack finds.

    The family is that of the plain run, all of whose steps have the same noise: an attack that does not know the
    growth. Where noise differs much from coordinate to coordinate, at growths near 1, it finds only half.
    """
    from lastiterate.auditing.evidence.estimate import estimate

    scores = last_iterate_scores(setting, run, attack, "shift")
    threshold = telling_threshold(attack.seen(run))
    return estimate(*scores, setting.delta, setting.confidence, "composition", threshold, run).epsilon


def _sentences(asked: Row, case: Case, predictions: dict[str, Answer], rows: list[Row]) -> tuple[str, ...]:
    heuristic, standard = known(predictions["last_iterate"]), known(predictions["composition"])
    above = [row["growth"] for row in rows if row["exact_lower"] > heuristic]
    where = f"is above the heuristic from growth {spell(above[0])} on" if above else "is never above the heuristic"
    return (
        f"With growth {spell(asked['growth'])} the last iterate leaks epsilon {_spell_exact(asked)}, "
        f"{_share(asked['exact'], standard)} of the standard analysis' {spell(standard)}; {tell_found(case)} "
        f"({_share(case.empirical, standard)}).",
        f"The heuristic predicts {spell(heuristic)}: {compare(asked['exact_lower'], heuristic)}.",
        f"The larger the growth, the closer to the standard analysis: epsilon is {_spell_exact(rows[0])} at growth "
        f"{spell(rows[0]['growth'])} and {_spell_exact(rows[-1])} at {spell(rows[-1]['growth'])}. Of the growths in "
        f"the picture it {where}.",
        f"{CAVEAT} The example needs an unclipped regulariser that moves and enlarges coordinates, one for each step; "
        "nothing like it is in ordinary training.",
    )


def _spell_exact(row: Row) -> str:
    low, high = spell(row["exact_lower"]), spell(row["exact"])
    return high if row["exact"] - row["exact_lower"] < _TIGHT * row["exact"] else f"{low} to {high}"


def _share(part: float, whole: float) -> str:
    return f"{100.0 * part / whole:.3g}%" if whole > 0.0 else "100%"


def chart(found: Probe) -> Any:
    """Epsilon over growth between what the heuristic predicts and what the standard analysis guarantees."""
    ends = found.rows[0]["growth"] / _ASIDE, found.rows[-1]["growth"] * _ASIDE
    names = ("last_iterate", "composition")
    drawn = [{"growth": row["growth"], "analysis": EXACT, "epsilon": row["exact"]} for row in found.rows]
    for name in names:
        drawn += level("growth", ends, ANALYSES[name].label, found.predictions[name].value)
    audited = [{**row, "epsilon": row["empirical"]} for row in found.rows if row["models"]]
    x = log_x("growth", "growth v of a coordinate at each step (log scale)", *ends)
    y = epsilon_y(found.setting.delta, between=(0.0, 1.1 * max(row["epsilon"] for row in drawn + audited)))
    others = {row["models"] for row in audited} - {found.setting.models}
    more = [f"Points at other growths than {spell(found.setting.growth)}: {count:,} models." for count in others]
    return picture(found, TITLE, [lines(drawn, x, y), points(audited, x, y)], *more)
