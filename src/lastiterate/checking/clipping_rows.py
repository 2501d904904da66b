"""Clipping, size of steps and normalisation, by the effects of canaries at one seed whose batches hold the canary.

After many steps curvature changes effects, but alike for canaries of the same direction: ratios of effects stay those
of the clipped norms, up to how far an effect leaves the canary's direction.
"""

from __future__ import annotations

import numpy as np

from lastiterate.checking.check_result import Row, cannot_tell, judged, not_checked
from lastiterate.checking.effects import ABOVE, BELOW, SMALL, TINY, Effects, huge, off_canary
from lastiterate.checking.trainings import Setting
from lastiterate.common.types import FloatArray

STEPS, NORM, SMALLER = "size of steps", "clipping norm", "clipping of small gradients"
JUST_ABOVE, OTHERS, NORMALISATION = "clipping just above the norm", "clipping of others", "normalisation"
ALL = (STEPS, NORM, SMALLER, JUST_ABOVE, OTHERS, NORMALISATION)
SHAPES = 4  # canaries beside the huge one


def clipping_rows(effects: Effects, most: int) -> list[Row]:
    """Return the rows of canaries of other sizes, of which at most ``most`` are trained.

    All effects are in units of a clipped canary; after many steps, small ones show the unit.
    """
    setting, g, is_exact = effects.setting, effects.setting.direction, effects.steps == 1
    clip, allowed = setting.declared.run.clip_norm, setting.allowances
    norms = {"small": SMALL, "just above the norm": ABOVE, "tiny": TINY, "below the norm": BELOW}
    found = {"huge": effects.best[1] / effects.unit}
    for words, size in list(norms.items())[:most]:
        effect = effects.of(size * clip * g, words)
        if effect is None:
            return [not_finite_row(), *(not_checked(name, f"see {NORM}") for name in ALL if name != NORM)]
        found[words] = effect / effects.unit
    if "small" not in found:
        return [not_checked(name, "so few models leave no canary to compare with") for name in ALL]
    small, floor = float(found["small"] @ g) / SMALL, effects.floor
    if small <= allowed.rounding * floor:
        return _no_small_effect(small, small < -allowed.rounding * floor)
    found = {words: effect / small for words, effect in found.items()}
    bend = 0.0 if is_exact else float(np.linalg.norm(found["small"] - SMALL * g)) / SMALL
    slack = allowed.exact + floor / (SMALL * small) + bend
    rows = [_steps_row(setting, small, slack) if is_exact else not_checked(STEPS, "a run of one step would show it")]
    if slack > allowed.norm - 1.0:
        why = "curvature hides the ratio of effects, or rounding does: check fewer steps, or let the trainer take steps"
        return [*rows, *(cannot_tell(name, 1.0, why, "fewer steps") for name in ALL[1:])]
    rows.append(_norm_row(setting, found["huge"], slack, is_exact))
    if "below the norm" in found:
        ratio = float(found["below the norm"] @ g) / BELOW
        rows.append(_ratio_row(SMALLER, ratio, slack, _SMALLER))
    if "just above the norm" in found:
        above = found["just above the norm"]
        rows.append(_ratio_row(JUST_ABOVE, float(above @ g) / float(found["huge"] @ g), slack, _JUST_ABOVE))
        # After one step, a huge canary leaves the others as they are at every seed. After many steps, it does the same
        # as one just above the norm.
        rest = effects.rest / abs(effects.unit * small) if is_exact else off_canary(setting, found["huge"] - above)
        limit = slack + 2.0 * floor / small
        words = f"{limit:.2g} clipping norms"
        rows.append(judged(OTHERS, (rest, 0.0, 0.0, rest + limit), rest > limit, _OTHERS, words))
    if "tiny" in found:
        rows.append(_normalisation_row(off_canary(setting, found["tiny"]), 2.0 * floor / small + TINY * (1.0 + bend)))
    return rows


_SMALLER = (
    "gradients below the clipping norm are not left as they are: look whether they are normalised instead of clipped, "
    "and whether the norm is the Euclidean one"
)
_JUST_ABOVE = "a gradient just above the norm is not clipped as a large one is: look from which norm on it is clipped"
_OTHERS = (
    "a large gradient changes what the others of its batch do, or which noise is added: look whether each gradient is "
    "clipped by itself, before sums and means, and whether noise is drawn once"
)


