"""The paper's pathological regulariser: the last iterate remembers every step, each in a coordinate of its own.

The regulariser moves coordinate i, times v, to coordinate i + 1, and empties the first, where the canary and the noise
of the next step arrive. In the last iterate of T steps and T coordinates, coordinate i times v^(1-i) is

    A_(T-i+1) + N(0, sigma_i^2),    sigma_i^2 = sigma^2 (1 + v^-2 + ... + v^-2(i-1)),

where A_t says whether the canary was in batch t (the paper's index T - i is off by one). A diagonal of the noise is in
one coordinate only, so that coordinates are independent, and the last iterate is as good as all iterates of a run with
the noise sigma_i: composition of that run is exact for every v, and tends to the plain run's as v grows.

The update is the paper's, so that the last coordinate is about v^(T-1) large. Models are trained in float64, which
holds 1e301 and some standard deviations: v = 2 with 1,000 steps, v = 1e6 with 50. More is refused. Whatever rounding
drops is below 1e-13 standard deviations of a coordinate's noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from lastiterate.answers import Answer
from lastiterate.attacks.attack import Armed, Expected, Facts, References, Words
from lastiterate.attacks.likelihood import log_likelihood_ratio, sample_likelihood_ratios
from lastiterate.counterexamples.probe import Case, Probe, Setting, last_iterate_scores, predict, require_plain
from lastiterate.counterexamples.quadratic import compare, known, required, tell_found
from lastiterate.plot.probe import EXACT, epsilon_axis, level, lines, picture, points
from lastiterate.plot.style import Row, Track, log_x
from lastiterate.plot.words import CAVEAT, LABELS, spell
from lastiterate.privacy.composition import composition
from lastiterate.run import DPSGD
from lastiterate.values import Array, number

if TYPE_CHECKING:
    import jax

TITLE = "Shift: the last iterate remembers every step"
STORY = (
    "An unclipped regulariser keeps what each step did to the first coordinate, by moving it to the next one and "
    "enlarging it by a factor, the growth, so that later noise hardly matters. The last iterate then shows what all "
    "iterates would, and leaks what the standard analysis says: hiding the other iterates gains nothing."
)
TAKES = ("growth",)
DEFAULTS = Setting(steps=50, sample_rate=0.1, noise_multiplier=None, delta=1e-5, models=100_000, growth=10.0)
LARGEST = 301.0  # decimal digits of v^(T-1): seven less than float64 holds, for the noise and the learning rate
_CURVE = (1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0)
_AUDITED = (1.5, 2.0, 3.0)  # beside the growth that was asked for, with fewer models
_FEWER = 20_000
_FALSE_POSITIVES = 0.1  # rate at the threshold: for 100 to 1,000 steps, rates from 0.06 to 0.2 show as much within 1%
_ASIDE = 1.05  # between the outermost points and the picture's frame
_TIGHT = 1e-4  # bounds this close, relative to epsilon, are one number to a reader
_DRAWS = 50_000  # of scores without the canary, from which the threshold follows


@dataclass(frozen=True)
class Shift:
    """A canary that pushes the first coordinate, nothing else in the data, and the regulariser that shifts."""

    growth: float
    brings_problem: ClassVar[bool] = True

    def __post_init__(self) -> None:
        number("growth", self.growth, 1.0)

    def craft(self, run: DPSGD, problem: Any, references: References) -> Facts:
        return {}

    def arm(self, run: DPSGD, problem: Any, facts: Facts) -> Armed:
        import jax.numpy as jnp

        from lastiterate.training import GradientCanary, Problem

        self.check(run.steps)
        rate = require_plain(run)

        def gradient(model: jax.Array, step: jax.Array) -> jax.Array:
            moved = jnp.concatenate((jnp.zeros(1, model.dtype), self.growth * model[:-1]))
            return (model - moved) / rate

        canary = np.zeros(run.steps)
        canary[0] = run.clip_norm
        setting = Problem(np.zeros(run.steps), regulariser_gradient=gradient)
        return Armed(setting, GradientCanary(canary), ShiftScore(self, run), double=True)

    def expected(self, facts: Facts) -> Expected:
        return Expected("none")  # the likelihood ratio's law is not the run's own, but that of the run as seen

    def words(self, facts: Facts) -> Words:
        return Words(f"shifting regulariser, growth {spell(self.growth)}", "nats of the log-likelihood ratio")

    def seen(self, run: DPSGD) -> DPSGD:
        """The run whose iterates, all of them, tell what the last iterate tells here. Its first step is run's last."""
        return run.replace(noise_multiplier=run.noise_multiplier * noise_factors(self.growth, run.steps))

    def check(self, steps: int) -> None:
        """Refuse a growth with which float64 would overflow."""
        if not self.fits(steps):
            most = 10.0 ** (LARGEST / (steps - 1))
            raise ValueError(
                f"growth must be at most {_spell_down(most)} for {steps:,} steps, as growth^(steps - 1) must "
                f"stay in the range of floating-point numbers, got {self.growth!r}"
            )

    def fits(self, steps: int) -> bool:
        """Whether float64 holds the last coordinate."""
        return (steps - 1) * float(np.log10(self.growth)) <= LARGEST


