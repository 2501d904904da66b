"""The paper's pathological regulariser, over the factor by which it enlarges: from nothing to all that steps show.

The attack itself, and why composition is exact for it, is in `shifter`.
"""

from __future__ import annotations

from dataclasses import replace

from lastiterate.answers import Answer
from lastiterate.attacks.likelihood import telling_threshold
from lastiterate.counterexamples.finding import Case, Probe, last_iterate_scores, predict
from lastiterate.counterexamples.setting import Setting, required
from lastiterate.counterexamples.shifter import Shift
from lastiterate.privacy.analyses.composition import composition
from lastiterate.rows import Row, Track, number
from lastiterate.run import DPSGD

TAKES = ("growth",)
DEFAULTS = Setting(steps=50, sample_rate=0.1, noise_multiplier=None, delta=1e-5, models=100_000, growth=10.0)
_CURVE = (1.0, 1.05, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0)
_AUDITED = (1.5, 2.0, 3.0)  # beside the growth that was asked for, with fewer models
_FEWER = 20_000
_TIGHT = 1e-4  # bounds this close, relative to epsilon, are one number to a reader


def probe(setting: Setting, track: Track = iter) -> Probe:
    """Epsilon over growth, and audits at some of them, with most models at the one that was asked for."""
    Shift(setting.growth).check(required("steps", setting.steps))
    run = setting.calibrated_run()
    growths = sorted({*_CURVE, setting.growth})
    rows = [_row(setting, run, Shift(growth)) for growth in track(growths)]
    row = rows[growths.index(setting.growth)]
    exact, lower = number(row, "exact"), number(row, "exact_lower")
    case = Case(
        "",
        Answer(exact),
        number(row, "empirical"),
        "composition family of the plain run",
        exact_lower=None if is_one_number(lower, exact) else lower,
    )
    return Probe("shift", setting, run, predict(run, setting.delta), (case,), rows)


def is_one_number(lower: float, upper: float) -> bool:
    """Whether bounds on an epsilon are so close that readers need not see both."""
    return upper - lower < _TIGHT * upper


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
    row: Row = {"growth": attack.growth, "exact": exact, "exact_lower": lower, "models": models}
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
