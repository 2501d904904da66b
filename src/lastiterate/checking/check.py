"""``lastiterate.check``: compare training code with its declared run, by a few dozen short trainings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np

from lastiterate.checking import adam_rows, clipping_rows, noise_rows, participation_rows, seed_rows
from lastiterate.checking.allowances import Allowances
from lastiterate.checking.check_result import CheckResult, Row, cannot_tell, judged, not_checked
from lastiterate.checking.clipping_rows import NORM, NORMALISATION, Effects, effects_over_seeds, huge_canary, is_shared
from lastiterate.checking.declared import Declared
from lastiterate.checking.participation_rows import Counts
from lastiterate.checking.trainings import FEW_SEEDS, LEAST_MODELS, MOST_MODELS, NotFinite, Setting, Trainings
from lastiterate.common.search import first_integer
from lastiterate.common.trees import ForeignTree
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import function, instance, integer, number, one_of
from lastiterate.optimizer import is_adam, is_sgd
from lastiterate.run import DPSGD, require_run

MODELS, ERROR = 32, 1e-3
MOST_STEPS = 10**6  # each step has a weight of its own
ROWS = 16  # rows with a random error, each with an equal share (union bound); all tensors together have one share
_SHORT = 3  # steps of short trainings, which show momentum and repeated noise
SHARED, LENGTH = "shared randomness", "number of steps"
_NO_STEPS = (
    "The trainer takes no number of steps. With train(seed, canary, steps), these are checked, too: the law of the "
    "noise, noise that is used again, parameters without noise, the size of steps, momentum, and the last step's noise."
)
_ABSENT, _MORE = "the canary was in no batch", "more models or a larger sample rate"
_PLACE = "the canary's place in both worlds"
Initial: TypeAlias = Callable[[int], ForeignTree]


def check(
    run: DPSGD,
    train: Callable[..., ForeignTree],
    models: int = MODELS,
    canary: Literal["gradient", "example"] = "gradient",
    seed: int = 0,
    error: float = ERROR,
    *,
    batch_size: float | None = None,
    initial: Initial | None = None,
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
    trainings = Trainings(declared, train, integer("seed", seed, 0), told or (lambda: None))
    one_of("canary", canary, ("gradient", "example"))
    count = integer("models", models, LEAST_MODELS, MOST_MODELS)
    level = number("error", error, 0.0, 0.5, open_low=True)
    expected = None if batch_size is None else number("batch_size", batch_size, 0.0, open_low=True)
    if initial is not None:
        function("initial", initial, "a function of a seed that returns parameters, or None")
    if told is not None:
        function("told", told, "a function without arguments, or None")
    allowed = instance("allowances", allowances or Allowances(), Allowances, "an Allowances or None")
    setting = Setting(declared, trainings, level / ROWS, allowed, expected, ())
    found = _Check(setting, count, canary == "gradient", initial)
    rows = found.rows()
    short = sum(times for steps, times in trainings.counts.items() if steps < max(run.steps - 2, 1))
    if run.release_count > 1:
        found.notes.append(f"Only the last of the {run.release_count:,} released iterates is checked.")
    if run.group_size > 1 or run.neighbours == "replace":
        found.notes.append("group_size and neighbours are not checked: one canary is present or absent.")
    return CheckResult(run, tuple(rows), trainings.counts.total() - short, level, tuple(found.notes), short)


class _Check:
    """One check. It trains models, and collects rows and notes.

    ``plain`` full-length models have no canary, ``pairs`` have one, and one model is trained twice. ``last`` seeds are
    also trained for one step less, and with momentum for two steps less. One-step models are extra: ``singles`` have
    no canary, and ``short_pairs`` are trained with and without it.
    """

    def __init__(self, setting: Setting, models: int, with_gradients: bool, initial: Initial | None) -> None:
        self.trainings, self.declared, self.initial = setting.trainings, setting.declared, initial
        self.setting, self.with_gradients, self.notes = setting, with_gradients, list[str]()
        run, sgd, self.steps = self.declared.run, self.declared.run.optimizer, self.declared.run.steps
        can_stop = run.weights is None or np.ndim(run.weights) == 0  # otherwise weights of shorter runs are unknown
        self.has_steps = setting.trainings.with_steps and (can_stop or run.steps == 1)
        self.one_step = self.has_steps or run.steps == 1
        self.earlier = 2 if is_sgd(sgd) and sgd.momentum else 1
        is_simple = sgd is None or (is_sgd(sgd) and sgd.averaging is None and not sgd.nesterov)
        is_long = self.has_steps and is_simple and self.steps > self.earlier
        self.last = (4 if models >= FEW_SEEDS else 2) if is_long else 0
        left, self.singles, self.short_pairs = models - self._models_for(0), 0, 0
        self.pairs = max(1, left // 2)
        self.plain = left - self.pairs
        self.models = self.trainings.models(self.plain, self.steps)
        self.start: FloatArray | None = None

    def _models_for(self, pairs: int) -> int:
        """Return the total number of models for this number of pairs."""
        shapes = clipping_rows.SHAPES if self.with_gradients and not self.has_steps else 0
        return 2 * pairs + 1 + shapes + self.last * self.earlier

    def rows(self) -> list[Row]:
        """Return all rows. If parameters are not finite with a canary, the rows after that are missing."""
        trainings, rows = self.trainings, list[Row]()
        equal = seed_rows.equal_row(self.setting, self.models, trainings.again(0, self.steps))
        seeds, self.repeats = [equal, seed_rows.different_row(self.setting, self.models)], equal.status == "ok"
        if self.one_step and self.steps > 1 and np.array_equal(trainings.models(1, 1)[0], self.models[0]):
            why = f"1 and {self.steps} steps give the same model; check that the trainer stops after `steps` steps"
            return [Row(LENGTH, None, None, None, None, None, "fault", why), *seeds]
        try:
            frozen = self._find_tensors()
            self._plan_one_step()
            seeds += self._find_starts()
            for row in self._by_adam() if is_adam(self.declared.run.optimizer) else self._by_sgd():
                rows.append(row)
            rows += frozen
        except NotFinite:
            rows.append(clipping_rows.not_finite_row())
        rows.sort(key=lambda row: row.name != SHARED)  # what limits the other rows comes first
        return [*rows, *([trainings.record] if trainings.record else []), *seeds]

    def _find_tensors(self) -> list[Row]:
        """Find the tensors that differ between models, or that a canary moves. Return rows of the others."""
        like, differ = self.trainings.like, np.ptp(self.models, axis=0) > 0.0
        trained = tensors = tuple(i for i, where in enumerate(like.slices) if where.stop > where.start)
        still = [i for i in tensors if not differ[like.slices[i]].any()]
        self._aim_at(tensors)
        if still and self.with_gradients:
            steps = 1 if self.has_steps else self.steps
            effect = self.trainings.effect(0, huge_canary(self.setting), steps, "with a canary")
            still = [i for i in still if not effect[like.slices[i]].any()]
        if 0 < len(still) < len(tensors):
            trained = tuple(i for i in tensors if i not in still)
            self._aim_at(trained)
        # The tensors that have their own rows: all of them, unless there is only one.
        self.each = (None, *(trained if len(like.names) > 1 else ()))
        why = "the tensor is not trained: it never changes, not even with a canary"
        lost = f"{why}, although it requires gradients; check whether the optimizer has it"
        rows = [(i, not_checked(noise_rows.NOISE, why, like.names[i])) for i in tensors if i not in trained]
        return [row.now("fault", lost) if like.to_train[i] else row for i, row in rows]

    def _aim_at(self, tensors: tuple[int, ...]) -> None:
        g = clipping_rows.spread(self.trainings.like, tensors, self.trainings.seed)
        self.setting = replace(self.setting, tensors=tensors, direction=g if self.with_gradients else np.zeros(0))

    def _find_starts(self) -> list[Row]:
        """Find initial values, and return the rows on them."""
        rows, count = list[Row](), max(self.short_pairs, self.singles, self.plain)
        starts = seed_rows.trained_starts(self.trainings, count) if self.has_steps else None
        stated = seed_rows.stated_starts(self.initial, self.trainings, count) if self.initial else None
        if stated is not None:
            rows.append(seed_rows.initial_row(stated))
        if self.has_steps:
            rows.append(seed_rows.no_steps_row(self.setting, starts, stated))
        self.start = start = starts if stated is None else stated
        self.setting = replace(self.setting, seeded=start is not None and bool(np.any(start[0] != start[1])))
        return rows

    def _plan_one_step(self) -> None:
        """Set the number of one-step models: for the noise, to see the canary, and to count its batches."""
        setting, allowed, rate = self.setting, self.setting.allowances, float(self.declared.rates[0])
        most, sizes = allowed.most_seeds, [self.trainings.like.slices[i] for i in self.setting.tensors]
        if not self.one_step:
            self.notes.append(_NO_STEPS)
        if not self.has_steps:
            self.short_pairs = self.singles = self.plain if self.one_step else 0
            return
        # Half of the models test the law in the quarter of parameters that vary least.
        quarter, least = max(len(setting.columns) // 4, 1), min(where.stop - where.start for where in sizes)
        # Degrees of freedom that find a tensor without noise by one of three tests, if sampling adds little variance.
        test = noise_rows.Lower("", 1.0 + allowed.sampling, 1, setting.error / len(sizes) / 3.0)
        freedom = first_integer(lambda n: replace(test, freedom=n).smallest(allowed.power, 1.0) > 0.0, 1, 10**6)
        needed = FEW_SEEDS, self.plain, 2 * (noise_rows.ENOUGH / quarter + 2), freedom / least + 1
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
        return ones, ones if ones and self.steps == 1 else effects_over_seeds(self.setting, self.pairs, self.steps)

    def _by_sgd(self) -> Iterator[Row]:
        """Yield the rows of noise, clipping and participation with SGD."""
        effects = self._effects()
        if self.one_step:
            yield from self._one_step_noise(effects[0])
        if is_shared(effects[0] or effects[1]):
            yield from self._by_effects(*effects)
            return
        if self.with_gradients and self.repeats:  # canaries are compared with a tiny one
            self.trainings.reference = clipping_rows.TINY**2 * self.declared.run.clip_norm * self.setting.direction
            tiny = self._effects()
            if is_shared(tiny[0] or tiny[1]):
                first = cannot_tell(NORMALISATION, 0.0, participation_rows.TINY_INSTEAD, _PLACE)
                yield from (first if row.name == NORMALISATION else row for row in self._by_effects(*tiny))
                return
            self.trainings.reference = None
        yield cannot_tell(SHARED, None, participation_rows.UNSHARED, _PLACE)
        if self.steps > 1:
            yield from self._long_noise(None)
        if self.with_gradients:
            seen = effects[0] or effects[1]
            models = self._noise_models(min(self.singles or self.plain, FEW_SEEDS), seen.steps)
            variance = float(models[:, self.setting.columns].var(axis=0, ddof=1).mean())
            yield from participation_rows.unshared_rows(self.setting, seen.along, seen.steps, variance, NORM)

    def _by_effects(self, ones: Effects | None, whole: Effects) -> Iterator[Row]:
        """Yield the rows of effects of canaries, with shared randomness."""
        seen = ones or whole
        if not self.with_gradients:
            yield from self._long_noise(None) if ones is None else ()
            yield from self._example_rows(seen, whole)
            return
        absent = cannot_tell(NORM, self.declared.run.clip_norm, _ABSENT, _MORE)
        rows = clipping_rows.clipping_rows(seen) if seen.vectors else [absent]
        yield from rows
        # Batches with the canary are effects divided by the norm to which it was really clipped.
        clip = self.declared.run.clip_norm
        norms = (
            next((row.measured for row in rows if row.name == NORM and not row.tensor and row.measured), clip) / clip
        )
        totals, hits = whole.along / norms / float(np.mean(self.declared.weights)), np.zeros(0)
        if ones is not None and self.steps > 1:
            hits = np.round(ones.along / norms / float(self.declared.prefix(1).weights[0]))
        counts = Counts(self.setting, totals, hits)
        yield participation_rows.rate_row(counts, self._models_for)
        yield self._spread_row(counts, whole)
        if ones is not None:
            yield participation_rows.copies_row(self.setting, hits if self.steps > 1 else totals)
            few = min(self.short_pairs, self.trainings.most_kept)
            yield participation_rows.keys_row(self.setting, self._noise_models(few, 1), ones.taken[:few])
        if self.steps > 1:
            yield from self._long_noise(counts)

    def _spread_row(self, counts: Counts, whole: Effects) -> Row:
        """Return the row that tells independent batches from batches with each example once per epoch."""
        setting, length, declared, name = self.setting, self.declared.epoch, self.declared, participation_rows.SPREAD
        row, can_differ = participation_rows.spread_row(counts), declared.is_once or declared.is_independent
        is_known = length == self.steps and row.status != "not checked"
        if is_known or not self.has_steps or not can_differ or length > self.steps:
            return row
        seeds = participation_rows.trials_to_tell(setting, *participation_rows.one_epoch(setting))
        if seeds > MOST_MODELS:
            return not_checked(name, "an example is in a batch of nearly every epoch")
        if length == self.steps > setting.allowances.short and seeds > self.pairs:
            why = "too few models of one epoch to detect shuffled batches"
            return cannot_tell(name, None, why, f"{self._models_for(seeds)} models")
        found = whole
        if length < self.steps or seeds > self.pairs:
            found = effects_over_seeds(setting, max(seeds, FEW_SEEDS), length)
        row = participation_rows.epoch_row(setting, found.taken)
        # Curvature may reduce an effect, but hardly by more than the stated share.
        least = setting.allowances.curvature * float(np.abs(declared.prefix(length).weights).min())
        is_hidden = least * declared.run.clip_norm <= setting.allowances.rounding * setting.trainings.floor(length)
        if is_hidden and not (row.status == "fault" and found.taken.all()):  # rounding hides canaries, but makes none
            return not_checked(name, "rounding hides the canary")
        return row

    def _one_step_noise(self, ones: Effects | None) -> Iterator[Row]:
        """Yield the rows of the noise of one step, and of the growth of the noise in three steps."""
        setting, variance = self.setting, self.declared.prefix(1).variance
        models = self._noise_models(max(self.singles, min(self.short_pairs, self.trainings.most_kept)), 1)
        rows = [noise_rows.noise_row(setting, models, variance, i) for i in self.each]
        yield from rows
        yield noise_rows.excess_row(setting, models, 1)
        if rows[0].status != "fault":
            tests = [noise_rows.without_row, noise_rows.law_row, noise_rows.distinct_row, noise_rows.again_row]
            yield from (row(setting, models, variance) for row in tests)
        if self.steps > 1 and self.has_steps:
            few, some = min(_SHORT, self.steps), int(np.ceil(noise_rows.ENOUGH / len(setting.columns)))
            several = self._noise_models(min(4 * FEW_SEEDS, max(FEW_SEEDS // 2, some)), few)
            yield noise_rows.several_row(setting, models, several, few, self._left(ones))
            if last := self.last:
                before = [self.trainings.models(last, self.steps - n - 1) for n in range(self.earlier)]
                yield noise_rows.last_row(setting, self.models[:last], *before)

    def _left(self, ones: Effects | None) -> float:
        """Return the share of the effect of the first step that curvature leaves in the second step."""
        sgd, g = self.declared.run.optimizer, self.setting.direction
        if is_sgd(sgd) and (sgd.momentum or sgd.averaging is not None):  # curvature looks like another momentum
            return 1.0
        if ones is None or not ones.vectors or not self.with_gradients or not is_shared(ones):
            return 0.0
        second = self.trainings.effect(ones.best[0], huge_canary(self.setting), 2, "with a canary, two steps")
        once, again = self.declared.prefix(2).weights / self.declared.prefix(1).weights[0]
        ratio = float(second @ g) / float(ones.best[1] @ g) / once
        if ratio > 1.0 + self.setting.allowances.exact:  # the canary is also in the second batch
            ratio -= again / once
        return float(np.clip(ratio, 0.0, 1.0))

    def _long_noise(self, counts: Counts | None) -> list[Row]:
        """Return the rows of the noise of all steps, and also of each tensor if there are no one-step models."""
        left, models = 0.0, self._noise_models(self.plain, self.steps)
        if counts is not None and counts.totals.sum() > 0.0 and self.declared.run.noise_filter is None:
            left = min(1.0, float(counts.totals.sum()) / max(counts.most, 1e-300))
        if self.one_step:
            return [noise_rows.released_row(self.setting, models, left, noise_rows.RELEASED)]
        rows = [noise_rows.released_row(self.setting, models, left, noise_rows.NOISE, i) for i in self.each]
        return [rows[0], noise_rows.excess_row(self.setting, models, self.steps), *rows[1:]]

    def _example_rows(self, seen: Effects, whole: Effects) -> list[Row]:
        """Return the rows for an example that the trainer adds. Its gradient is not known."""
        allowed, clip = self.setting.allowances, self.declared.run.clip_norm
        if not seen.vectors:
            return [cannot_tell(NORM, clip, _ABSENT, _MORE), not_checked(participation_rows.RATE, _ABSENT)]
        most = clip * float(seen.along.max()) / float(np.abs(self.declared.prefix(seen.steps).weights).sum())
        limit = clip * (1.0 + allowed.exact + (0.0 if seen.steps == 1 else allowed.curvature))
        why = "the example has a larger effect than a clipped gradient; check where gradients are clipped"
        row = judged(NORM, (most, clip, 0.0, most), most > limit, why, f"norm x {limit / max(most, 1e-3 * clip):.2g}")
        others = [not_checked(each, "the gradient of the trainer's example is not known") for each in clipping_rows.ALL]
        counted = seen if seen.steps == 1 else whole
        presence = participation_rows.presence_row(self.setting, counted.taken, counted.steps)
        return [row, *(other for other in others if other.name != NORM), presence]

    def _by_adam(self) -> Iterator[Row]:
        """Yield the rows of a training with Adam."""
        self.notes.append(adam_rows.NOTE)
        ones, whole = self._effects()
        shares = is_shared(whole)
        if not shares:
            yield cannot_tell(SHARED, None, participation_rows.UNSHARED, _PLACE)
        names = [not_checked(name, "Adam divides by the size of its gradients") for name in clipping_rows.ALL]
        if shares and ones is not None:
            models = self.trainings.models(min(self.singles, FEW_SEEDS), 1)
            start = None if self.start is None else self.start[: len(models) if self.setting.seeded else 1]
            names[0] = adam_rows.step_row(self.setting, models, start)
        yield from names
        if not shares:
            return
        yield adam_rows.signs_row(self.setting, ones)
        if self.with_gradients:
            absent = cannot_tell(adam_rows.LARGE, 0.0, _ABSENT, _MORE)
            yield adam_rows.large_row(self.setting, whole) if whole.vectors else absent
        yield participation_rows.presence_row(self.setting, whole.taken, self.steps)
