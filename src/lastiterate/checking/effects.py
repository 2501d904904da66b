"""Effects of canaries: differences between models of one seed with a canary and without.

With shared randomness, two models of a seed differ by the canary alone. After one step the difference is exactly the
weight of the step times the clipped canary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lastiterate.checking.parameters import Parameters
from lastiterate.checking.trainings import Setting
from lastiterate.common.types import BoolArray, FloatArray

# ``spread`` has the same norm on every tensor and the same size in all coordinates of a tensor, so clipping by layer,
# by column or by coordinate leaves more than the clipping norm. Its signs are random.
HUGE = 100.0  # smallest coordinate of a huge canary, in clipping norms: clipping to any smaller norm shows
SMALL, BELOW, ABOVE, TINY = 0.2, 0.75, 1.2, 1e-3  # norms of other canaries, in clipping norms
_MOST_VECTORS = 8  # effects that are kept as vectors
# Midway between the effect of dividing a batch of one example by two, and independent noise of two models:
_OWN = (1.0 / 2.0 + 1.0) / 2.0  # share of a model's own displacement in an effect
_ALONG = (1.0 + np.sqrt(1.0 / 2.0)) / 2.0  # cosine of an effect and the displacement


def spread(like: Parameters, tensors: Sequence[int], seed: int) -> FloatArray:
    """Return a direction of norm 1 on these tensors."""
    rng, direction = np.random.default_rng([seed, 1]), np.zeros(len(like.vector))
    for where in (like.slices[tensor] for tensor in tensors):
        size = where.stop - where.start
        direction[where] = rng.choice([-1.0, 1.0], size) / np.sqrt(size * len(tensors))
    return direction


def huge(direction: FloatArray, clip_norm: float) -> FloatArray:
    """Return a canary whose every coordinate is far above the clipping norm."""
    return direction * (HUGE * clip_norm / float(np.abs(direction[direction != 0.0]).min()))


def huge_canary(setting: Setting) -> FloatArray | None:
    """Return the huge canary of a check, or None if the trainer adds an example of its own."""
    return huge(setting.direction, setting.declared.run.clip_norm) if len(setting.direction) else None


@dataclass(frozen=True, eq=False)
class Effects:
    """Effects of the huge canary, or of the trainer's example: minus the displacement of the model, for each seed."""

    setting: Setting
    steps: int
    along: FloatArray  # the part along the canary, in clipping norms
    size: FloatArray  # the norm
    taken: BoolArray  # True if the canary was in a batch
    vectors: tuple[tuple[int, FloatArray], ...]  # some seeds with the canary in a batch, and displacements
    rest: float = 0.0  # the largest part that is not along the canary, after one step
    is_broken: bool = False  # True if parameters were not finite

    @cached_property
    def best(self) -> tuple[int, FloatArray]:
        """The seed at which canaries are compared, and the huge canary's displacement.

        After one step it is the smallest, which is due to one copy of the canary. After many steps it is the largest,
        which curvature hides least.
        """
        sizes = [np.linalg.norm(vector) for _, vector in self.vectors]
        return self.vectors[int(np.argmin(sizes) if self.steps == 1 else np.argmax(sizes))]

    @property
    def unit(self) -> float:
        """Displacement by a clipped canary in one step. After many steps, the clipping norm is the unit."""
        declared = self.setting.declared
        return declared.prefix(1).step if self.steps == 1 else declared.run.clip_norm

    @property
    def floor(self) -> float:
        """Rounding errors, in units."""
        return self.setting.trainings.floor(self.steps) / abs(self.unit)

    def of(self, canary: FloatArray, words: str) -> FloatArray | None:
        """Train with another canary at the best seed, and return minus the displacement."""
        return self.setting.trainings.effect(self.best[0], canary, self.steps, f"with a canary ({words})")


def effects_over_seeds(setting: Setting, count: int, steps: int) -> Effects:
    """Train with the huge canary, or with the trainer's example, at ``count`` seeds."""
    clip, canary, trainings = setting.declared.run.clip_norm, huge_canary(setting), setting.trainings
    along, sizes, rest, vectors = np.zeros(count), np.zeros(count), 0.0, list[tuple[int, FloatArray]]()
    least = 0.0
    for seed in range(count):
        effect = trainings.effect(seed, canary, steps, "with a canary")
        if effect is None:
            return Effects(setting, steps, along, sizes, sizes > 0.0, (), is_broken=True)
        least = least or setting.allowances.rounding * trainings.floor(steps)
        sizes[seed] = float(np.linalg.norm(effect))
        along[seed] = (sizes[seed] if canary is None else float(effect @ setting.direction)) / clip
        if steps == 1 and canary is not None:
            rest = max(rest, off_canary(setting, effect))
        if sizes[seed] > least and len(vectors) < _MOST_VECTORS:
            vectors.append((seed, effect))
    return Effects(setting, steps, along, sizes, sizes > least, tuple(vectors), rest)


def off_canary(setting: Setting, effect: FloatArray) -> float:
    """Return the norm of the part of an effect that is not along the canary on any tensor."""
    rest = effect.copy()
    for where in (setting.like.slices[tensor] for tensor in setting.tensors):
        part = setting.direction[where]
        rest[where] -= float(rest[where] @ part) / float(part @ part) * part
    return float(np.linalg.norm(rest))


def is_shared(effects: Effects, models: FloatArray, start: FloatArray | None) -> bool:
    """Return whether both worlds of a seed share noise and batches.

    They do if a huge canary changes nothing at some seed. Otherwise a tiny canary must have a negligible effect, or an
    effect along the whole displacement, such as that of division by the batch size. If noise is not shared, the effect
    is the difference of the noise of two models.

    Args:
        effects: effects of the huge canary.
        models: models without a canary, of the same number of steps.
        start: initial values of the first model, or None if they are unknown.
    """
    if not effects.taken.all():
        return True
    setting, direction = effects.setting, effects.setting.direction
    declared, clip = setting.declared.prefix(effects.steps), setting.declared.run.clip_norm
    canary = TINY * clip * direction if len(direction) else None
    effect = setting.trainings.effect(0, canary, effects.steps, "with a canary (tiny)")
    if effect is None:
        return True
    unit = clip * abs(float(np.sum(declared.weights)))  # the largest effect of an example of the trainer
    if canary is not None:
        effect = effect - float(effect @ direction) * direction
        unit *= 10.0 * TINY
    size = float(np.linalg.norm(effect))
    if size < setting.allowances.rounding * setting.trainings.floor(effects.steps) + unit:
        return True
    own = models[0] - (models.mean(axis=0) if start is None else declared.memory * start)
    product = float(effect @ own)
    return product < _OWN * float(own @ own) and abs(product) > _ALONG * size * float(np.linalg.norm(own))
