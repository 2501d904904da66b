"""``lastiterate.check``: compare training code with its declared run, by a few dozen short trainings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np

from lastiterate.checking import adam_rows, noise_rows, participation_rows, seed_rows
from lastiterate.checking.allowances import Allowances
from lastiterate.checking.check_result import CheckResult, Row, cannot_tell, judged, not_checked
from lastiterate.checking.clipping_rows import ALL as CLIPPING
from lastiterate.checking.clipping_rows import NORM, NORMALISATION, SHAPES, STEPS, clipping_rows, not_finite_row
from lastiterate.checking.declared import Declared
from lastiterate.checking.effects import TINY, Effects, effects_over_seeds, huge, huge_canary, is_shared, spread
from lastiterate.checking.participation_rows import Counts
from lastiterate.checking.trainings import FEW_SEEDS, Setting, Trainings, takes_steps
from lastiterate.common.trees import ForeignTree
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import function, instance, integer, number, one_of
from lastiterate.optimizer import is_adam, is_sgd
from lastiterate.run import DPSGD, require_run

MODELS, ERROR = 32, 1e-3
LEAST_MODELS, MOST_MODELS = 8, 1000
MOST_STEPS = 10**6  # each step has a weight of its own
ROWS = 16  # rows with a random error, each with an equal share (union bound); all tensors together have one share
_SHORT = 3  # steps of short trainings, which show momentum and repeated noise
SHARED, LENGTH = "shared randomness", "number of steps"
_NO_STEPS = (
    "The trainer takes no number of steps. A trainer train(seed, canary, steps) is also checked after one step: the "
    "law of the noise, distinct values, noise that is used again, parameters without noise, the size of steps, "
    "momentum, and the noise of the last step."
)
_ABSENT, _MORE = "the canary was in no batch", "more models or a larger sample rate"
_PLACE = "the canary's place in both worlds"


def check(
    run: DPSGD,
    train: Callable[..., ForeignTree],
    models: int = MODELS,
    canary: Literal["gradient", "example"] = "gradient",
    seed: int = 0,
    error: float = ERROR,
    *,
    batch_size: float | None = None,
    initial: Callable[[int], ForeignTree] | None = None,
    told: Callable[[], None] | None = None,
    allowances: Allowances | None = None,
) -> CheckResult:
    """Check training code against its declared run.

    Only the last iterate is checked. A canary is one example, even if the run protects groups.

    Args:
        run: the declared run, of at most a million steps. The learning rate of its optimizer is for the sum of
            gradients. Without an optimizer or weights it is 1.
        train: ``train(seed, canary)`` or, better, ``train(seed, canary, steps)``. It returns parameters: arrays, a
            dict, list or tuple of arrays, a PyTorch module or a state dict. ``canary`` is False in the world without
            the canary. Training stops after ``steps`` steps of the run.
        models: number of models that are trained with all steps, in [8, 1000]. Short trainings are extra. If worlds
            with and without a canary do not share randomness, each canary needs one more model.
        canary: ``"gradient"``: the trainer is given a gradient in the form of the parameters. It adds the gradient to
            the data as the unclipped gradient of one more example, which is drawn into batches like the others.
            ``"example"``: the trainer is given True and adds an example of its own. Fewer rows are then checked.
        seed: seed of the trainer's seeds and of the canaries.
        error: probability that the check of a correct training reports a fault.
        batch_size: expected number of examples in a batch. It separates too much noise from the effect of sampling.
        initial: ``initial(seed)`` returns the parameters before training, if they depend on the seed.
        told: a function that is called after each full-length training, for example by a progress bar.
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
    trainings = Trainings(declared, train, with_steps, integer("seed", seed, 0), told or (lambda: None))
    setting = Setting(declared, trainings, level / ROWS, allowed, expected, ())
    found = _Check(setting, count, canary == "gradient", initial)
    rows = found.rows()
    short = sum(times for steps, times in trainings.counts.items() if steps < max(run.steps - 2, 1))
    notes = (*found.notes, *_not_looked_at(run))
    return CheckResult(run, tuple(rows), trainings.counts.total() - short, level, notes, short)


def _not_looked_at(run: DPSGD) -> list[str]:
    """Return sentences on the parts of a run that a check of single models does not see."""
    notes = []
    if run.release_count > 1:
        notes.append(f"Only the last of the {run.release_count:,} released iterates is checked.")
    if run.group_size > 1 or run.neighbours == "replace":
        notes.append(
            "group_size and neighbours are not checked: a canary is a single example that is present or absent."
        )
    return notes


