"""Checks of trainings with Adam, whose first step is the learning rate times the sign of each gradient.

A clipped canary is small compared with the noise, so it seldom changes a sign. More changed signs than the declared
noise allows are a fault.
"""

from __future__ import annotations

import numpy as np
from scipy.special import erf
from scipy.stats import binom

from lastiterate.checking.check_result import Row, cannot_tell, judged, not_checked
from lastiterate.checking.clipping_rows import ABOVE, STEPS, Effects
from lastiterate.checking.noise_rows import NOISE
from lastiterate.checking.trainings import Setting
from lastiterate.common.types import FloatArray
from lastiterate.optimizer import is_adam

LARGE = "clipping of large gradients"
NOTE = (
    "Adam divides by the running size of its gradients, which hides the size of noise, small gradients and steps. "
    "Check the same training with SGD instead of Adam: noise, clipping and sampling come before the optimizer."
)
_HIDDEN = "Adam hides the size of the noise; check the code with SGD", "SGD"


def step_row(setting: Setting, models: FloatArray, starts: FloatArray | None) -> Row:
    """Return the largest first step, divided by the learning rate: at most 1, as |g| / (sqrt(g^2) + eps) is below 1.

    The step is larger if the second moment does not include the noise.
    """
    adam = setting.declared.run.optimizer
    if starts is None or not is_adam(adam):
        return not_checked(STEPS, "initial values are not known: let the trainer accept steps=0")
    rate = float(np.ravel(adam.learning_rate)[0])
    kept = 1.0 - rate * adam.weight_decay if adam.decoupled else 1.0
    largest = float(np.abs(models - kept * starts).max()) / rate
    slack = setting.allowances.exact + setting.trainings.floor(1) / rate
    why = "the first step is larger than Adam allows; check the learning rate, and whether both moments have the noise"
    return judged(STEPS, (largest, 1.0, 0.0, largest + slack), largest > 1.0 + slack, why, f"x {1.0 + slack:.3g}")


def signs_row(setting: Setting, ones: Effects | None) -> Row:
    """Return the number of signs that clipped canaries changed in one step, divided by the number expected.

    A shift of c changes the sign of a number with normal noise with probability at most 2 Phi(c / 2 sigma) - 1.
    """
    if not len(setting.direction):
        return cannot_tell(NOISE, None, *_HIDDEN)
    adam = setting.declared.run.optimizer
    if ones is None or not ones.vectors or not is_adam(adam):
        why = "the canary was in no one-step batch, or the trainer takes no number of steps"
        return cannot_tell(NOISE, None, why, "SGD")
    sigma, rate = float(setting.declared.noise[0]) / setting.declared.run.clip_norm, np.ravel(adam.learning_rate)[0]
    sizes = np.abs(setting.direction[setting.columns])
    chance, trials = float(np.mean(erf(sizes / (2.0 * np.sqrt(2.0) * sigma)))), len(ones.vectors) * len(sizes)
    changed = int(sum(np.count_nonzero(np.abs(each[setting.columns]) > rate) for _, each in ones.vectors))
    most, expected = int(binom.isf(setting.error, trials, chance)), trials * chance
    # Noise of a share f changes 1 / f times as many signs; one standard deviation is on top.
    share = changed / (most + 1.0 + np.sqrt(most + 1.0)) if changed else 0.0
    why = "clipped canaries change too many signs of the first step; check the noise of every tensor, and clipping"
    numbers = changed / expected, 1.0, 0.0, most / expected
    row = judged(NOISE, numbers, changed > most, why, f"noise x {share:.2g}" if share > 0.01 else "")
    return row if changed > most or share >= setting.allowances.noise else row.now("cannot tell", *_HIDDEN)


def large_row(setting: Setting, whole: Effects) -> Row:
    """Compare a huge canary with one just above the clipping norm. Both have the same effect, with any optimizer."""
    canary, effect = ABOVE * setting.declared.run.clip_norm * setting.direction, whole.best[1]
    above, size = whole.of(canary, "just above the norm"), float(np.linalg.norm(effect))
    rest, allowed = float(np.linalg.norm(effect - above)) / size, setting.allowances
    limit = allowed.exact + allowed.rounding * setting.trainings.floor(whole.steps) / size
    why = "a huge gradient and one just above the clipping norm have different effects; check the norm and its tensors"
    return judged(LARGE, (rest, 0.0, 0.0, rest + limit), rest > limit, why, f"norm x {ABOVE}")
