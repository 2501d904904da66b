"""Effects of canaries, and the rows on clipping, size of steps and normalisation.

With shared randomness, two models of a seed differ by the canary alone: after one step, by the weight of the step times
the clipped canary. Curvature changes effects, but equally for canaries of one direction, so their ratios stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lastiterate.checking.check_result import Row, cannot_tell, judged, not_checked
from lastiterate.checking.parameters import Parameters
from lastiterate.checking.trainings import MEAN, SMALLEST_BATCH, Setting
from lastiterate.common.types import BoolArray, FloatArray

STEPS, NORM, SMALLER = "size of steps", "clipping norm", "clipping of small gradients"
JUST_ABOVE, OTHERS, NORMALISATION = "clipping just above the norm", "clipping of others", "normalisation"
ALL = (STEPS, NORM, SMALLER, JUST_ABOVE, OTHERS, NORMALISATION)
SHAPES = 4  # canaries in addition to the huge one

# ``spread`` has the same norm on every tensor and the same size in all coordinates of a tensor, so clipping by layer,
# by column or by coordinate leaves more than the clipping norm. Its signs are random.
HUGE = 100.0  # smallest coordinate of a huge canary, in clipping norms: clipping to any smaller norm shows
SMALL, BELOW, ABOVE, TINY = 0.2, 0.75, 1.2, 1e-3  # norms of other canaries, in clipping norms
_MOST_VECTORS = 8  # effects that are kept as vectors


def spread(like: Parameters, tensors: Sequence[int], seed: int) -> FloatArray:
    """Return a direction of norm 1 on these tensors."""
    rng, direction = np.random.default_rng([seed, 1]), np.zeros(len(like.vector))
    for where in (like.slices[tensor] for tensor in tensors):
        size = where.stop - where.start
        direction[where] = rng.choice([-1.0, 1.0], size) / np.sqrt(size * len(tensors))
    return direction


def huge_canary(setting: Setting) -> FloatArray | None:
    """Return the canary whose every coordinate is huge, or None if the trainer adds an example of its own."""
    least = np.abs(setting.direction[setting.direction != 0.0]).min(initial=np.inf)
    return setting.direction * (HUGE * setting.declared.run.clip_norm / least) if len(setting.direction) else None


@dataclass(frozen=True, eq=False)
class Effects:
    """Effects of the huge canary, or of the trainer's example: minus the displacement of the model, for each seed."""

    setting: Setting
    steps: int
    along: FloatArray  # the part along the canary, in clipping norms
    taken: BoolArray  # True if the canary was in a batch
    vectors: tuple[tuple[int, FloatArray], ...]  # some seeds with the canary in a batch, and displacements
    rest: float  # the largest part that is not along the canary, after one step

    @cached_property
    def best(self) -> tuple[int, FloatArray]:
        """The seed at which canaries are compared, and the displacement: of one copy, or least hidden by curvature."""
        sizes = [np.linalg.norm(vector) for _, vector in self.vectors]
        return self.vectors[int(np.argmin(sizes) if self.steps == 1 else np.argmax(sizes))]

    def of(self, canary: FloatArray, words: str) -> FloatArray:
        """Train with another canary at the best seed, and return minus the displacement."""
        return self.setting.trainings.effect(self.best[0], canary, self.steps, f"with a canary ({words})")


def effects_over_seeds(setting: Setting, count: int, steps: int) -> Effects:
    """Train with the huge canary, or with the trainer's example, at ``count`` seeds."""
    clip, canary, trainings = setting.declared.run.clip_norm, huge_canary(setting), setting.trainings
    along, sizes, rest, vectors = np.zeros(count), np.zeros(count), 0.0, list[tuple[int, FloatArray]]()
    least = 0.0
    for seed in range(count):
        effect = trainings.effect(seed, canary, steps, "with a canary")
        least = least or setting.allowances.rounding * trainings.floor(steps)
        sizes[seed] = float(np.linalg.norm(effect))
        along[seed] = (sizes[seed] if canary is None else float(effect @ setting.direction)) / clip
        if steps == 1 and canary is not None:
            rest = max(rest, off_canary(setting, effect))
        if sizes[seed] > least and len(vectors) < _MOST_VECTORS:
            vectors.append((seed, effect))
    return Effects(setting, steps, along, sizes > least, tuple(vectors), rest)


def off_canary(setting: Setting, effect: FloatArray) -> float:
    """Return the norm of the part of an effect that is not along the canary on any tensor."""
    rest = effect.copy()
    for where in (setting.trainings.like.slices[tensor] for tensor in setting.tensors):
        part = setting.direction[where]
        rest[where] -= float(rest[where] @ part) / float(part @ part) * part
    return float(np.linalg.norm(rest))


def is_shared(effects: Effects) -> bool:
    """Return whether worlds share randomness: a huge canary changes nothing at some seed, or a tiny one hardly any."""
    if not effects.taken.all():
        return True
    setting, g, steps = effects.setting, effects.setting.direction, effects.steps
    clip, weights = setting.declared.run.clip_norm, setting.declared.prefix(steps).weights
    effect = setting.trainings.effect(0, TINY * clip * g if len(g) else None, steps, "with a canary (tiny)")
    unit = clip * abs(float(np.sum(weights)))  # the largest effect of an example of the trainer
    if len(g):
        effect, unit = effect - float(effect @ g) * g, 10.0 * TINY * unit
    return float(np.linalg.norm(effect)) < setting.allowances.rounding * setting.trainings.floor(steps) + unit


