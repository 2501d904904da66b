"""Checks of trainings with Adam, whose first step is the learning rate times the sign of each gradient.

A clipped canary moves the gradient of a parameter by little against the noise, so that it seldom changes a sign. More
changes than the noise allows are a fault, whatever the gradients are.
"""

from __future__ import annotations

import numpy as np
from scipy.special import erf
from scipy.stats import binom

from lastiterate.checking.check_result import Row, cannot_tell, judged, not_checked
from lastiterate.checking.clipping_rows import STEPS
from lastiterate.checking.effects import ABOVE, Effects
from lastiterate.checking.noise_rows import NOISE
from lastiterate.checking.trainings import Setting
from lastiterate.common.types import FloatArray
from lastiterate.optimizer import Adam

LARGE = "clipping of large gradients"
NOTE = (
    "Adam divides by the running size of its gradients. The size of noise, small gradients and steps does not show: "
    "check the same training with SGD in its place, as noise, clipping and sampling come before the optimizer."
)
_HIDDEN = "Adam hides the size of the noise; check the code with SGD", "SGD"


def _adam(setting: Setting) -> tuple[Adam, float]:
    adam = setting.declared.run.optimizer
    assert isinstance(adam, Adam)
    return adam, float(np.ravel(adam.learning_rate)[0])


def step_row(setting: Setting, models: FloatArray, starts: FloatArray | None) -> Row:
    """Return the largest first step over the learning rate: at most 1, as |g| / (sqrt(g^2) + eps) is below 1.

    A second moment that lacks the noise divides by too little.
    """
    adam, rate = _adam(setting)
    if starts is None:
        return not_checked(STEPS, "initial values are not known: let the trainer take steps=0")
    kept = 1.0 - rate * adam.weight_decay if adam.decoupled else 1.0
    largest = float(np.abs(models - kept * starts).max()) / rate
    slack = setting.allowances.exact + setting.trainings.floor(1) / rate
    why = "a step is larger than Adam's first can be: look at the learning rate, and whether both moments have noise"
    return judged(STEPS, (largest, 1.0, 0.0, largest + slack), largest > 1.0 + slack, why, f"x {1.0 + slack:.3g}")


def signs_row(setting: Setting, ones: Effects | None) -> Row:
    """Return how many signs clipped canaries changed in one step, over the most that the declared noise allows.

    A shift of c changes the sign of a number with normal noise with probability at most 2 Phi(c / 2 sigma) - 1.
    """
    if not len(setting.direction):
        return cannot_tell(NOISE, None, *_HIDDEN)
    if ones is None or not ones.vectors:
        return cannot_tell(NOISE, None, "the canary was in no batch of one step, or the trainer takes no steps", "SGD")
    sigma, rate = float(setting.declared.noise[0]) / setting.declared.run.clip_norm, _adam(setting)[1]
    sizes = np.abs(setting.direction[setting.columns])
    chance, trials = float(np.mean(erf(sizes / (2.0 * np.sqrt(2.0) * sigma)))), len(ones.vectors) * len(sizes)
    changed = int(sum(np.count_nonzero(np.abs(each[setting.columns]) > rate) for _, each in ones.vectors))
    most, expected = int(binom.isf(setting.error, trials, chance)), trials * chance
    # Noise of a share f changes 1 / f times as many signs; one standard deviation is on top.
    share = changed / (most + 1.0 + np.sqrt(most + 1.0)) if changed else 0.0
    why = (
        "canaries change more signs of the first step than noise lets them: look at the noise, at the norm that is "
        "clipped to, and whether every tensor has noise"
    )
    numbers = changed / expected, 1.0, 0.0, most / expected
    row = judged(NOISE, numbers, changed > most, why, f"noise x {share:.2g}" if share > 0.01 else "")
    return row if changed > most or share >= setting.allowances.noise else row.undecided(*_HIDDEN)


def large_row(setting: Setting, whole: Effects) -> Row:
    """Compare a huge canary with one just above the clipping norm. They must do the same, with any optimizer."""
    canary, effect = ABOVE * setting.declared.run.clip_norm * setting.direction, whole.best[1]
    above, size = whole.of(canary, "just above the norm"), float(np.linalg.norm(effect))
    if above is None:
        return Row(LARGE, None, None, 0.0, None, None, "fault", "parameters are NaN or infinite with a canary")
    rest = float(np.linalg.norm(effect - above)) / size
    allowed = setting.allowances
    limit = allowed.exact + allowed.rounding * setting.trainings.floor(whole.steps) / size
    why = (
        "a large gradient does not do what it does when clipped to the declared norm: look at the norm, at "
        "what it is taken of (all tensors of one example), and whether sums or means are clipped"
    )
    return judged(LARGE, (rest, 0.0, 0.0, rest + limit), rest > limit, why, f"norm x {ABOVE}")
