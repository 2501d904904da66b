"""What canaries show that are gradients in the form of the parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.stats import beta

from lastiterate.checking import clipping
from lastiterate.checking.canary_effects import (
    Effect,
    dead_parameters,
    effect_of,
    quiet,
    restricted,
    share_batches,
    still_at,
)
from lastiterate.checking.check_result import (
    ABOVE,
    LARGER,
    PARTICIPATION_SHARES,
    SMALL,
    Row,
    Status,
    cannot_tell,
    loud,
    not_checked,
    one_coordinate,
    spread,
)
from lastiterate.checking.clipping import NORM, PRESENCE, presence_row
from lastiterate.checking.measurements import Measured
from lastiterate.checking.noise import QUIET
from lastiterate.checking.optimizer_effect import are_exact, steps_row
from lastiterate.checking.participation import RATE, participation_rows
from lastiterate.common.types import FloatArray, IntArray

_CURVED = 0.1  # rest of an effect, over the effect, from which on curvature is worth a word
_CHANCE = 4.5  # standard deviations of a cosine between directions that have nothing in common
_FAR_MORE = 10.0  # times what a canary does besides at other seeds
_COARSE = 0.004  # of an effect: rounding that hides what is quiet; those it leaves alike are off by twice as much
_BESIDES = "the canary does more besides than along itself: others are changed by it, or curvature is strong"
_TOO_RARE = "the canary was in no batch of any model: more models, more steps, or a higher sample rate"


@dataclass
class _Canaries:
    """Canaries that were put to the trainer, and what they did."""

    measured: Measured
    pairs: list[Effect] = field(default_factory=list)
    shapes: dict[str, Effect] = field(default_factory=dict)
    broke: bool = False
    unmoved: bool | None = None
    tensors: dict[str, int] = field(default_factory=dict)

    def effect(self, number: int, canary: FloatArray, direction: FloatArray, what: str) -> Effect | None:
        measured = self.measured
        found = measured.trainings.effect(number, canary, what)
        if found is None:
            self.broke = True
            return None
        clip_norm = measured.declared.run.clip_norm
        return effect_of(number, found, direction, clip_norm, measured.variance, measured.error)

    def still(self) -> IntArray | None:
        """Parameters in which there is no curvature, as far as canaries show; None: they show nothing."""
        if not all(effect.shared for effect in self.pairs):
            return None
        if not any(effect.took_part for effect in self.pairs):
            return None
        best = still_at(self.pairs)
        # Effects that are rounded coarsely look alike in many coordinates.
        return None if self.measured.floor > _COARSE * abs(best.along) else quiet(best)

    def dead(self) -> IntArray | None:
        """Parameters that no gradient moves, as far as canaries show."""
        if not all(effect.shared for effect in self.pairs):
            return None
        return dead_parameters(self.pairs, self.measured.floor)

    def clip_norm(self, still: IntArray | None) -> float:
        """To which norm canaries are clipped, in units of the declared one, as quiet parameters show it."""
        small = self.shapes.get("small")
        if small is None or not small.took_part:
            return 1.0
        best = next(effect for effect in self.pairs if effect.number == small.number)
        if still is not None:
            best, small = restricted(best, still), restricted(small, still)
        clip = max(SMALL * best.along / small.along, 1e-3) if small.along else 1.0
        return clip if abs(clip - 1.0) > clipping.EXACT else 1.0


def gradient_rows(measured: Measured) -> tuple[list[Row], list[str]]:
    """All rows, and what else was noticed."""
    found = _trained(measured)
    if not share_batches(found.pairs, measured.plain, measured.declared.run.clip_norm, measured.floor):
        found.pairs = [replace(effect, shared=False) for effect in found.pairs]
        found.shapes = {name: replace(effect, shared=False) for name, effect in found.shapes.items()}
    effects = found.pairs
    still, dead = found.still(), found.dead()
    clip = found.clip_norm(still if dead is None else dead)
    rows = measured.noise_rows(effects, clip, found.unmoved, still)
    if dead is not None:
        parts = [restricted(effect, dead) for effect in effects]
        rows.append(measured.dead_row(dead, are_exact(parts, measured.declared, clip, measured.floor, measured.error)))
    else:
        rows[0] = measured.unless_hidden(rows[0])
    rows += measured.everywhere_rows(effects, clip, any(row.status == "fault" for row in rows))
    clipped = _clipping_rows(found, clip)
    rows += clipped
    if still is not None:
        effects = [restricted(effect, still if dead is None else dead) for effect in effects]
    if effects:
        exact = dead is not None and not any(row.status == "fault" for row in clipped)
        rows += participation_rows(effects, measured.declared, clip, PARTICIPATION_SHARES * measured.error)
        rows.append(
            steps_row(
                effects,
                measured.declared,
                clip,
                measured.error,
                _is_still(rows),
                measured.has_several(),
                measured.floor if exact else None,
            )
        )
    return rows, _notes(found.pairs)


def _trained(measured: Measured) -> _Canaries:
    """First one canary at several seeds, until it took part; then, at the seed where it did most, other shapes."""
    found = _Canaries(measured)
    like, clip_norm = measured.like, measured.declared.run.clip_norm
    seed, pairs = measured.trainings.seed, measured.plan.pairs
    direction = spread(like, measured.moved, seed)
    canary = loud(direction, clip_norm)
    for number in range(min(len(measured.plain), pairs + measured.plan.shapes)):
        if number >= pairs and any(effect.took_part or not effect.shared for effect in found.pairs):
            break
        effect = found.effect(number, canary, direction, "with a canary on all tensors")
        if effect is None:
            return found
        found.pairs.append(effect)
    best = _telling(found.pairs, measured.plain)
    if not best.shared or best.took_part:
        _other_shapes(found, best.number, direction)
    elif measured.plan.shapes and any(effect.rest.any() for effect in found.pairs):
        most = max(found.pairs, key=lambda effect: float(np.linalg.norm(effect.rest)))
        _compare_loud(found, most.number, direction)
    return found


def _telling(effects: list[Effect], models: FloatArray) -> Effect:
    """The effect at whose seed other canaries are tried: the largest, unless at another seed it scaled the noise.

    Curvature does much the same at all seeds, and kinks of a loss have nothing to do with the noise of the model. What
    divides by the size of large batches only shows at some seeds, and does: ``models`` are those without a canary.
    """
    largest = max(effects, key=lambda effect: abs(effect.along))
    besides = max((effect for effect in effects if effect.took_part), key=lambda effect: effect.spread, default=largest)
    if besides.spread <= max(_CURVED, _FAR_MORE * largest.spread):
        return largest
    noise = models[besides.number] - models.mean(axis=0)
    cosine = float(besides.rest @ noise) / float(np.linalg.norm(besides.rest) * np.linalg.norm(noise))
    return besides if abs(cosine) > _CHANCE / np.sqrt(len(noise)) else largest


def _compare_loud(found: _Canaries, number: int, direction: FloatArray) -> None:
    """Where a canary does more besides than along itself: it may be clipped together with others."""
    canary = ABOVE * found.measured.declared.run.clip_norm * direction
    effect = found.effect(number, canary, direction, "with a canary (above)")
    if effect is not None:
        found.shapes["above"] = effect


def _other_shapes(found: _Canaries, number: int, direction: FloatArray) -> None:
    measured = found.measured
    like, clip_norm, seed = measured.like, measured.declared.run.clip_norm, measured.trainings.seed
    coordinate, of = one_coordinate(like, measured.moved, seed)
    largest = max(measured.moved, key=lambda tensor: int(np.prod(like.shapes[tensor])))
    tensors = measured.unmoved or [largest]
    alone = spread(like, tensors, seed + 1)
    found.tensors = {"coordinate": of, "tensor": largest}
    asked: list[tuple[str, FloatArray, FloatArray]] = [
        ("small", SMALL * clip_norm * direction, direction),
        ("larger", LARGER * clip_norm * direction, direction),
        ("coordinate", loud(coordinate, clip_norm), coordinate),
        ("tensor", loud(alone, clip_norm), alone),
        ("above", ABOVE * clip_norm * direction, direction),
    ]
    for name, canary, along in asked[: measured.plan.shapes]:
        effect = found.effect(number, canary, along, f"with a canary ({name})")
        if effect is None:
            return
        found.shapes[name] = effect
    if measured.unmoved:
        moves = found.shapes.pop("tensor")
        touched = any(moves.direction[like.slices[i]].any() for i in measured.unmoved)
        found.unmoved = bool(touched and moves.along != 0.0)


def _clipping_rows(found: _Canaries, clip: float) -> list[Row]:
    """Rows that compare canaries of one seed."""
    measured, shapes = found.measured, found.shapes
    like, floor = measured.like, measured.floor
    if found.broke:
        return [clipping.not_finite_row()]
    if "small" not in shapes:
        names, above = (clipping.NORM, clipping.SMALLER, PRESENCE), shapes.get("above")
        if above is None:
            return [cannot_tell(name, None, _TOO_RARE) for name in names]
        loud = next(effect for effect in found.pairs if effect.number == above.number)
        return [*(cannot_tell(name, None, _BESIDES) for name in names), clipping.others_row(loud, above, floor)]
    small, larger = shapes["small"], shapes["larger"]
    best = next(effect for effect in found.pairs if effect.number == small.number)
    bent, coordinate = clipping.bent(larger, small), like.names[found.tensors["coordinate"]]
    rows = [
        clipping.norm_row(best, small, like, measured.moved, bent),
        clipping.small_row(larger, small, bent),
        clipping.coordinate_row(shapes["coordinate"], small, found.still(), coordinate, bent),
    ]
    if "tensor" in shapes and len(like.names) > 1:
        rows.append(clipping.tensor_row(shapes["tensor"], small, like.names[found.tensors["tensor"]], bent))
    if "above" in shapes and not (rows[0].status == "fault" and (rows[0].measured or 0.0) > ABOVE):
        rows.append(clipping.others_row(best, shapes["above"], floor))
    return [*rows, presence_row(small, larger, best, clip, floor)]


def _is_still(rows: list[Row]) -> bool:
    """Whether quiet parameters have just the noise declared, so that nothing took from it, nor added to it."""
    found = [row for row in rows if row.name == QUIET]
    return any(row.low is not None and row.high is not None and row.low > 0.8 and row.high < 1.25 for row in found)


def _notes(effects: list[Effect]) -> list[str]:
    notes: list[str] = []
    if effects and not all(effect.shared for effect in effects):
        notes.append(
            "Models with and without a canary do not share noise and batches at equal seeds; if they did, its effect "
            "could be seen without noise: let the canary have a place in both worlds, which is empty in one. If it has "
            "one, noise or batches depend on the data, which they must not."
        )
    seen = [effect.spread for effect in effects if effect.took_part]
    if seen and max(seen) > _CURVED:
        notes.append(
            f"Curvature shows: besides its own direction a canary moves the model by {max(seen):.2g} of its effect. "
            "Shorter trainings, or smaller learning rates, show more."
        )
    return notes


Rows = Callable[[Measured], tuple[list[Row], list[str]]]


# What can be checked with a canary that is an example of the trainer's own: its gradients are not known.

_MORE = 0.3  # by which curvature may make an effect larger
_WHY_NOT = "the gradient of an example is not known: see canary='gradient'"


def example_rows(measured: Measured) -> tuple[list[Row], list[str]]:
    """Noise, the size of the canary's effect, and at how many seeds it has one."""
    effects: list[FloatArray] = []
    for number in range(min(len(measured.plain), measured.plan.pairs)):
        found = measured.trainings.effect(number, None, "with the canary")
        if found is None:
            why = "with the canary parameters become NaN or infinite: look whether its gradient is clipped"
            return [*_noise_rows(measured), Row(NORM, None, None, 1.0, None, None, "fault", why)], []
        effects.append(found)
    rows = _noise_rows(measured)
    rows += [_size_row(measured, effects), taking_part_row(measured, effects)]
    rows += [not_checked(name, _WHY_NOT) for name in ("normalisation", "size of steps")]
    return rows, []