class _Check:
    """One check. It trains models, and collects rows and notes.

    ``plain`` full-length models have no canary, ``pairs`` have one, and one model is trained twice. ``last`` seeds are
    also trained for one step less, and with momentum for two steps less. Without one-step models, ``shapes`` more
    models have canaries of other norms. One-step models are extra: ``singles`` have no canary, and ``short_pairs`` are
    trained with and without it.
    """

    def __init__(
        self, setting: Setting, models: int, with_gradients: bool, initial: Callable[[int], ForeignTree] | None
    ) -> None:
        self.trainings, self.declared, self.initial = setting.trainings, setting.declared, initial
        self.with_gradients, self.notes = with_gradients, list[str]()
        run, sgd = self.declared.run, self.declared.run.optimizer
        self.steps = run.steps
        self.has_steps = setting.trainings.with_steps and (self.declared.can_stop or run.steps == 1)
        self.one_step = self.has_steps or run.steps == 1
        self.earlier = 2 if is_sgd(sgd) and sgd.momentum else 1
        is_simple = sgd is None or (is_sgd(sgd) and sgd.averaging is None and not sgd.nesterov)
        self.last = (4 if models >= 16 else 2) if self.has_steps and is_simple and run.steps > self.earlier else 0
        self.shapes = SHAPES if self.has_steps else min(SHAPES, models - 5)
        left = models - self._models_for(0)
        self.pairs = max(1, left // 2)
        self.plain, self.singles, self.short_pairs = left - self.pairs, 0, 0
        self.models = self.trainings.models(self.plain, self.steps)
        self.start: FloatArray | None = None
        tensors = self._trained_tensors()
        direction = spread(self.trainings.like, tensors, self.trainings.seed) if with_gradients else np.zeros(0)
        self.setting = replace(setting, tensors=tuple(tensors), direction=direction)

    @property
    def _tensors(self) -> tuple[int, ...]:
        """The tensors that have their own rows: all of them, unless there is only one."""
        return self.setting.tensors if len(self.trainings.like.names) > 1 else ()

    def _models_for(self, pairs: int) -> int:
        """Return the total number of models for this number of pairs."""
        shapes = self.shapes if self.with_gradients and not self.has_steps else 0
        return 2 * pairs + 1 + shapes + self.last * self.earlier

    def _trained_tensors(self) -> list[int]:
        """Return the tensors that differ between models, or that a canary moves."""
        like, differ = self.trainings.like, np.ptp(self.models, axis=0) > 0.0
        tensors = [i for i, where in enumerate(like.slices) if where.stop > where.start]
        still = [i for i in tensors if not differ[like.slices[i]].any()]
        if still and self.with_gradients:
            canary = huge(spread(like, tensors, self.trainings.seed), self.declared.run.clip_norm)
            effect = self.trainings.effect(0, canary, 1 if self.has_steps else self.steps, "with a canary")
            still = [i for i in still if effect is not None and not effect[like.slices[i]].any()]
        why = "the tensor is not trained: it never changes, not even with a canary"
        self.frozen = [not_checked(noise_rows.NOISE, why, like.names[i]) for i in still if len(still) < len(tensors)]
        lost = f"{why}, although it requires gradients; check whether the optimizer has it"
        to_train = {name for name, wanted in zip(like.names, like.to_train, strict=True) if wanted}
        self.frozen = [row.fault(lost) if row.tensor in to_train else row for row in self.frozen]
        return [i for i in tensors if i not in still] or tensors

    def rows(self) -> list[Row]:
        """Return all rows."""
        trainings = self.trainings
        seeds = [
            seed_rows.equal_row(self.setting, self.models, trainings.again(0, self.steps)),
            seed_rows.different_row(self.setting, self.models),
        ]
        self.repeats = seeds[0].status == "ok"
        if self.one_step and self.steps > 1 and np.array_equal(trainings.without(0, 1), self.models[0]):
            why = f"1 and {self.steps} steps give the same model; check whether the trainer stops after `steps` steps"
            return [Row(LENGTH, None, None, None, None, None, "fault", why), *seeds]
        if self.one_step:
            self._plan_one_step()
        else:
            self.notes.append(_NO_STEPS)
        count = max(self.short_pairs, self.singles, self.plain)
        starts = seed_rows.trained_starts(trainings, count) if self.has_steps else None
        stated = seed_rows.stated_starts(self.initial, trainings, count) if self.initial else None
        if stated is not None:
            seeds.append(seed_rows.initial_row(stated))
        if self.has_steps:
            seeds.append(seed_rows.no_steps_row(self.setting, starts, stated))
        self.start = start = starts if stated is None else stated
        self.setting = replace(self.setting, seeded=start is not None and bool(np.any(start[0] != start[1])))
        rows = self._by_adam() if is_adam(self.declared.run.optimizer) else self._by_sgd()
        return [*rows, *([trainings.record] if trainings.record else []), *seeds]

    def _plan_one_step(self) -> None:
        """Set the number of one-step models: for the noise, to see the canary, and to count its batches."""
        setting, allowed, rate = self.setting, self.setting.allowances, float(self.declared.rates[0])
        most, sizes = allowed.most_seeds, [self.trainings.like.slices[i] for i in self.setting.tensors]
        if not self.has_steps:
            self.short_pairs = self.singles = self.plain
            return
        # Half of the models test the law in the quarter of parameters that vary least.
        quarter, least = max(len(setting.columns) // 4, 1), min(where.stop - where.start for where in sizes)
        needed = [FEW_SEEDS, self.plain, 2 * (noise_rows.ENOUGH / quarter + 2)]
        needed.append(noise_rows.freedom_to_see(setting) / least + 1)
        self.singles = int(min(np.ceil(max(needed)), most, self.trainings.most_kept))
        wanted = [float(FEW_SEEDS)]
        if 0.0 < rate < 1.0:
            wanted.append(min(most, np.log(allowed.unseen) / np.log1p(-rate)))
            weights, counted = self.declared.weights, participation_rows.trials_for_rate(setting, rate)
            if self.steps > 1 and allowed.rate * rate <= 1.0:  # else curvature may hide too few batches of long runs
                counted -= int(self.pairs * float(weights.sum() ** 2 / np.sum(weights**2)))
            copies = participation_rows.seeds_for_copies(setting, rate)
            # Numbers that would not be enough are not trained.
            wanted += [n for n, top in ((counted, most), (copies, allowed.most_copies)) if n <= top]
        self.short_pairs = int(np.ceil(max(wanted)))

    def _noise_models(self, count: int, steps: int) -> FloatArray:
        """Return models without a canary. Initial values that depend on the seed are subtracted."""
        models = self.trainings.models(count, steps)
        if not self.setting.seeded or self.start is None or len(self.start) < count:
            return models
        return models - self.declared.prefix(steps).memory * self.start[:count]

    def _effects(self) -> tuple[Effects | None, Effects]:
        """Train with the huge canary, or with the trainer's example, for one step and for all steps."""
        ones = effects_over_seeds(self.setting, self.short_pairs, 1) if self.short_pairs else None
        is_one = ones is not None and self.steps == 1
        return ones, ones if is_one and ones else effects_over_seeds(self.setting, self.pairs, self.steps)

    def _shares(self, effects: Effects) -> bool:
        models = self.trainings.models(min(self.plain, len(effects.taken)), effects.steps)
        return is_shared(effects, models, None if self.start is None else self.start[0])

    def _by_sgd(self) -> list[Row]:
        """Return the rows of noise, clipping and participation with SGD."""
        ones, whole = self._effects()
        rows = self._one_step_noise(ones) if ones is not None else []
        seen = ones or whole
        if seen.is_broken or whole.is_broken:
            return [*rows, *([] if ones else self._long_noise(None)), not_finite_row()]
        if self._shares(seen):
            return [*rows, *self._by_effects(ones, whole)]
        if self.with_gradients and self.repeats:  # canaries are compared with a tiny one
            self.trainings.reference = TINY**2 * self.declared.run.clip_norm * self.setting.direction
            ones_again, whole_again = self._effects()
            seen = ones_again or whole_again
            if not (seen.is_broken or whole_again.is_broken) and self._shares(seen):
                first = cannot_tell(NORMALISATION, 0.0, participation_rows.TINY_INSTEAD, _PLACE)
                found = self._by_effects(ones_again, whole_again)
                return [*rows, *(first if row.name == NORMALISATION else row for row in found)]
            self.trainings.reference = None
        first = cannot_tell(SHARED, None, participation_rows.UNSHARED, _PLACE)
        rows = [first, *rows, *(self._long_noise(None) if self.steps > 1 else [])]
        if not self.with_gradients:
            return rows
        seen = ones or whole
        models = self._noise_models(min(self.singles or self.plain, FEW_SEEDS), seen.steps)
        variance = float(models[:, self.setting.columns].var(axis=0, ddof=1).mean())
        return [*rows, *participation_rows.unshared_rows(self.setting, seen.along, seen.steps, variance, NORM)]

    def _by_effects(self, ones: Effects | None, whole: Effects) -> list[Row]:
        """Return the rows of effects of canaries, with shared randomness."""
        seen, rows = ones or whole, list[Row]()
        if not self.with_gradients:
            return [*([] if ones else self._long_noise(None)), *self._example_rows(seen, whole)]
        if seen.vectors:
            rows += clipping_rows(seen, self.shapes)
        else:
            rows.append(cannot_tell(NORM, self.declared.run.clip_norm, _ABSENT, _MORE))
        counts = self._counts(ones, whole, rows)
        rows += [participation_rows.rate_row(counts, self._models_for), self._spread_row(counts, whole)]
        if ones is not None:
            rows.append(participation_rows.copies_row(self.setting, counts.hits if self.steps > 1 else counts.totals))
            few = min(self.short_pairs, self.trainings.most_kept)
            rows.append(participation_rows.keys_row(self.setting, self._noise_models(few, 1), ones.taken[:few]))
        if self.steps > 1:
            rows += self._long_noise(counts)
        return [*rows, *self.frozen]

    def _counts(self, ones: Effects | None, whole: Effects, rows: list[Row]) -> Counts:
        """Return the canary's batches, by effects over the norm to which it was really clipped."""
        clipped = next((row.measured for row in rows if row.name == NORM and row.tensor is None and row.measured), None)
        norms = (clipped or self.declared.run.clip_norm) / self.declared.run.clip_norm
        totals, hits = whole.along / norms / float(np.mean(self.declared.weights)), np.zeros(0)
        if ones is not None and self.steps > 1:
            hits = np.round(ones.along / norms / float(self.declared.prefix(1).weights[0]))
        return Counts(self.setting, totals, self.steps, hits)

    def _spread_row(self, counts: Counts, whole: Effects) -> Row:
        """Return the row that tells independent batches from batches with each example once per epoch."""
        setting, length, declared = self.setting, self.declared.epoch, self.declared
        row, apart = participation_rows.spread_row(counts), declared.is_certain or declared.run.min_separation > 1
        if not self.has_steps or apart or length > self.steps or (length == self.steps and row.status != "not checked"):
            return row
        seeds = participation_rows.epoch_seeds(setting)
        if seeds > MOST_MODELS:
            return not_checked(participation_rows.SPREAD, "an example is in a batch of nearly every epoch")
        if length == self.steps > setting.allowances.short and seeds > self.pairs:
            why = "too few models of one epoch to detect shuffled batches"
            return cannot_tell(participation_rows.SPREAD, None, why, f"{self._models_for(seeds)} models")
        found = whole
        if length < self.steps or seeds > self.pairs:
            found = effects_over_seeds(setting, max(seeds, FEW_SEEDS), length)
        if found.is_broken:
            return not_finite_row()
        # Curvature may reduce an effect, but hardly by more than the stated share.
        effect = setting.allowances.curvature * float(np.abs(declared.prefix(length).weights).min())
        row = participation_rows.epoch_row(setting, found.taken, length)
        is_hidden = effect * declared.run.clip_norm <= setting.allowances.rounding * setting.trainings.floor(length)
        if is_hidden and not (row.status == "fault" and found.taken.all()):  # rounding hides canaries, but makes none
            return not_checked(participation_rows.SPREAD, "rounding hides the canary")
        return row

    def _one_step_noise(self, ones: Effects) -> list[Row]:
        """Return the rows of the noise of one step, and of the growth of the noise in three steps."""
        setting, variance = self.setting, self.declared.prefix(1).variance
        models = self._noise_models(max(self.singles, min(self.short_pairs, self.trainings.most_kept)), 1)
        rows = [noise_rows.noise_row(setting, models, variance, i) for i in (None, *self._tensors)]
        rows.append(noise_rows.excess_row(setting, models, 1))
        if rows[0].status != "fault":
            tests = [noise_rows.without_row, noise_rows.law_row, noise_rows.distinct_row, noise_rows.again_row]
            rows += [row(setting, models, variance) for row in tests]
        if self.steps > 1 and self.has_steps:
            few, some = min(_SHORT, self.steps), int(np.ceil(noise_rows.ENOUGH / len(setting.columns)))
            several = self._noise_models(min(4 * FEW_SEEDS, max(FEW_SEEDS // 2, some)), few)
            rows.append(noise_rows.several_row(setting, models, several, few, self._left(ones)))
            if last := self.last:
                before = [self.trainings.models(last, self.steps - n - 1) for n in range(self.earlier)]
                rows.append(noise_rows.last_row(setting, self.models[:last], *before))
        return rows

    def _left(self, ones: Effects) -> float:
        """Return the share of a canary's effect in the first step that is left after the second step.

        Curvature removes the rest. With momentum, curvature looks like another momentum, so only the allowance counts.
        """
        sgd = self.declared.run.optimizer
        if is_sgd(sgd) and (sgd.momentum or sgd.averaging is not None):
            return 1.0
        if not ones.vectors or not self.with_gradients or not self._shares(ones):
            return 0.0
        (seed, first), direction = ones.best, self.setting.direction
        second = self.trainings.effect(seed, huge_canary(self.setting), 2, "with a canary, two steps")
        if second is None:
            return 0.0
        weights = self.declared.prefix(2).weights
        ratio = float(second @ direction) / float(first @ direction)
        ratio *= float(self.declared.prefix(1).weights[0] / weights[0])
        again = float(weights[1] / weights[0])  # if the canary is also in the second batch
        return float(np.clip(ratio - again if ratio > 1.0 + self.setting.allowances.exact else ratio, 0.0, 1.0))

    def _long_noise(self, counts: Counts | None) -> list[Row]:
        """Return the rows of the noise of all steps, and also of each tensor if there are no one-step models."""
        left, setting = 0.0, self.setting
        if counts is not None and counts.values.sum() > 0.0 and self.declared.run.noise_filter is None:
            most = counts.values.sum()
            if not counts.is_whole:
                sums, hits = counts.draw(counts.draws)
                most = np.quantile((sums - hits) / counts.share, 1.0 - setting.error)
            left = min(1.0, max(0.0, float(counts.totals.sum()) / max(float(most), 1e-300)))
        models = self._noise_models(self.plain, self.steps)
        if self.one_step:
            return [noise_rows.released_row(setting, models, left, noise_rows.RELEASED)]
        rows = [noise_rows.released_row(setting, models, left, noise_rows.NOISE, i) for i in (None, *self._tensors)]
        return [rows[0], noise_rows.excess_row(setting, models, self.steps), *rows[1:]]

    def _example_rows(self, seen: Effects, whole: Effects) -> list[Row]:
        """Return the rows for an example that the trainer adds. Its gradient is not known."""
        allowed, clip = self.setting.allowances, self.declared.run.clip_norm
        if not seen.vectors:
            return [cannot_tell(NORM, clip, _ABSENT, _MORE), not_checked(participation_rows.RATE, _ABSENT)]
        most = float(seen.size.max()) / float(np.abs(self.declared.prefix(seen.steps).weights).sum())
        limit = clip * (1.0 + allowed.exact + (0.0 if seen.steps == 1 else allowed.curvature))
        why = "the example has a larger effect than a clipped gradient; check where gradients are clipped"
        row = judged(NORM, (most, clip, 0.0, most), most > limit, why, f"norm x {limit / max(most, 1e-3 * clip):.2g}")
        unknown = "the gradient of the trainer's example is not known"
        others = [not_checked(each, unknown) for each in CLIPPING if each != NORM]
        counted = seen if seen.steps == 1 else whole
        return [row, *others, participation_rows.presence_row(self.setting, counted.taken, counted.steps)]

    def _by_adam(self) -> list[Row]:
        """Return the rows of a training with Adam."""
        self.notes.append(adam_rows.NOTE)
        ones, whole = self._effects()
        names = [not_checked(name, "Adam divides by the size of its gradients") for name in CLIPPING]
        if whole.is_broken or (ones is not None and ones.is_broken):
            return [not_finite_row(), *names]
        if not self._shares(whole):
            return [cannot_tell(SHARED, None, participation_rows.UNSHARED, _PLACE), *names]
        rows = [adam_rows.signs_row(self.setting, ones)]
        if ones is not None:
            models = self.trainings.models(min(self.singles, FEW_SEEDS), 1)
            start = self.start if self.start is None or self.setting.seeded else self.start[:1]
            rows.append(adam_rows.step_row(self.setting, models, start if start is None else start[: len(models)]))
            names = [row for row in names if row.name != STEPS]
        if self.with_gradients:
            absent = cannot_tell(adam_rows.LARGE, 0.0, _ABSENT, _MORE)
            rows.append(adam_rows.large_row(self.setting, whole) if whole.vectors else absent)
        presence = participation_rows.presence_row(self.setting, whole.taken, self.steps)
        return [*rows, *names, presence, *self.frozen]
