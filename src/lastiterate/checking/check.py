"""``lastiterate.check``: compare training code with its declared run, by a few dozen short trainings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.stats import norm

from lastiterate.checking import adam_rows, noise_rows, participation_rows, seed_rows
from lastiterate.checking.allowances import Allowances
from lastiterate.checking.check_result import CheckResult, Row, cannot_tell, judged, not_checked
from lastiterate.checking.clipping_rows import ALL as CLIPPING
from lastiterate.checking.clipping_rows import NORM, NORMALISATION, STEPS, Canaries, clipping_rows, not_finite_row
from lastiterate.checking.declared import Declared
from lastiterate.checking.noise_rows import ENOUGH
from lastiterate.checking.parameters import Foreign
from lastiterate.checking.participation_rows import Counts
from lastiterate.checking.trainings import TINY, Setting, Trainings, huge, spread, takes_steps
from lastiterate.common.types import BoolArray, FloatArray
from lastiterate.common.validation import function, instance, integer, number, one_of
from lastiterate.optimizer import is_adam, is_sgd
from lastiterate.run import DPSGD, require_run

MODELS, ERROR = 32, 1e-3
LEAST_MODELS, MOST_MODELS = 8, 1000
MOST_STEPS = 10**6  # each step has a weight of its own
ROWS = 16  # rows with a random error, each with an equal share (union bound); all tensors together have one share
SHAPES = 6  # canaries beside the huge one
_FEW_SEEDS = 16  # one-step models: 15 degrees of freedom for each parameter
_MOST_KEPT = 2 * 10**7  # numbers of one-step models that are kept
_OWN = 0.7  # share of its own noise in an effect: all if worlds do not share noise, at most half if they do
_ALONG = 0.9  # cosine of an effect and the whole displacement: 1 if steps are divided by the size of the batch
SHARED, LENGTH = "shared randomness", "number of steps"
_NO_STEPS = (
    "The trainer takes no number of steps. One that is called as train(seed, canary, steps) is also checked after one "
    "step: for the law of the noise, distinct values, noise that is used again, parameters without noise, the size of "
    "steps, momentum, and the noise of the last step."
)


def check(
    run: DPSGD,
    train: Callable[..., Foreign],
    models: int = MODELS,
    canary: Literal["gradient", "example"] = "gradient",
    seed: int = 0,
    error: float = ERROR,
    *,
    batch_size: float | None = None,
    initial: Callable[[int], Foreign] | None = None,
    told: Callable[[], None] | None = None,
    allowances: Allowances | None = None,
) -> CheckResult:
    """Check training code against its declared run.

    Only the last iterate is looked at, and a canary is one example, whatever the run releases and whom it protects.

    Args:
        run: the declared run, of at most a million steps. The learning rate of its optimizer is that of the sum of
            gradients; without an optimizer or weights it is 1.
        train: ``train(seed, canary)`` or, better, ``train(seed, canary, steps)`` returns parameters: arrays, a dict,
            list or tuple of them, a PyTorch module or a state dict. ``canary`` is False, or what the argument of that
            name says. ``steps`` is the number of steps of the run after which training stops.
        models: number of models of the declared length that are trained, in [8, 1000]. Short ones come on top,
            and one more for each canary if worlds with and without a canary do not share randomness.
        canary: ``"gradient"``: the trainer is given a gradient in the form of the parameters, to be added to the data
            as one more example's gradient before clipping, and drawn into batches as any other. ``"example"``: True,
            which puts in an example of the trainer's own; less is checked then.
        seed: seed of the trainer's seeds and of the canaries.
        error: probability that a correct training has any fault in the result.
        batch_size: expected number of examples in a batch. It tells too much noise from that of sampling.
        initial: ``initial(seed)`` returns the parameters before training, if they follow the seed.
        told: is called after each training of the declared length, as for a progress bar.
        allowances: stated faults and tolerated deviations; None: the defaults of ``Allowances``.
    """
    declared = Declared(require_run(run))
    integer("steps", run.steps, 1, MOST_STEPS)
    with_steps = takes_steps(train)
    one_of("canary", canary, ("gradient", "example"))
    count = integer("models", models, LEAST_MODELS, MOST_MODELS)
    level = number("error", error, 0.0, 0.5, open_low=True)
    expected = None if batch_size is None else number("batch_size", batch_size, 0.0, open_low=True)
    if initial is not None:
        function("initial", initial, "a function of a seed that returns parameters, or None")
    if told is not None:
        function("told", told, "a function without arguments, or None")
    allowed = instance("allowances", allowances or Allowances(), Allowances, "an Allowances or None")
    trainings = Trainings(declared, train, with_steps, integer("seed", seed, 0), told or _nothing)
    plan = _plan(declared, count, with_steps and declared.can_stop, canary == "gradient")
    found = _Check(trainings, plan, canary == "gradient", level, expected, initial, allowed)
    rows = found.rows()
    short = sum(times for steps, times in trainings.counts.items() if steps < max(run.steps - 2, 1))
    total = sum(trainings.counts.values())
    notes = (*found.notes, *_not_looked_at(run))
    return CheckResult(run, tuple(rows), total - short, level, notes, short)


def _nothing() -> None: ...


def _not_looked_at(run: DPSGD) -> list[str]:
    """Return sentences on what a run says beyond the training of one model."""
    notes = []
    if run.release_count > 1:
        notes.append(f"Of the {run.release_count:,} released iterates only the last one is checked.")
    if run.group_size > 1 or run.neighbours == "replace":
        notes.append(
            "Canaries are single examples that are present or absent: group_size and neighbours are not checked."
        )
    return notes


@dataclass(frozen=True)
class Plan:
    """Numbers of models of the declared length.

    Attributes:
        plain: models without a canary, one of which is trained twice.
        pairs: seeds with a canary.
        last: seeds that are also trained for one step less, and with momentum for two.
        shapes: canaries of other shapes, if there are no one-step models.
        one_step: whether the trainer stops after one step, or the run has only one.
    """

    plain: int
    pairs: int
    last: int
    shapes: int
    one_step: bool
    has_momentum: bool


def _plan(declared: Declared, models: int, can_stop: bool, with_gradients: bool) -> Plan:
    """Divide the models of the declared length between the measurements."""
    run, sgd = declared.run, declared.run.optimizer
    one_step = can_stop or run.steps == 1
    simple = sgd is None or (is_sgd(sgd) and sgd.averaging is None and not sgd.nesterov)
    momentum = is_sgd(sgd) and sgd.momentum > 0.0
    last = 0
    if can_stop and simple and run.steps > (2 if momentum else 1):
        last = 4 if models >= 16 else 2
    shapes = 0 if can_stop or not with_gradients else min(SHAPES, models - 5)
    left = models - 1 - shapes - last * (2 if momentum else 1)
    pairs = max(1, left // 2)
    return Plan(left - pairs, pairs, last, shapes, one_step, momentum)


def models_for(plan: Plan, pairs: int) -> int:
    """Return the number of models that a number of pairs takes."""
    return 2 * pairs + 1 + plan.shapes + plan.last * (2 if plan.has_momentum else 1)


@dataclass(frozen=True, eq=False)
class Seeds:
    """Effects of the huge canary over seeds, in a number of steps.

    Attributes:
        along: minus the displacement along the canary, in units of the clipping norm.
        size: norm of the displacement.
        best: the seed and the displacement of the largest effect; None: the canary had none.
        broken: whether parameters were not finite.
    """

    steps: int
    along: FloatArray
    size: FloatArray
    taken: BoolArray
    best: tuple[int, FloatArray] | None
    some: tuple[FloatArray, ...]
    broken: bool = False


class _Check:
    """One check: trains models, and collects rows and notes."""

    def __init__(
        self,
        trainings: Trainings,
        plan: Plan,
        with_gradients: bool,
        error: float,
        batch_size: float | None,
        initial: Callable[[int], Foreign] | None,
        allowed: Allowances,
    ) -> None:
        self.trainings, self.plan, self.with_gradients, self.initial = trainings, plan, with_gradients, initial
        self.declared, self.notes = trainings.declared, list[str]()
        self.steps = self.declared.run.steps
        self.models = trainings.models(plan.plain, self.steps)
        differ = np.ptp(self.models, axis=0) > 0.0
        sizes = [i for i, where in enumerate(trainings.like.slices) if where.stop > where.start]
        tensors = [i for i in sizes if differ[trainings.like.slices[i]].any()] or sizes
        self.frozen = [i for i in sizes if i not in tensors]
        self.setting = Setting(self.declared, trainings, error / ROWS, allowed, batch_size, tuple(tensors))
        self.direction = spread(trainings.like, tensors, trainings.seed) if with_gradients else np.zeros(0)
        self.is_adam = is_adam(self.declared.run.optimizer)

    def rows(self) -> list[Row]:
        """Return all rows."""
        trainings, plan = self.trainings, self.plan
        seeds = [
            seed_rows.equal_row(self.setting, self.models, trainings.again(0, self.steps)),
            seed_rows.different_row(self.setting, self.models),
        ]
        self.repeats = seeds[0].status == "ok"
        if plan.one_step and self.steps > 1 and np.array_equal(trainings.without(0, 1), self.models[0]):
            why = f"1 and {self.steps} steps give the same model: look whether the trainer stops after `steps` steps"
            return [Row(LENGTH, None, None, None, None, None, "fault", why), *seeds]
        count = self._one_step_seeds() if plan.one_step else 0
        starts = self._starts(max(count, plan.plain))
        stated = seed_rows.initial_values(self.initial, trainings, max(count, plan.plain)) if self.initial else None
        if stated is not None:
            seeds.append(seed_rows.initial_row(stated))
        if plan.one_step and trainings.with_steps:
            known = None if stated is None or starts is None else stated[: len(starts)]
            seeds.append(seed_rows.no_steps_row(self.setting, starts, known, self._huge()))
        self.start = stated if stated is not None else starts
        self.setting = replace(
            self.setting, seeded=self.start is not None and bool(np.any(self.start[0] != self.start[1]))
        )
        rows = self._by_adam(count) if self.is_adam else self._by_sgd(count)
        if not plan.one_step:
            self.notes.append(_NO_STEPS)
        if trainings.record:
            rows.append(trainings.record)
        return [*rows, *seeds]

    def _huge(self) -> FloatArray | None:
        return huge(self.direction, self.declared.run.clip_norm) if self.with_gradients else None

    def _one_step_seeds(self) -> int:
        """Return how many one-step pairs are trained: for the noise, to see the canary, and to count its batches."""
        allowed, rate = self.setting.allowances, float(self.declared.rates[0])
        if self.steps == 1 and not self.trainings.with_steps:
            return self.plan.plain
        size = len(self.setting.columns)
        # A tenth of the numbers: half of the models test the quarter of parameters that vary least.
        few = max(_FEW_SEEDS, self.plan.plain, min(allowed.most_seeds // 2, int(np.ceil(10 * ENOUGH / size))))
        if not 0.0 < rate < 1.0:
            return min(few, allowed.most_seeds)
        seen = int(np.ceil(np.log(0.003) / np.log1p(-rate)))  # the canary is in no batch of these in 0.3%
        weights = self.declared.weights
        trials = self.plan.pairs * float(weights.sum() ** 2 / np.sum(weights**2)) if self.steps > 1 else 0.0
        other = allowed.rate * rate if allowed.rate * rate <= 1.0 else rate / allowed.rate
        # Batches that tell the stated rate from the declared one, by the normal law, and a half more.
        needed = float(norm.isf(0.8 * self.setting.error)) * np.sqrt(rate * (1.0 - rate))
        needed += float(norm.ppf(allowed.power)) * np.sqrt(other * (1.0 - other))
        counted = 1.5 * (needed / (other - rate)) ** 2 - trials
        copies = participation_rows.seeds_for_copies(rate)
        return int(min(allowed.most_seeds, max(few, seen, counted, copies if copies <= allowed.most_seeds / 2 else 0)))

    def _starts(self, count: int) -> FloatArray | None:
        """Return models of zero steps: of all seeds if they differ, else of the first two."""
        if not (self.plan.one_step and self.trainings.with_steps):
            return None
        two = seed_rows.models_of_no_steps(self.trainings, 2)
        if two is None or np.array_equal(two[0], two[1]):
            return two
        return seed_rows.models_of_no_steps(self.trainings, count)

    def _noise_models(self, count: int, steps: int) -> FloatArray:
        """Return models without a canary, from which initial values that follow the seed are taken out."""
        models = self.trainings.models(count, steps)
        if not self.setting.seeded or self.start is None or len(self.start) < count:
            return models
        return models - self.declared.prefix(steps).memory * self.start[:count]

    def _seeds(self, count: int, steps: int) -> Seeds:
        """Train with the huge canary, or with the example of the trainer, at ``count`` seeds."""
        trainings, clip = self.trainings, self.declared.run.clip_norm
        along, sizes, taken, some = np.zeros(count), np.zeros(count), np.zeros(count, np.bool_), list[FloatArray]()
        best: tuple[int, FloatArray] | None = None
        floor = 0.0
        canary, dear = self._huge(), count * len(trainings.like.vector) > _MOST_KEPT
        for seed in range(count):
            effect = trainings.effect(seed, canary, steps, "with a canary")
            if effect is None:
                return Seeds(steps, along, sizes, taken, None, (), broken=True)
            floor = floor or trainings.floor(steps)
            sizes[seed] = float(np.linalg.norm(effect))
            along[seed] = float(effect @ self.direction) / clip if self.with_gradients else sizes[seed] / clip
            taken[seed] = sizes[seed] > 10.0 * floor
            if taken[seed]:
                # One step: the least, of one copy of the canary. Many steps: the largest, which curvature hides least.
                if best is None or (sizes[seed] < np.linalg.norm(best[1])) == (steps == 1):
                    best = (seed, effect)
                some = [*some, effect][:8]
            if dear and seed >= _FEW_SEEDS:
                trainings.plain.pop((seed, steps), None)
        return Seeds(steps, along, sizes, taken, best, tuple(some))

    def _by_sgd(self, count: int) -> list[Row]:
        """Return the rows of noise, clipping and participation with SGD."""
        rows: list[Row] = []
        ones = None
        if count:
            ones = self._seeds(count, 1)
            rows += self._one_step_noise(ones)
        whole = ones if ones is not None and self.steps == 1 else self._seeds(self.plan.pairs, self.steps)
        seen = ones if ones is not None else whole
        if seen.broken or whole.broken:
            return [*rows, *([] if count else self._long_noise(None)), not_finite_row()]
        if not self._is_shared(seen):
            return self._without_sharing(ones, whole, count, rows)
        return [*rows, *self._by_effects(ones, whole, count)]

    def _without_sharing(self, ones: Seeds | None, whole: Seeds, count: int, rows: list[Row]) -> list[Row]:
        """Return the rows if a canary changes the random numbers: it is compared with a tiny one, if that helps."""
        if self.with_gradients and self.repeats:
            self.trainings.reference = TINY**2 * self.declared.run.clip_norm * self.direction
            again = None if ones is None else self._seeds(count, 1)
            all_again = again if again is not None and self.steps == 1 else self._seeds(self.plan.pairs, self.steps)
            seen = again if again is not None else all_again
            if not (seen.broken or all_again.broken) and self._is_shared(seen):
                found = self._by_effects(again, all_again, count)
                where = "the canary's place in both worlds"
                first = cannot_tell(NORMALISATION, 0.0, participation_rows.TINY_INSTEAD, where)
                return [*rows, *(first if row.name == NORMALISATION else row for row in found)]
            self.trainings.reference = None
        needs = "the canary's place in both worlds"
        first = cannot_tell(SHARED, None, participation_rows.UNSHARED, needs)
        return [first, *rows, *self._unshared(ones, whole, count)]

    def _by_effects(self, ones: Seeds | None, whole: Seeds, count: int) -> list[Row]:
        """Return the rows of effects of canaries, with shared randomness."""
        rows: list[Row] = []
        seen = ones if ones is not None else whole
        if not self.with_gradients:
            return [*rows, *([] if count else self._long_noise(None)), *self._example_rows(seen, whole)]
        if seen.best is None:
            rows += [cannot_tell(NORM, self.declared.run.clip_norm, _ABSENT, _MORE)]
        else:
            canaries = Canaries(self.setting, seen.best[0], seen.steps, self.direction, seen.best[1])
            canaries = replace(canaries, effect=seen.best[1] / canaries.unit)
            rows += clipping_rows(canaries, SHAPES if count and self.trainings.with_steps else self.plan.shapes)
        counts = self._counts(ones, whole, rows)
        rows += participation_rows.participation_rows(counts, lambda pairs: models_for(self.plan, pairs))
        if rows[-1].status == "cannot tell":
            rows[-1] = self._epoch_row(rows[-1])
        if ones is not None:
            rows.append(participation_rows.copies_row(self.setting, counts.hits if self.steps > 1 else counts.totals))
            if self._kept() >= count and self.steps > 1:
                rows.append(participation_rows.keys_row(self.setting, self._noise_models(count, 1), ones.taken))
        if self.steps > 1:
            rows += self._long_noise(counts)
        return [*rows, *self._frozen_rows(seen)]

    def _epoch_row(self, row: Row) -> Row:
        """Return whether the canary is sometimes in no batch of an epoch, if an epoch is shorter than the training."""
        seeds, length = participation_rows.epoch_seeds(self.setting)
        if not (self.plan.one_step and self.trainings.with_steps and length < self.steps) or seeds > MOST_MODELS:
            return row
        found = self._seeds(seeds, length)
        return row if found.broken else participation_rows.epoch_row(self.setting, found.taken, length)

    def _counts(self, ones: Seeds | None, whole: Seeds, rows: list[Row]) -> Counts:
        """Return the canary's batches, by effects over the norm to which it was really clipped."""
        clipped = next((row.measured for row in rows if row.name == NORM and row.tensor is None and row.measured), None)
        norms = (clipped or self.declared.run.clip_norm) / self.declared.run.clip_norm
        totals = whole.along / norms / float(np.mean(self.declared.weights))
        hits = np.zeros(0)
        if ones is not None and self.steps > 1:
            hits = np.round(ones.along / norms / float(self.declared.prefix(1).weights[0]))
        return Counts(self.setting, totals, self.steps, hits)

    def _one_step_noise(self, ones: Seeds) -> list[Row]:
        """Return the rows of the noise of one step, and of its growth in three."""
        setting, variance = self.setting, self.declared.prefix(1).variance
        models = self._noise_models(max(_FEW_SEEDS if self.trainings.with_steps else 2, self._kept()), 1)
        rows = [noise_rows.noise_row(setting, models, variance), *noise_rows.tensor_rows(setting, models, variance)]
        rows.append(noise_rows.excess_row(setting, models, 1))
        if rows[0].status != "fault":
            tests = [noise_rows.without_row, noise_rows.law_row, noise_rows.distinct_row]
            rows += [row(setting, models, variance) for row in [*tests, noise_rows.again_row]]
        if self.steps > 1 and self.trainings.with_steps:
            few = min(3, self.steps)
            some = min(64, max(8, int(np.ceil(ENOUGH / len(setting.columns)))))
            rows.append(noise_rows.several_row(setting, models, self._noise_models(some, few), few, self._left(ones)))
            if self.plan.last:
                rows.append(self._last_row())
        return rows

    def _start_of(self, models: FloatArray) -> FloatArray:
        """Return initial values beside models: those of each seed if they follow it, else the one for all."""
        assert self.start is not None
        return self.start[: len(models)] if self.setting.seeded else self.start[:1]

    def _kept(self) -> int:
        """Return how many one-step models without a canary are kept."""
        return len([1 for _, steps in self.trainings.plain if steps == 1])

    def _left(self, ones: Seeds) -> float:
        """Return what a second step leaves of the effect of a canary in the first. Curvature takes the rest.

        With momentum, curvature cannot be told from another momentum, and only the allowance counts.
        """
        sgd = self.declared.run.optimizer
        if is_sgd(sgd) and (sgd.momentum or sgd.averaging is not None):
            return 1.0
        if ones.best is None or not self.with_gradients or not self._is_shared(ones):
            return 0.0
        seed, first = ones.best
        second = self.trainings.effect(seed, self._huge(), 2, "with a canary, two steps")
        if second is None:
            return 0.0
        weights = self.declared.prefix(2).weights
        ratio = float(second @ self.direction) / float(first @ self.direction)
        ratio *= float(self.declared.prefix(1).weights[0] / weights[0])
        again = float(weights[1] / weights[0])  # if the canary is in the second batch, too
        return float(np.clip(ratio - again if ratio > 1.0 + self.setting.allowances.exact else ratio, 0.0, 1.0))

    def _last_row(self) -> Row:
        """Return the noise of the last step."""
        last, steps = self.plan.last, self.steps
        earlier = self.trainings.models(last, steps - 2) if self.plan.has_momentum else None
        return noise_rows.last_row(self.setting, self.models[:last], self.trainings.models(last, steps - 1), earlier)

    def _long_noise(self, counts: Counts | None) -> list[Row]:
        """Return the noise of the whole training; of each tensor, too, if there are no one-step models."""
        left = 0.0
        if counts is not None and counts.values.sum() > 0.0 and self.declared.run.noise_filter is None:
            most = float(counts.values.sum())
            if not counts.is_whole:
                most = float(np.quantile(counts.draw(counts.draws)[0].sum(axis=1), 1.0 - self.setting.error))
            left = min(1.0, max(0.0, float(counts.totals.sum()) / max(most, 1e-300)))
        models = self._noise_models(self.plan.plain, self.steps)
        if self.plan.one_step:
            return [noise_rows.released_row(self.setting, models, left, noise_rows.RELEASED)]
        tensors = self.setting.tensors if len(self.setting.like.names) > 1 else ()
        rows = [noise_rows.released_row(self.setting, models, left, noise_rows.NOISE, i) for i in (None, *tensors)]
        return [rows[0], noise_rows.excess_row(self.setting, models, self.steps), *rows[1:]]

    def _is_shared(self, seeds: Seeds) -> bool:
        """Return whether both worlds of a seed share noise and batches.

        A seed at which a huge canary changes nothing proves it. Otherwise a tiny canary must have no effect to speak
        of, or one along the whole displacement, as division by the size of the batch has. If noise is not shared, the
        effect is the model's own noise less that of another model.
        """
        if not seeds.taken.all():
            return True
        declared, like = self.declared.prefix(seeds.steps), self.trainings
        canary = TINY * self.declared.run.clip_norm * self.direction if self.with_gradients else None
        effect = like.effect(0, canary, seeds.steps, "with a canary (tiny)")
        if effect is None:
            return True
        if self.with_gradients:
            effect = effect - float(effect @ self.direction) * self.direction
        size, unit = float(np.linalg.norm(effect)), abs(float(np.sum(declared.weights))) * self.declared.run.clip_norm
        if size < 10.0 * like.floor(seeds.steps) + (10.0 * TINY if self.with_gradients else 1.0) * unit:
            return True
        models = like.models(min(self.plan.plain, len(seeds.taken)), seeds.steps)
        own = models[0] - (models.mean(axis=0) if self.start is None else declared.memory * self.start[0])
        product = float(effect @ own)
        return product < _OWN * float(own @ own) and abs(product) > _ALONG * size * float(np.linalg.norm(own))

    def _unshared(self, ones: Seeds | None, whole: Seeds, count: int) -> list[Row]:
        """Return the rows that need no shared randomness."""
        rows = self._long_noise(None) if self.steps > 1 else []
        if not self.with_gradients:
            return rows
        steps = 1 if ones is not None else self.steps
        models = self._noise_models(min(count or self.plan.plain, _FEW_SEEDS), steps)[:, self.setting.columns]
        ratio = max(1.0, float(models.var(axis=0, ddof=1).mean()) / self.declared.prefix(steps).variance)
        along = np.zeros(0) if ones is None else ones.along / float(self.declared.prefix(1).weights[0])
        totals = whole.along / float(np.mean(self.declared.weights))
        return [*rows, *participation_rows.unshared_rows(self.setting, along, totals, ratio, NORM)]

    def _example_rows(self, seen: Seeds, whole: Seeds) -> list[Row]:
        """Return the rows of an example of the trainer's own, whose gradient is not known."""
        allowed, clip = self.setting.allowances, self.declared.run.clip_norm
        if not seen.taken.any():
            return [cannot_tell(NORM, clip, _ABSENT, _MORE), not_checked(participation_rows.RATE, _ABSENT)]
        most = float(seen.size.max()) / float(np.abs(self.declared.prefix(seen.steps).weights).sum())
        limit = clip * (1.0 + allowed.exact + (0.0 if seen.steps == 1 else allowed.curvature))
        why = "the example counts more than a clipped one may: look where gradients are clipped"
        row = judged(NORM, (most, clip, 0.0, most), most > limit, why, f"norm x {limit / max(most, 1e-3 * clip):.2g}")
        unknown = "the gradient of the trainer's own example is not known"
        others = [not_checked(each, unknown) for each in CLIPPING if each != NORM]
        counted = seen if seen.steps == 1 else whole
        return [row, *others, adam_rows.presence_row(self.setting, counted.taken, counted.steps)]

    def _frozen_rows(self, seen: Seeds) -> list[Row]:
        """Return rows of tensors that are the same in all models: they are not trained, or have no noise."""
        if not self.frozen or seen.best is None:
            return []
        like = self.trainings.like
        alone = huge(spread(like, self.frozen, self.trainings.seed + 1), self.declared.run.clip_norm)
        effect = self.trainings.effect(seen.best[0], alone, seen.steps, "with a canary (frozen tensors)")
        rows = []
        for tensor in self.frozen:
            if effect is None or np.any(effect[like.slices[tensor]]):
                why = "a canary moves it, but noise does not: look whether noise is added to every tensor"
                rows.append(Row(noise_rows.NOISE, like.names[tensor], 0.0, 1.0, 0.0, 0.0, "fault", why))
            else:
                rows.append(
                    not_checked(
                        noise_rows.NOISE, "never changes, with a canary neither: it is not trained", like.names[tensor]
                    )
                )
        return rows

    def _by_adam(self, count: int) -> list[Row]:
        """Return the rows of a training with Adam."""
        self.notes.append(adam_rows.NOTE)
        whole = self._seeds(self.plan.pairs, self.steps)
        ones = self._seeds(count, 1) if count else None
        names = [not_checked(name, "Adam divides by the size of its gradients") for name in CLIPPING]
        if whole.broken or (ones is not None and ones.broken):
            return [not_finite_row(), *names]
        if not self._is_shared(whole):
            return [cannot_tell(SHARED, None, participation_rows.UNSHARED), *names]
        noise = cannot_tell(noise_rows.NOISE, None, "Adam hides the size of the noise; check the code with SGD", "SGD")
        rows = [noise]
        if self.with_gradients:
            rows = [adam_rows.signs_row(self.setting, list(ones.some) if ones else [], self.direction)]
        if count:
            models = self.trainings.models(min(count, _FEW_SEEDS), 1)
            start = None if self.start is None else self._start_of(models)
            rows.append(adam_rows.step_row(self.setting, models, start))
            names = [row for row in names if row.name != STEPS]
        if self.with_gradients:
            if whole.best is None:
                rows.append(cannot_tell(adam_rows.LARGE, 0.0, _ABSENT, _MORE))
            else:
                rows.append(adam_rows.large_row(self.setting, whole.best[0], self.steps, self.direction, whole.best[1]))
        return [*rows, *names, adam_rows.presence_row(self.setting, whole.taken, self.steps), *self._frozen_rows(whole)]


_ABSENT, _MORE = "the canary was in no batch that was trained", "more models or a larger sample rate"
