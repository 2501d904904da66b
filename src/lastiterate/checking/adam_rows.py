"""Checks of trainings with Adam, whose first step is the learning rate times the sign of each gradient.

A clipped canary moves the gradient of a parameter by little against the noise, so that it seldom changes a sign. More
changes than the noise allows are a fault, whatever the gradients are.
"""

from __future__ import annotations

import numpy as np
from scipy.special import erf
from scipy.stats import binom

from lastiterate.checking.check_result import Row, Status, cannot_tell, not_checked
from lastiterate.checking.participation_rows import RATE
from lastiterate.checking.trainings import ABOVE, Setting
from lastiterate.common.types import BoolArray, FloatArray

NOISE, LARGE = "noise", "clipping of large gradients"
NOTE = (
    "Adam divides by the running size of its gradients. The size of noise, small gradients and steps does not show: "
    "check the same training with SGD in its place, as noise, clipping and sampling come before the optimizer."
)


def signs_row(setting: Setting, effects: list[FloatArray], direction: FloatArray) -> Row:
    """Return how many signs clipped canaries changed in one step, over the most that the declared noise allows.

    A shift of c changes the sign of a number with normal noise with probability at most 2 Phi(c / 2 sigma) - 1.
    """
    sigma = float(setting.declared.noise[0]) / setting.declared.run.clip_norm
    optimizer = setting.declared.run.optimizer
    assert optimizer is not None
    rate = float(np.ravel(optimizer.learning_rate)[0])
    if not effects:
        return cannot_tell(NOISE, None, "the canary was in no batch of one step, or the trainer takes no steps")
    sizes = np.abs(direction[setting.columns])
    chance = float(np.mean(erf(sizes / (2.0 * np.sqrt(2.0) * sigma))))
    trials = len(effects) * len(sizes)
    changed = int(sum(np.count_nonzero(np.abs(each[setting.columns]) > rate) for each in effects))
    most = int(binom.isf(setting.error, trials, chance))
    expected = trials * chance
    # Noise of a share f changes 1 / f times as many signs.
    share = changed / (most + 1.0 + np.sqrt(most + 1.0)) if changed else 0.0
    words = f"noise x {share:.2g}" if share > 0.01 else ""
    numbers = changed / expected, 1.0, 0.0, most / expected
    if changed > most:
        why = (
            "canaries change more signs of the first step than noise lets them: look at the noise, at the norm that "
            "is clipped to, and whether every tensor has noise"
        )
        return Row(NOISE, None, *numbers, "fault", why, words)
    if share >= setting.allowances.noise:
        return Row(NOISE, None, *numbers, "ok", "", words)
    return Row(
        NOISE, None, *numbers, "cannot tell", "Adam hides the size of the noise; check the code with SGD", words, "SGD"
    )


def large_row(setting: Setting, number: int, steps: int, direction: FloatArray, effect: FloatArray) -> Row:
    """Return whether a huge canary does what one just above the clipping norm does. It must, with any optimizer."""
    canary = ABOVE * setting.declared.run.clip_norm * direction
    above = setting.trainings.effect(number, canary, steps, "with a canary (just above the norm)")
    size = float(np.linalg.norm(effect))
    if above is None:
        return Row(LARGE, None, None, 0.0, None, None, "fault", "parameters are NaN or infinite with a canary")
    rest = float(np.linalg.norm(effect - above)) / size
    limit = setting.allowances.exact + 10.0 * setting.trainings.floor(steps) / size
    status: Status = "fault" if rest > limit else "ok"
    why = (
        "a large gradient does not do what it does when clipped to the declared norm: look at the norm, at "
        "what it is taken of (all tensors of one example), and whether sums or means are clipped"
    )
    return Row(LARGE, None, rest, 0.0, 0.0, rest + limit, status, why if status == "fault" else "", f"norm x {ABOVE}")


def presence_row(setting: Setting, taken: BoolArray, steps: int) -> Row:
    """Return in how many models the canary took part, against the probability that it is in any batch."""
    declared, seeds = setting.declared.prefix(steps), len(taken)
    draws = declared.total_weights(np.random.default_rng(0), (100_000,))
    chance = float(np.mean(draws > 0.0))
    if declared.run.sampling == "poisson" or declared.run.sampling == "fixed":
        chance = float(-np.expm1(np.sum(np.log1p(-np.minimum(declared.rates, 1.0 - 1e-16)))))
    inside = int(np.count_nonzero(taken))
    least, most = int(binom.ppf(setting.error / 2.0, seeds, chance)), int(binom.isf(setting.error / 2.0, seeds, chance))
    rates = declared.rates * setting.allowances.rate
    other = float(-np.expm1(np.sum(np.log1p(-np.minimum(rates, 1.0 - 1e-16)))))
    numbers = inside / seeds, chance, least / seeds, most / seeds
    if not least <= inside <= most:
        why = "the canary took part in too many, or too few, models: look at the sample rate and at batches"
        return Row(RATE, None, *numbers, "fault", why)
    if float(binom.sf(most, seeds, other)) < setting.allowances.power:
        return not_checked(RATE, "twice the rate would not show: Adam hides how often the canary was in a batch")
    return Row(RATE, None, *numbers, "ok", "", f"rate x {setting.allowances.rate:g}")