@dataclass(frozen=True)
class ShiftScore:
    """The best distinguisher: the log-likelihood ratios of all coordinates, added up."""

    attack: Shift
    run: DPSGD

    def __call__(self, parameters: Any) -> Array:
        seen = self.attack.seen(self.run)
        observed = self.observed(parameters)
        return sum(log_likelihood_ratio(seen, observed[:, i], i) for i in range(self.run.steps))

    def observed(self, parameters: Any) -> Array:
        """Each step's noisy sum along the canary, in clipping norms, the last step's first."""
        scale = self.attack.growth ** -np.arange(self.run.steps, dtype=np.float64)
        return -np.asarray(parameters, np.float64) * scale / (require_plain(self.run) * self.run.clip_norm)


def noise_factors(growth: float, steps: int) -> Array:
    """sigma_i / sigma for each coordinate: by summing, which holds for every growth, 1 among them."""
    return np.sqrt(np.cumsum(growth ** (-2.0 * np.arange(steps))))


def threshold_of(seen: DPSGD) -> float:
    """The score that models without the canary reach with probability 0.1, from draws that have a seed of their own."""
    drawn = sample_likelihood_ratios(seen, np.zeros(_DRAWS, bool), np.random.default_rng(0))
    return float(np.quantile(drawn, 1.0 - _FALSE_POSITIVES))


def probe(setting: Setting, track: Track = iter) -> Probe:
    """Epsilon over growth, and audits at some of them, with most models at the one that was asked for."""
    Shift(setting.growth).check(required("steps", setting.steps))
    run = setting.calibrated_run()
    growths = sorted({*_CURVE, setting.growth})
    rows = [_row(setting, run, Shift(growth)) for growth in track(growths)]
    row = rows[growths.index(setting.growth)]
    case = Case("", Answer(row["exact"]), row["empirical"], "composition family of the plain run")
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
    from lastiterate.auditing.estimate import estimate

    scores = last_iterate_scores(setting, run, attack, "shift")
    threshold = threshold_of(attack.seen(run))
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


def _spell_down(value: float) -> str:
    """A bound, rounded so that what is read can be given."""
    unit = 10.0 ** (np.floor(np.log10(value)) - 3.0)
    return spell(np.floor(value / unit) * unit)


def _share(part: float, whole: float) -> str:
    return f"{100.0 * part / whole:.3g}%" if whole > 0.0 else "100%"


def chart(found: Probe) -> Any:
    """Epsilon over growth between what the heuristic predicts and what the standard analysis guarantees."""
    ends = found.rows[0]["growth"] / _ASIDE, found.rows[-1]["growth"] * _ASIDE
    names = ("last_iterate", "composition")
    drawn = [{"growth": row["growth"], "analysis": EXACT, "epsilon": row["exact"]} for row in found.rows]
    for name in names:
        drawn += level("growth", ends, LABELS[name], found.predictions[name].value)
    audited = [{**row, "epsilon": row["empirical"]} for row in found.rows if row["models"]]
    x = log_x("growth", "growth v of a coordinate at each step (log scale)", *ends)
    y = epsilon_axis(found.setting.delta, 0.0, 1.1 * max(row["epsilon"] for row in drawn + audited))
    others = {row["models"] for row in audited} - {found.setting.models}
    more = [f"Points at other growths than {spell(found.setting.growth)}: {count:,} models." for count in others]
    return picture(found, TITLE, [lines(drawn, x, y), points(audited, x, y)], *more)
