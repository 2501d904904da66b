"""A linear loss and a quadratic regulariser: every step forgets a share alpha of the model.

With r(m) = alpha / (2 eta) ||m||^2 the step t counts (1 - alpha)^(T - t) in the last iterate. The noise is forgotten
like the signal, but not in the same proportion, and between alpha = 0 (the heuristic) and alpha = 1 (a single step) the
last iterate can leak more than at both ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.answers import Answer
from lastiterate.attacks.attack import Armed, BringsProblem, Facts, References, Unknown, Words
from lastiterate.attacks.linear_score import LinearScore, noise_unit
from lastiterate.counterexamples.finding import Case, Probe, last_iterate_scores, predict
from lastiterate.counterexamples.setting import Setting, require_plain, required
from lastiterate.privacy.analyses.last_iterate import last_iterate
from lastiterate.run import DPSGD
from lastiterate.values import number
from lastiterate.wording import spell

if TYPE_CHECKING:
    from lastiterate.rows import Row, Track

TAKES = ("alpha", "worst")
DEFAULTS = Setting(steps=3, sample_rate=0.1, noise_multiplier=1.0, delta=1e-6, models=100_000)  # the paper's
_CURVE = np.linspace(0.0, 1.0, 41)


@dataclass(frozen=True)
class Regularised(BringsProblem):
    """A canary of constant gradient, nothing else in the data, and the regulariser alpha / (2 eta) ||m||^2."""

    alpha: float

    def __post_init__(self) -> None:
        number("alpha", self.alpha, 0.0, 1.0)

    def craft(self, run: DPSGD, problem: object, references: References) -> Facts:
        return {}

    def arm(self, run: DPSGD, problem: object, facts: Facts) -> Armed:
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
    return Probe("quadratic", setting, run, predictions, (case,), rows)
