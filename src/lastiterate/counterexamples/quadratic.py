"""A linear loss and a quadratic regulariser: every step forgets a share alpha of the model.

With r(m) = alpha / (2 eta) ||m||^2 the step t counts (1 - alpha)^(T - t) in the last iterate. The noise is forgotten
like the signal, but not in the same proportion, and between alpha = 0 (the heuristic) and alpha = 1 (a single step) the
last iterate can leak more than at both ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lastiterate.answers import Answer
from lastiterate.attacks.attack import Armed, BringsProblem, Facts, References, Unknown, Words
from lastiterate.attacks.linear_score import LinearScore, noise_unit
from lastiterate.counterexamples.probe import (
    Case,
    Probe,
    Setting,
    largest,
    last_iterate_scores,
    predict,
    require_plain,
    required,
)
from lastiterate.counterexamples.words import compare, known, tell_found, tell_steps
from lastiterate.plot.probe import level, lines, picture, points
from lastiterate.plot.style import EXACT, Row, Track, chart_of, epsilon_y
from lastiterate.privacy.analyses.last_iterate import last_iterate
from lastiterate.run import DPSGD
from lastiterate.values import number
from lastiterate.vocabulary import ANALYSES
from lastiterate.wording import CAVEAT, spell

TITLE = "Quadratic regulariser: each step forgets a share of the model"
STORY = (
    "The canary's loss is linear, as the heuristic assumes, but an unclipped regulariser pulls the model towards zero "
    "and lets it forget a share alpha at every step. At alpha = 0 the heuristic is exact, at alpha = 1 the last "
    "iterate is a single step. In between, the largest heuristic epsilon of any shorter run can be too low."
)
TAKES = ("alpha", "worst")
DEFAULTS = Setting(steps=3, sample_rate=0.1, noise_multiplier=1.0, delta=1e-6, models=100_000)  # the paper's
_CURVE = np.linspace(0.0, 1.0, 41)


@dataclass(frozen=True)
class Regularised(BringsProblem):
    """A canary of constant gradient, nothing else in the data, and the regulariser alpha / (2 eta) ||m||^2."""

    alpha: float

    def __post_init__(self) -> None:
        number("alpha", self.alpha, 0.0, 1.0)

    def craft(self, run: DPSGD, problem: Any, references: References) -> Facts:
        return {}

    def arm(self, run: DPSGD, problem: Any, facts: Facts) -> Armed:
        import jax.numpy as jnp

        from lastiterate.training import GradientCanary, Problem

        rate = require_plain(run)
        strength = self.alpha / rate
        setting = Problem(
            np.zeros(1, np.float32), regulariser=lambda model, step: 0.5 * strength * jnp.sum(jnp.square(model))
        )
        canary = GradientCanary(np.array([run.clip_norm], np.float32))
        return Armed(setting, canary, LinearScore(np.ones(1), 0.0, rate * noise_unit(self.seen(run))))

    def expected(self, facts: Facts) -> Unknown:
        return Unknown()

    def words(self, facts: Facts) -> Words:
        return Words(f"quadratic regulariser, alpha {spell(self.alpha)}", "standard deviations of the noise")

    def seen(self, run: DPSGD) -> DPSGD:
        """The run as its last iterate shows it: with the weights that the regulariser leaves to each step."""
        ago = np.arange(run.steps - 1, -1, -1, dtype=np.float64)
        return run.replace(optimizer=None, weights=(1.0 - self.alpha) ** ago)


def find_epsilon(setting: Setting, run: DPSGD, alpha: float, name: str) -> Case:
    """The exact epsilon of the last iterate, and what an attack on it finds."""
    from lastiterate.auditing.evidence.estimate import estimate

    attack = Regularised(alpha)
    seen = attack.seen(run)
    scores = last_iterate_scores(setting, run, attack, name)
    found = estimate(*scores, setting.delta, setting.confidence, "last-iterate", "a-priori", seen)
    exact = Answer(last_iterate(seen).epsilon(setting.delta))
    return Case("", exact, found.epsilon, "last-iterate family with the regulariser's weights")


def probe(setting: Setting, track: Track = iter) -> Probe:
    """Epsilon over alpha, and an audit at the one that was asked for."""
    run = setting.run(required("steps", setting.steps), required("noise_multiplier", setting.noise_multiplier))
    predictions = predict(run, setting.delta)
    alphas = sorted({*_CURVE.tolist(), setting.alpha})
    rows: list[Row] = [
        {"alpha": alpha, "epsilon": last_iterate(Regularised(alpha).seen(run)).epsilon(setting.delta)}
        for alpha in track(alphas)
    ]
    case = find_epsilon(setting, run, setting.alpha, "quadratic")
    sentences = _sentences(setting, run, case, known(predictions["max_over_steps"]), largest(rows, "epsilon"))
    return Probe("quadratic", setting, run, predictions, (case,), sentences, rows)


def _sentences(setting: Setting, run: DPSGD, case: Case, predicted: float, worst: Row) -> tuple[str, ...]:
    exact = known(case.exact)
    hidden = "; so small a difference takes more models to show" if case.empirical < predicted < exact else ""
    return (
        f"With alpha = {spell(setting.alpha)} the last iterate leaks epsilon {spell(exact, 5)}. The largest heuristic "
        f"of any run of up to {tell_steps(run.steps)} is {spell(predicted, 5)}: {compare(exact, predicted)}.",
        f"With {setting.models:,} models in each world {tell_found(case)}{hidden}.",
        f"Of the values of alpha in the picture, {spell(worst['alpha'])} leaks most: epsilon "
        f"{spell(worst['epsilon'], 5)}, where {compare(worst['epsilon'], predicted)}.",
        f"{CAVEAT} The example needs a regulariser that is not clipped. Weight decay is one, with alpha = learning "
        "rate x weight decay, which is close to 0 in ordinary training.",
    )


def chart(found: Probe) -> Any:
    """Epsilon over alpha against the largest heuristic of any shorter run."""
    import altair as alt

    predicted, case = known(found.predictions["max_over_steps"]), found.cases[-1]
    worst = largest(found.rows, "epsilon")
    epsilons = [predicted, case.empirical, *(row["epsilon"] for row in found.rows)]
    margin = 0.12 * (max(epsilons) - min(epsilons))
    axis = alt.Axis(tickCount=10, format=".1f")
    x = alt.X("alpha:Q", title="alpha, the share that each step forgets", scale=alt.Scale(domain=[0, 1]), axis=axis)
    y = epsilon_y(found.setting.delta, between=(max(min(epsilons) - margin, 0.0), max(epsilons) + margin))
    curve = [{**row, "analysis": EXACT} for row in found.rows]
    flat = level("alpha", (0.0, 1.0), ANALYSES["max_over_steps"].label, predicted)
    text = f"largest: {spell(worst['epsilon'], 5)} at alpha {spell(worst['alpha'])}"
    align, aside = ("left", 8) if worst["alpha"] < 0.2 else ("right", -8) if worst["alpha"] > 0.8 else ("center", 0)
    peak = chart_of([worst]).mark_text(text=text, align=align, dx=aside, dy=-12, fontSize=13, color="#444")
    layers = [
        lines(curve + flat, x, y),
        peak.encode(x=x, y=y),
        points([{"alpha": found.setting.alpha, "epsilon": case.empirical}], x, y),
    ]
    return picture(found, TITLE, layers)