def clipping_rows(effects: Effects) -> list[Row]:
    """Return the rows from canaries of other sizes.

    Effects are in units of the effect of a clipped canary. After many steps, the small canary gives this unit.
    """
    setting, g, is_exact = effects.setting, effects.setting.direction, effects.steps == 1
    clip, allowed = setting.declared.run.clip_norm, setting.allowances
    unit = clip * (float(setting.declared.prefix(1).weights[0]) if is_exact else 1.0)
    norms = {"small": SMALL, "below the norm": BELOW, "just above the norm": ABOVE, "tiny": TINY}
    found = {words: effects.of(size * clip * g, words) / unit for words, size in norms.items()}
    found["huge"] = effects.best[1] / unit
    small, floor = float(found["small"] @ g) / SMALL, setting.trainings.floor(effects.steps) / abs(unit)
    if small <= allowed.rounding * floor:
        why = "a huge gradient has an effect, but a small one has none; check clipping, and how numbers are rounded"
        if small < -allowed.rounding * floor:
            why = "steps go in the wrong direction; check the sign of the gradients in the update"
        row = Row(STEPS, None, small, 1.0, small, small, "fault", why)
        return [row, *(not_checked(name, f"see {STEPS}") for name in ALL[1:])]
    little, below, above, tiny, most = (effect / small for effect in found.values())
    bend = 0.0 if is_exact else float(np.linalg.norm(little - SMALL * g)) / SMALL
    slack = allowed.exact + floor / (SMALL * small) + bend
    steps = _steps_row(setting, small, slack) if is_exact else not_checked(STEPS, "it needs models of one step")
    if slack > allowed.norm - 1.0:
        why = "curvature or rounding hides the ratio of effects: check fewer steps, or let the trainer accept steps"
        return [steps, *(cannot_tell(name, 1.0, why, "fewer steps") for name in ALL[1:])]
    # After one step, a huge canary must not change the other gradients at any seed. After many steps, it must have the
    # same effect as a canary just above the norm.
    rest = effects.rest / abs(unit * small) if is_exact else off_canary(setting, most - above)
    # A tiny canary has no effect, unless it changes the number of examples.
    spare = 2.0 * floor / small
    other, least = off_canary(setting, tiny), spare + TINY * (1.0 + bend)
    normalised = _rest_row(NORMALISATION, other, least, _NORMALISED)
    if least > allowed.whole:
        why = "rounding hides the effect of a tiny canary"
        normalised = cannot_tell(NORMALISATION, 0.0, why, "a larger learning rate")
    return [
        steps,
        _norm_row(setting, most, slack, is_exact),
        _ratio_row(SMALLER, float(below @ g) / BELOW, slack, _SMALLER),
        _ratio_row(JUST_ABOVE, float(above @ g) / float(most @ g), slack, _JUST_ABOVE),
        _rest_row(OTHERS, rest, slack + spare, _OTHERS),
        normalised,
    ]


_SMALLER = "gradients below the norm are changed; check whether they are normalised, and whether the norm is Euclidean"
_JUST_ABOVE = "a gradient just above the norm and a huge one have different effects; check where clipping begins"
_OTHERS = (
    "a huge gradient changes the effects of other examples in its batch, or the noise; check whether each gradient is "
    "clipped by itself, before any sum or mean, and whether the noise is independent of the data"
)
_NORMALISED = (
    "a tiny canary changes the model; check whether steps are divided by the actual instead of the expected size"
)


def _rest_row(name: str, rest: float, limit: float, why: str) -> Row:
    return judged(name, (rest, 0.0, 0.0, rest + limit), rest > limit, why, f"{limit:.2g} clipping norms")


def _ratio_row(name: str, ratio: float, slack: float, why: str) -> Row:
    """Return a row of a ratio that must be 1 within the slack."""
    numbers = ratio, 1.0, ratio - slack, ratio + slack
    return judged(name, numbers, abs(ratio - 1.0) > slack, why, f"x {1.0 + 2.0 * slack:.3g}")


def _steps_row(setting: Setting, small: float, slack: float) -> Row:
    size, near = max(small, 1.0 / small), setting.allowances.pattern
    why = "check the learning rate, and the divisor of gradients"
    if setting.batch_size and abs(np.log(size / setting.batch_size)) < near:
        why = f"perhaps {MEAN}, or the code sums where it should average"
    elif size > SMALLEST_BATCH:
        why = f"if {size:.3g} is about the size of a batch, {MEAN}; {why}"
    return _ratio_row(STEPS, small, slack, f"a small gradient has {small:.3g} times the declared effect: {why}")


def _norm_row(setting: Setting, effect: FloatArray, slack: float, is_exact: bool) -> Row:
    """Return the norm to which a huge canary is clipped: of all tensors, or of the tensor with the largest error."""
    g, clip, like = setting.direction, setting.declared.run.clip_norm, setting.trainings.like
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
    if whole > 0.5 * HUGE / least:  # half of the huge canary's norm
        return "a huge gradient is not clipped; check where gradients are clipped, and whether clipped ones are used"
    if len(norms) > 1 and np.all(np.abs(norms / np.sqrt(len(norms)) - 1.0) < close):
        return "each tensor seems to be clipped by itself; use the norm of all tensors together"
    if abs(whole * least * np.sqrt(len(used) / len(setting.direction)) - 1.0) < close or whole * least > 1.0 - close:
        return "each coordinate seems to be clipped by itself; use the norm of all tensors together"
    if np.ptp(norms) > close * whole:
        return "tensors are clipped differently; check whether the norm includes all of them and scales all of them"
    return "gradients are clipped to another norm; check the norm, and whether sums or means of gradients are clipped"


def not_finite_row() -> Row:
    """Return the fault of a canary that makes parameters NaN or infinite."""
    why = "parameters are NaN or infinite with a huge gradient in the data; check where gradients are clipped"
    return Row(NORM, None, np.inf, 1.0, np.inf, np.inf, "fault", why)