def _noise_rows(measured: Measured) -> list[Row]:
    rows = measured.noise_rows([], 1.0, None)
    return [*rows, *measured.everywhere_rows([], 1.0, any(row.status == "fault" for row in rows))]


def _size_row(measured: Measured, effects: list[FloatArray]) -> Row:
    """The largest effect, over that of a gradient of the clipping norm in every batch."""
    declared = measured.declared
    norms = np.array([float(np.linalg.norm(effect)) for effect in effects])
    unit = declared.most * declared.run.clip_norm
    noise = _apart(measured)
    largest = float(norms.max())
    # With noise between the worlds the norm of the difference is the noise's; only far above it is it the canary's.
    low = max(0.0, largest - 2.0 * noise) / unit if largest > 0.3 * noise else largest / unit
    if low > 1.0 + _MORE:
        why = "the canary counts more than a clipping norm in every batch: look at clipping and at the learning rate"
        return Row(NORM, None, largest / unit, 1.0, low, largest / unit, "fault", why)
    if largest > 0.3 * noise and largest > unit:
        return cannot_tell(NORM, 1.0, "models with and without the canary do not share noise and batches")
    return Row(
        NORM, None, largest / unit, 1.0, low, largest / unit, "ok", "at most this much of a clipping norm a batch"
    )