def _ratio_row(name: str, ratio: float, slack: float, why: str) -> Row:
    """Return a row of a ratio that must be 1 within the slack."""
    numbers = ratio, 1.0, ratio - slack, ratio + slack
    return judged(name, numbers, abs(ratio - 1.0) > slack, why, f"x {1.0 + 2.0 * slack:.3g}")


def _no_small_effect(small: float, is_backwards: bool) -> list[Row]:
    why = "a large gradient has an effect and a small one has none: look at what is clipped, and at rounding"
    if is_backwards:
        why = "steps go the wrong way: look at the sign with which gradients are taken off the parameters"
    row = Row(STEPS, None, small, 1.0, small, small, "fault", why)
    return [row, *(not_checked(name, f"see {STEPS}") for name in ALL[1:])]


def _steps_row(setting: Setting, small: float, slack: float) -> Row:
    size, why = max(small, 1.0 / small), "look at the learning rate, and at what gradients are divided by"
    if setting.batch_size and abs(np.log(size / setting.batch_size)) < setting.allowances.pattern:
        why = (
            "as if the learning rate were that of the mean of gradients: the run needs that of their sum (rate / batch "
            "size), or the code sums where it should average"
        )
    elif size > 3.0:
        why = f"if {size:.3g} is about the size of a batch, the learning rate is that of the mean of gradients: {why}"
    return _ratio_row(STEPS, small, slack, f"a small gradient has {small:.3g} times the declared effect: {why}")


def _norm_row(setting: Setting, effect: FloatArray, slack: float, is_exact: bool) -> Row:
    """Return the norm to which a huge canary is clipped, of all tensors or of the one that is furthest off."""
    g, clip, like = setting.direction, setting.declared.run.clip_norm, setting.like
    whole, parts = float(effect @ g), [like.slices[tensor] for tensor in setting.tensors]
    norms = np.array([float(effect[part] @ g[part]) / float(g[part] @ g[part]) for part in parts])
    value, tensor, far = whole, None, int(np.argmax(np.abs(norms - 1.0)))
    # Curvature differs from tensor to tensor, so that only one step compares single tensors.
    if is_exact and len(norms) > 1 and abs(whole - 1.0) <= slack < abs(norms[far] - 1.0):
        value, tensor = float(norms[far]), like.names[setting.tensors[far]]
    numbers = value * clip, clip, (value - slack) * clip, (value + slack) * clip
    is_fault = abs(value - 1.0) > slack
    why = _norm_pattern(setting, norms, whole) if is_fault else ""
    return judged(NORM, numbers, is_fault, why, f"x {1.0 + 2.0 * slack:.3g}", tensor)


def _norm_pattern(setting: Setting, norms: FloatArray, whole: float) -> str:
    """Return the advice, which names the pattern of a wrong norm."""
    close, used = setting.allowances.pattern, setting.direction[setting.direction != 0.0]
    least = float(np.abs(used).min())
    if whole > 0.5 * float(np.linalg.norm(huge(setting.direction, 1.0))):
        return "a large gradient is not clipped at all: look where gradients are clipped, and that they are used then"
    if len(norms) > 1 and np.all(np.abs(norms / np.sqrt(len(norms)) - 1.0) < close):
        return "as if clipping each tensor by itself: take the norm of all tensors together"
    if abs(whole * least * np.sqrt(len(used) / len(setting.direction)) - 1.0) < close or whole * least > 1.0 - close:
        return "as if clipping each coordinate by itself: take the norm of all tensors together"
    if np.ptp(norms) > close * whole:
        return "tensors are clipped differently: look whether all are in the norm, and whether all are scaled by it"
    return "gradients are clipped to another norm: look at the norm, and whether sums or means of gradients are clipped"


def _normalisation_row(rest: float, limit: float) -> Row:
    """Return what a canary of almost no size does beside its own gradient: nothing, unless it counts as an example."""
    if limit > 0.1:  # a tenth of a clipped gradient
        return cannot_tell(NORMALISATION, 0.0, "rounding hides the effect of a tiny canary", "a larger learning rate")
    why = (
        "a canary of almost no size changes the model: look whether steps are divided by the size of the batch that "
        "was drawn, where they should be divided by the expected one"
    )
    return judged(NORMALISATION, (rest, 0.0, 0.0, rest + limit), rest > limit, why, f"{limit:.2g} clipping norms")


def not_finite_row() -> Row:
    """Return the fault of a canary that makes parameters NaN or infinite."""
    why = "parameters are NaN or infinite with a large gradient in the data: look where gradients are clipped"
    return Row(NORM, None, np.inf, 1.0, np.inf, np.inf, "fault", why)
