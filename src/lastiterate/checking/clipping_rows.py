"""Clipping, size of steps and normalisation, by the effects of canaries at one seed whose batches hold the canary.

With shared randomness, two models of a seed differ by the canary alone. After one step the difference is exactly the
weight of the step times the clipped canary. After many steps curvature changes it, but alike for canaries of the same
direction: ratios of effects stay those of the clipped norms, up to how far an effect leaves the canary's direction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lastiterate.checking.check_result import Row, cannot_tell, judged, not_checked
from lastiterate.checking.trainings import ABOVE, BELOW, SMALL, TINY, Setting, huge, one_coordinate, spread
from lastiterate.common.types import FloatArray

STEPS, NORM, SMALLER = "size of steps", "clipping norm", "clipping of small gradients"
JUST_ABOVE, COORDINATE, TENSOR = "clipping just above the norm", "clipping of one coordinate", "clipping of one tensor"
OTHERS, NORMALISATION = "clipping of others", "normalisation"
ALL = (STEPS, NORM, SMALLER, JUST_ABOVE, COORDINATE, TENSOR, OTHERS, NORMALISATION)


@dataclass(frozen=True, eq=False)
class Canaries:
    """Effects at one seed, in units of the clipping norm; after one step also in units of its weight.

    ``rest`` is the largest part of a huge canary's effect off its direction, at any one-step seed.
    """

    setting: Setting
    number: int
    steps: int
    direction: FloatArray
    effect: FloatArray  # of the huge canary
    rest: float

    @property
    def unit(self) -> float:
        """The effect of a clipped canary that is 1 here."""
        declared = self.setting.declared
        return declared.prefix(1).step if self.steps == 1 else declared.run.clip_norm

    @property
    def floor(self) -> float:
        """Rounding errors in these units."""
        return self.setting.trainings.floor(self.steps) / abs(self.unit)

    def of(self, canary: FloatArray, words: str) -> FloatArray | None:
        """Train with another canary at the same seed, and return its effect."""
        found = self.setting.trainings.effect(self.number, canary, self.steps, f"with a canary ({words})")
        return None if found is None else found / self.unit


def off_canary(setting: Setting, direction: FloatArray, effect: FloatArray) -> float:
    """Return the norm of the part of an effect that is not along the canary on any tensor."""
    rest = effect.copy()
    for tensor in setting.tensors:
        where = setting.like.slices[tensor]
        part = direction[where]
        rest[where] -= float(rest[where] @ part) / float(part @ part) * part
    return float(np.linalg.norm(rest))


def clipping_rows(canaries: Canaries, most: int) -> list[Row]:
    """Return the rows of canaries of other sizes and shapes, of which at most ``most`` are trained."""
    setting, g = canaries.setting, canaries.direction
    clip, allowed, exact = setting.declared.run.clip_norm, setting.allowances, canaries.steps == 1
    coordinate, chosen = one_coordinate(setting.like, setting.tensors, setting.trainings.seed)
    others = [i for i in setting.tensors if i != chosen] or [chosen]
    tensor = min(others, key=lambda i: setting.like.slices[i].stop - setting.like.slices[i].start)
    on_tensor = spread(setting.like, [tensor], setting.trainings.seed + 1)
    shapes = {
        "small": SMALL * clip * g,
        "one coordinate": huge(coordinate, clip),
        "just above the norm": ABOVE * clip * g,
        "tiny": TINY * clip * g,
        "one tensor": huge(on_tensor, clip),
        "below the norm": BELOW * clip * g,
    }
    found = {words: canaries.of(canary, words) for words, canary in list(shapes.items())[:most]}
    if any(effect is None for effect in found.values()):
        return [not_finite_row(), *(not_checked(name, "see clipping norm") for name in ALL if name != NORM)]
    effects = {words: effect for words, effect in found.items() if effect is not None}
    if "small" not in effects:
        return [not_checked(name, "so few models leave no canary to compare with") for name in ALL]
    small = float(effects["small"] @ g) / SMALL
    if small <= allowed.rounding * canaries.floor:
        return _no_small_effect(canaries, small)
    bend = 0.0 if exact else float(np.linalg.norm(effects["small"] - SMALL * small * g)) / (SMALL * small)
    slack = allowed.exact + canaries.floor / (SMALL * small) + bend
    rows = [_steps_row(canaries, small, slack) if exact else not_checked(STEPS, "a run of one step would show it")]
    if slack > allowed.norm - 1.0:
        why = "curvature hides the ratio of effects, or rounding does: check fewer steps, or let the trainer take steps"
        return [*rows, *(cannot_tell(name, 1.0, why, "fewer steps") for name in ALL[1:])]
    rows.append(_norm_row(canaries, small, slack))
    if "below the norm" in effects:
        ratio = float(effects["below the norm"] @ g) / BELOW / small
        why = (
            "gradients below the clipping norm are not left as they are: look whether they are normalised instead of "
            "clipped, and whether the norm is the Euclidean one"
        )
        rows.append(_ratio_row(SMALLER, ratio, 1.0, slack, why))
    if "just above the norm" in effects:
        above = effects["just above the norm"]
        ratio = float(above @ g) / float(canaries.effect @ g)
        why = "a gradient just above the norm is not clipped as a large one is: look from which norm on it is clipped"
        rows.append(_ratio_row(JUST_ABOVE, ratio, 1.0, slack, why))
        # After one step, a huge canary leaves the others as they are at every seed. After many steps, it does the same
        # as one just above the norm.
        rest = canaries.rest if exact else off_canary(setting, g, canaries.effect - above)
        limit = slack + 2.0 * canaries.floor / small
        why = (
            "a large gradient changes what the others of its batch do, or which noise is added: look whether each "
            "gradient is clipped by itself, before sums and means, and whether noise is drawn once"
        )
        words = f"{limit:.2g} clipping norms"
        rows.append(judged(OTHERS, (rest / small, 0.0, 0.0, rest / small + limit), rest > limit * small, why, words))
    for name, words, direction in ((COORDINATE, "one coordinate", coordinate), (TENSOR, "one tensor", on_tensor)):
        if words in effects:
            rows.append(_shape_row(name, float(effects[words] @ direction) / small, slack, exact, allowed.norm))
    if "tiny" in effects:
        rows.append(_normalisation_row(canaries, effects["tiny"], small, bend))
    return rows


def _ratio_row(name: str, ratio: float, declared: float, slack: float, why: str) -> Row:
    """Return a row of a ratio that must be the declared one within the slack."""
    off = slack * declared
    numbers = ratio, declared, ratio - off, ratio + off
    return judged(name, numbers, abs(ratio - declared) > off, why, f"x {1.0 + 2.0 * slack:.3g}")


def _no_small_effect(canaries: Canaries, small: float) -> list[Row]:
    backwards = small < -canaries.setting.allowances.rounding * canaries.floor
    why = "steps go the wrong way: look at the sign with which gradients are taken off the parameters"
    if not backwards:
        why = "a large gradient has an effect and a small one has none: look at what is clipped, and at rounding"
    row = Row(STEPS, None, small, 1.0, small, small, "fault", why)
    return [row, *(not_checked(name, f"see {STEPS}") for name in ALL[1:])]


def _steps_row(canaries: Canaries, small: float, slack: float) -> Row:
    setting = canaries.setting
    size, why = max(small, 1.0 / small), "look at the learning rate, and at what gradients are divided by"
    if setting.batch_size and abs(np.log(size / setting.batch_size)) < setting.allowances.pattern:
        why = (
            "as if the learning rate were that of the mean of gradients: the run needs that of their sum (rate / batch "
            "size), or the code sums where it should average"
        )
    elif size > 3.0:
        why = f"if {size:.3g} is about the size of a batch, the learning rate is that of the mean of gradients: {why}"
    return _ratio_row(STEPS, small, 1.0, slack, f"a small gradient has {small:.3g} times the declared effect: {why}")


def _norm_row(canaries: Canaries, small: float, slack: float) -> Row:
    """Return the norm to which a huge canary is clipped, of all tensors or of the one that is furthest off."""
    setting, clip = canaries.setting, canaries.setting.declared.run.clip_norm
    norms = []
    for tensor in setting.tensors:
        where = setting.like.slices[tensor]
        part = canaries.direction[where]
        norms.append(float(canaries.effect[where] @ part) / float(part @ part) / small)
    whole = float(canaries.effect @ canaries.direction) / small
    # Curvature differs from tensor to tensor, so that only one step compares single tensors.
    far = [(abs(value - 1.0), i) for value, i in zip(norms, setting.tensors, strict=True)]
    off, worst = max(far) if canaries.steps == 1 else (abs(whole - 1.0), setting.tensors[0])
    if off <= slack:
        return _ratio_row(NORM, whole * clip, clip, slack, "")
    name = setting.like.names[worst] if len(norms) > 1 and abs(whole - 1.0) <= slack else None
    value = norms[setting.tensors.index(worst)] if name else whole
    why = _norm_pattern(canaries, np.array(norms), whole)
    numbers = value * clip, clip, (value - slack) * clip, (value + slack) * clip
    return judged(NORM, numbers, True, why, f"x {1 + 2 * slack:.3g}", name)


def _norm_pattern(canaries: Canaries, norms: FloatArray, whole: float) -> str:
    close = canaries.setting.allowances.pattern
    count, least = len(norms), float(np.abs(canaries.direction[canaries.direction != 0.0]).min())
    given = float(np.linalg.norm(huge(canaries.direction, 1.0)))
    if whole > 0.5 * given:
        return "a large gradient is not clipped at all: look where gradients are clipped, and that they are used then"
    if count > 1 and np.all(np.abs(norms / np.sqrt(count) - 1.0) < close):
        return "as if clipping each tensor by itself: take the norm of all tensors together"
    if abs(whole * least * np.sqrt(np.mean(canaries.direction != 0.0)) - 1.0) < close or whole * least > 1.0 - close:
        return "as if clipping each coordinate by itself: take the norm of all tensors together"
    if np.ptp(norms) > close * whole:
        return "tensors are clipped differently: look whether all are in the norm, and whether all are scaled by it"
    return "gradients are clipped to another norm: look at the norm, and whether sums or means of gradients are clipped"


def _shape_row(name: str, norm: float, slack: float, exact: bool, allowed: float) -> Row:
    """Return the clipped norm of a canary of another shape. Curvature of many steps may take any part of it."""
    why = "less than a clipping norm: look whether the norm is the Euclidean one"
    if norm > 1.0:
        why = f"more{why[4:]} of all tensors, and all are scaled by it"
    if exact:
        return _ratio_row(name, norm, 1.0, slack, why)
    limit = allowed + slack
    return judged(name, (norm, 1.0, 0.0, max(1.0, norm)), norm > limit, why, f"x {limit:.3g}")


def _normalisation_row(canaries: Canaries, tiny: FloatArray, small: float, bend: float) -> Row:
    """Return what a canary of almost no size does beside its own gradient: nothing, unless it counts as an example."""
    rest = off_canary(canaries.setting, canaries.direction, tiny) / small
    limit = 2.0 * canaries.floor / small + TINY * (1.0 + bend)
    if limit > 0.1:
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