def taking_part_row(measured: Measured, effects: list[FloatArray]) -> Row:
    """At how many seeds the canary had an effect."""
    declared = measured.declared
    expected = 1.0 - float(np.prod(1.0 - declared.rates))
    noise = _apart(measured)
    norms = [float(np.linalg.norm(effect)) for effect in effects]
    if max(norms) > 0.3 * noise and max(norms) > declared.most * declared.run.clip_norm:
        return cannot_tell(RATE, expected, "models with and without the canary do not share noise and batches")
    seeds, took = len(norms), sum(norm > 0.0 for norm in norms)
    if not took:
        return cannot_tell(RATE, expected, "the canary has no effect at any seed: it is never in, or has no gradient")
    low = float(beta.ppf(measured.error / 2.0, took, seeds - took + 1))
    high = float(beta.isf(measured.error / 2.0, took + 1, seeds - took)) if took < seeds else 1.0
    status: Status = "ok" if low <= expected <= high else "fault"
    why = "the share of seeds at which the canary has an effect is not that of the declared sample rate"
    return Row(RATE, None, took / seeds, expected, low, high, status, why if status == "fault" else "")


def _apart(measured: Measured) -> float:
    """How far models of different seeds are apart, by noise and by sampling, or should be by noise."""
    found = float(measured.plain.var(axis=0, ddof=1).sum())
    return float(np.sqrt(2.0 * max(found, measured.declared.variance * len(measured.like.vector))))
