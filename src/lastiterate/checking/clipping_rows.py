"""Rows on clipping, size of steps and normalisation, from the effects of canaries at one seed.

The seed's batches contain the canary. After many steps curvature changes the effects, but equally for canaries of the
same direction. So ratios of effects are still ratios of clipped norms, except for the parts of the effects that are not
along the canary.
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
SHAPES = 4  # canaries in addition to the huge one


def clipping_rows(effects: Effects, most: int) -> list[Row]:
    """Return the rows from canaries of other sizes. At most ``most`` of them are trained.

    Effects are in units of the effect of a clipped canary. After many steps, the small canary gives this unit.
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
        return [not_checked(name, "there are too few models for a second canary to compare with") for name in ALL]
    small, floor = float(found["small"] @ g) / SMALL, effects.floor
    if small <= allowed.rounding * floor:
        return _no_small_effect(small, small < -allowed.rounding * floor)
    found = {words: effect / small for words, effect in found.items()}
    bend = 0.0 if is_exact else float(np.linalg.norm(found["small"] - SMALL * g)) / SMALL
    slack = allowed.exact + floor / (SMALL * small) + bend
    rows = [_steps_row(setting, small, slack) if is_exact else not_checked(STEPS, "it needs models of one step")]
    if slack > allowed.norm - 1.0:
        why = "curvature or rounding hides the ratio of effects: check fewer steps, or let the trainer accept steps"
        return [*rows, *(cannot_tell(name, 1.0, why, "fewer steps") for name in ALL[1:])]
    rows.append(_norm_row(setting, found["huge"], slack, is_exact))
    if "below the norm" in found:
        ratio = float(found["below the norm"] @ g) / BELOW
        rows.append(_ratio_row(SMALLER, ratio, slack, _SMALLER))
    if "just above the norm" in found:
        above = found["just above the norm"]
        rows.append(_ratio_row(JUST_ABOVE, float(above @ g) / float(found["huge"] @ g), slack, _JUST_ABOVE))
        # After one step, a huge canary must not change the other gradients at any seed. After many steps, it must have
        # the same effect as a canary just above the norm.
        rest = effects.rest / abs(effects.unit * small) if is_exact else off_canary(setting, found["huge"] - above)
        limit = slack + 2.0 * floor / small
        words = f"{limit:.2g} clipping norms"
        rows.append(judged(OTHERS, (rest, 0.0, 0.0, rest + limit), rest > limit, _OTHERS, words))
    if "tiny" in found:
        rows.append(_normalisation_row(off_canary(setting, found["tiny"]), 2.0 * floor / small + TINY * (1.0 + bend)))
    return rows


_SMALLER = (
    "gradients below the clipping norm are changed; check whether gradients are normalised instead of clipped, and "
    "whether the norm is Euclidean"
)
_JUST_ABOVE = "a gradient just above the norm and a huge one have different effects; check where clipping begins"
_OTHERS = (
    "a huge gradient changes the effects of other examples in its batch, or the noise; check whether each gradient is "
    "clipped by itself, before any sum or mean, and whether the noise is independent of the data"
)


def _ratio_row(name: str, ratio: float, slack: float, why: str) -> Row:
    """Return a row of a ratio that must be 1 within the slack."""
    numbers = ratio, 1.0, ratio - slack, ratio + slack
    return judged(name, numbers, abs(ratio - 1.0) > slack, why, f"x {1.0 + 2.0 * slack:.3g}")


def _no_small_effect(small: float, is_backwards: bool) -> list[Row]:
    why = "a huge gradient has an effect, but a small one has none; check what is clipped, and how numbers are rounded"
    if is_backwards:
        why = "steps go in the wrong direction; check the sign of the gradients in the update"
    row = Row(STEPS, None, small, 1.0, small, small, "fault", why)
    return [row, *(not_checked(name, f"see {STEPS}") for name in ALL[1:])]


def _steps_row(setting: Setting, small: float, slack: float) -> Row:
    size, why = max(small, 1.0 / small), "check the learning rate, and the divisor of gradients"
    if setting.batch_size and abs(np.log(size / setting.batch_size)) < setting.allowances.pattern:
        why = (
            "the learning rate may be for the mean of gradients; the run needs the rate for their sum (rate / batch "
            "size), or the code sums where it should average"
        )
    elif size > 3.0:
        why = f"if {size:.3g} is about the size of a batch, the learning rate is for the mean of gradients; {why}"
    return _ratio_row(STEPS, small, slack, f"a small gradient has {small:.3g} times the declared effect: {why}")


def _norm_row(setting: Setting, effect: FloatArray, slack: float, is_exact: bool) -> Row:
    """Return the norm to which a huge canary is clipped: of all tensors, or of the tensor with the largest error."""
    g, clip, like = setting.direction, setting.declared.run.clip_norm, setting.like
    whole, parts = float(effect @ g), [like.slices[tensor] for tensor in setting.tensors]
    norms = np.array([float(effect[part] @ g[part]) / float(g[part] @ g[part]) for part in parts])
    value, tensor, far = whole, None, int(np.argmax(np.abs(norms - 1.0)))
    # Curvature differs between tensors, so single tensors are compared only after one step.
    if is_exact and len(norms) > 1 and abs(whole - 1.0) <= slack < abs(norms[far] - 1.0):
        value, tensor = float(norms[far]), like.names[setting.tensors[far]]
    numbers = value * clip, clip, (value - slack) * clip, (value + slack) * clip
    is_fault = abs(value - 1.0) > slack
    why = _norm_pattern(setting, norms, whole) if is_fault else ""
    return judged(NORM, numbers, is_fault, why, f"x {1.0 + 2.0 * slack:.3g}", tensor)


def _norm_pattern(setting: Setting, norms: FloatArray, whole: float) -> str:
    """Return the advice, which names a known pattern of wrong norms if there is one."""
    close, used = setting.allowances.pattern, setting.direction[setting.direction != 0.0]
    least = float(np.abs(used).min())
    if whole > 0.5 * float(np.linalg.norm(huge(setting.direction, 1.0))):
        return "a huge gradient is not clipped; check where gradients are clipped, and whether clipped ones are used"
    if len(norms) > 1 and np.all(np.abs(norms / np.sqrt(len(norms)) - 1.0) < close):
        return "each tensor seems to be clipped by itself; use the norm of all tensors together"
    if abs(whole * least * np.sqrt(len(used) / len(setting.direction)) - 1.0) < close or whole * least > 1.0 - close:
        return "each coordinate seems to be clipped by itself; use the norm of all tensors together"
    if np.ptp(norms) > close * whole:
        return "tensors are clipped differently; check whether the norm includes all of them and scales all of them"
    return "gradients are clipped to another norm; check the norm, and whether sums or means of gradients are clipped"


def _normalisation_row(rest: float, limit: float) -> Row:
    """Return the effect of a tiny canary apart from its own gradient: 0, unless it changes the number of examples."""
    if limit > 0.1:  # a tenth of a clipped gradient
        return cannot_tell(NORMALISATION, 0.0, "rounding hides the effect of a tiny canary", "a larger learning rate")
    why = (
        "a tiny canary changes the model; check whether steps are divided by the actual batch size instead of the "
        "expected batch size"
    )
    return judged(NORMALISATION, (rest, 0.0, 0.0, rest + limit), rest > limit, why, f"{limit:.2g} clipping norms")


def not_finite_row() -> Row:
    """Return the fault of a canary that makes parameters NaN or infinite."""
    why = "parameters are NaN or infinite with a huge gradient in the data; check where gradients are clipped"
    return Row(NORM, None, np.inf, 1.0, np.inf, np.inf, "fault", why)
