"""Experiments with a user's own trainer, a function ``(seed, canary) -> score | parameters``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from inspect import signature
from time import monotonic
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, bdtrc, gammainc, gammaincc

from lastiterate.attacks.attack import ExpectedScores, Facts, Unknown, Words, models_to_craft
from lastiterate.auditing.experiments.choose import Given
from lastiterate.auditing.experiments.protocol import Cost, Experiment, Trials
from lastiterate.auditing.identity import Identity, identify
from lastiterate.auditing.stores.audit_record import Crafted, ScoredTrials
from lastiterate.common.errors import TrainerFailed, guarded
from lastiterate.common.progress import TrainingProgress
from lastiterate.common.system import process_peak_bytes
from lastiterate.common.types import BoolArray, FloatArray, IntArray
from lastiterate.common.validation import integer, noise_multipliers, numbers, told
from lastiterate.privacy.mixtures.law import epoch_length
from lastiterate.run import DPSGD

IMPLAUSIBLE = 1e-6  # smallest accepted probability of the batch sizes under the declared run
_BINOMIAL = ("poisson", "balls-in-bins")  # samplings whose batch sizes are binomial
_LARGE_ENOUGH = 5.0  # smallest mean batch size for the chi-square test of the batch sizes


@dataclass(frozen=True, eq=False)
class Trained:
    """A trainer's result, with facts that are compared with the declared run. A mismatch stops the audit.

    Args:
        result: the score, or the parameters that the attack scores.
        steps: number of updates.
        batch_sizes: number of examples in each batch. List empty batches as 0.
        noise_multiplier: noise multiplier that was used, one number or one per step.
        dataset_size: number of examples, including the canary if it is present. If it is not given, batch sizes are
            compared only with each other, and not with the declared sample rate.
    """

    result: object
    steps: int | None = None
    batch_sizes: ArrayLike | None = None
    noise_multiplier: ArrayLike | None = None
    dataset_size: int | None = None

    def check(self, run: DPSGD) -> None:
        """Raise if the reported facts differ from this run."""
        if self.steps is not None:
            _check_steps("steps", integer("Trained.steps", self.steps, 0), run)
        if self.noise_multiplier is not None:
            used = noise_multipliers(self.noise_multiplier, run.steps)
            if not np.allclose(used, run.noise_multiplier, rtol=1e-6, atol=0.0):
                declared = _shown(run.noise_multiplier)
                raise ValueError(
                    f"noise_multiplier must be that of the training, {_shown(used)}, but the run declares {declared}"
                )
        if self.batch_sizes is not None:
            sizes = numbers("Trained.batch_sizes", self.batch_sizes, 0.0)
            _check_steps("batches", sizes.size, run)
            examples = None if self.dataset_size is None else integer("Trained.dataset_size", self.dataset_size)
            _check_sizes(sizes.reshape(-1), run, examples)


def _check_steps(what: str, done: int, run: DPSGD) -> None:
    if done != run.steps:
        raise ValueError(
            f"steps must be those of the training, which made {done} {what}, but the run declares {run.steps}"
        )


def _check_sizes(sizes: FloatArray, run: DPSGD, examples: int | None) -> None:
    rates = np.broadcast_to(np.asarray(run.sample_rate, np.float64), sizes.shape)
    if run.max_batch_size is not None:
        if sizes.max() > run.max_batch_size:
            raise ValueError(
                f"max_batch_size must be that of the training, whose largest batch has {sizes.max():g} examples, but "
                f"the run declares {run.max_batch_size}"
            )
        return
    if run.sampling == "balls-in-bins":  # all of an epoch's batches have all examples; a part of an epoch need not
        whole = run.steps - run.steps % epoch_length(run)
        sizes, rates = sizes[:whole], rates[:whole]
        if not whole:
            return
    if examples is not None:
        _check_total(sizes, rates, run, examples)
    if run.sampling in _BINOMIAL:
        _check_spread(sizes, rates, run)
    elif run.sampling != "shuffled" and np.ndim(run.sample_rate) == 0 and np.ptp(sizes) > 1.0:
        # With shuffled data the last batch of an epoch may be smaller.
        got = f"{sizes.min():g} to {sizes.max():g} examples"
        raise ValueError(
            f"sampling {run.sampling!r} has batches of one size, but the batches of the training have {got}"
        )


def _check_total(sizes: FloatArray, rates: FloatArray, run: DPSGD, examples: int) -> None:
    total, expected = float(sizes.sum()), examples * float(rates.sum())
    rate = float(rates.mean())
    if run.sampling in _BINOMIAL and rate < 1.0:
        # If sample rates vary, or with balls in bins, the sum has less spread than this binomial (Hoeffding 1956), so
        # the test stays valid.
        trials = examples * sizes.size
        at_least = bdtrc(total - 1.0, trials, rate) if total else 1.0
        plausible = 2.0 * min(bdtr(total, trials, rate), at_least) >= IMPLAUSIBLE
    else:
        plausible = abs(total - expected) <= sizes.size  # each batch size is rounded to a whole number
    if not plausible:
        mean = total / sizes.size
        raise ValueError(
            f"sample_rate must be that of the training, whose batches had {mean:.6g} of {examples:,} examples on "
            f"average, a rate of {mean / examples:.4g}, but the run declares {_shown(run.sample_rate)}"
        )


def _check_spread(sizes: FloatArray, rates: FloatArray, run: DPSGD) -> None:
    mean = sizes.sum() * rates / rates.sum()
    # Pearson's statistic: sizes that add up to the data set in every epoch have fewer degrees of freedom.
    in_bins = run.sampling == "balls-in-bins"
    variance = mean if in_bins else mean * (1.0 - rates)
    freedom = sizes.size - (sizes.size // epoch_length(run) if in_bins else 1)
    if freedom < 1 or mean.mean() < _LARGE_ENOUGH or np.any(variance <= 0.0):
        return
    # Chi-square test that allows for rounding: each size may be off by half an example.
    distance, rounding = np.sqrt(np.sum((sizes - mean) ** 2 / variance)), np.sqrt(np.sum(0.25 / variance))
    most, least = 0.5 * (distance + rounding) ** 2, 0.5 * max(distance - rounding, 0.0) ** 2
    half = 0.5 * freedom
    if 2.0 * min(gammainc(half, most), gammaincc(half, least)) < IMPLAUSIBLE:
        how = "less" if most < half else "more"
        got = f"{how}, with {sizes.std():.3g} (from {sizes.min():g} to {sizes.max():g} examples)"
        raise ValueError(
            f"sampling {run.sampling!r} at the declared sample_rate {_shown(rates)} gives batches whose sizes vary "
            f"with a standard deviation of {np.sqrt(variance.mean()):.3g}, but the batches of the training vary {got}"
        )


def _shown(value: ArrayLike) -> str:
    distinct = np.unique(np.asarray(value, np.float64))
    return f"{distinct[0]:g}" if distinct.size == 1 else f"{distinct[0]:g} to {distinct[-1]:g}"


FIRST_REFERENCE = 2**20  # number of the first reference model
SEED_NUMBERING = 2  # version 1 was (seed << 22) + 2 * model + present, which repeated seeds between audits

UserTrainer = Callable[[int, bool], object]


@runtime_checkable
class ParametersAttack(Protocol):
    """An attack on the parameters that a trainer returns, such as ``attacks.Displacement``."""

    def craft(self, run: DPSGD, references: list[object]) -> Facts:
        """Prepare the attack from the parameters of reference models without the canary."""

    def score(self, run: DPSGD, facts: Facts, parameters: object) -> float:
        """Return the score of the parameters; a higher score means that the canary is more likely present."""

    def expected(self, facts: Facts) -> ExpectedScores: ...
    def words(self, facts: Facts) -> Words: ...


@dataclass(frozen=True, eq=False)
class UserTrainings(Experiment):
    """An experiment with a user's trainer. If the trainer returns parameters, an attack scores them."""

    problem: UserTrainer
    attack: ParametersAttack | None

    @classmethod
    def of(cls, trainer: UserTrainer, given: Given) -> UserTrainings:
        integer("models", given.models, 1, FIRST_REFERENCE)
        attack = given.attack
        if attack is not None and (isinstance(attack, type) or not isinstance(attack, ParametersAttack)):
            allowed = "None or lastiterate.attacks.Displacement for a trainer, or have craft, score, expected and words"
            raise ValueError(f"attack must be {allowed}, got {told(attack)}")
        _check_arguments(trainer)
        words = given.data or f"the trainer {getattr(trainer, '__qualname__', type(trainer).__name__)}"
        return cls(given.run, trainer, attack, given.paired(), given.seed, words)

    def identity(self) -> Identity:
        return identify(self.run, self.problem, self.attack, self.design, self.seed, trainer_seeds=SEED_NUMBERING)

    def craft(self, progress: bool | None) -> Crafted:
        attack = self.attack
        if attack is None:
            return Crafted({}, Unknown(), Words("your trainer's own scores", "score"))
        count = models_to_craft(attack)
        trained = [self.train(FIRST_REFERENCE + model, False) for model in range(count)]
        try:
            facts = attack.craft(self.run, trained)
        except (TypeError, ValueError) as error:  # no parameters, or shapes that differ from the canary's
            raise TrainerFailed(error, f"{count} reference models of world 'out'") from error
        return Crafted(facts, attack.expected(facts), attack.words(facts))

    def trials(self, crafted: Crafted, chunk_size: int | None, workers: int | None, sharers: int = 1) -> Trials:
        def chunks(models: IntArray, present: BoolArray, progress: TrainingProgress | None) -> Iterator[ScoredTrials]:
            # Each trial is yielded before the next model is trained, because a trainer may hang or end the process.
            for model, world in zip(models.tolist(), present.tolist(), strict=True):
                began = monotonic()
                score = self.score(crafted.facts, model, world)
                if progress:
                    progress.advanced(1, self.run.steps, finished=True)
                yield ScoredTrials.of([model], [world], [score], seconds=monotonic() - began)

        return Trials(chunk_size or 1, chunks)

    def cost(self) -> Cost:
        references = 0 if self.attack is None else models_to_craft(self.attack)
        total = references + self.design.trials
        began = monotonic()
        self.train(0, False)
        return Cost(
            total, references, total * (monotonic() - began), process_peak_bytes(), ("from the time of one model")
        )

    def train(self, model: int, world: bool) -> object:
        """Train one model and return the trainer's result. Raise if a reported fact differs from the declared run."""
        result = guarded(lambda: self.problem(trainer_seed(self.seed, model, world), world), self.called(model, world))
        if not isinstance(result, Trained):
            return result
        result.check(self.run)
        return result.result

    def score(self, facts: Facts, model: int, world: bool) -> float:
        result = self.train(model, world)
        if self.attack is None and isinstance(result, (list, tuple, np.ndarray)) and np.ndim(result) != 0:
            got = f"(here of shape {np.shape(result)}), such as lastiterate.attacks.Displacement(canary)"
            raise ValueError(f"attack must be given where the trainer returns parameters {got}")
        try:
            return _number(result if self.attack is None else self.attack.score(self.run, facts, result))
        except (TypeError, ValueError) as error:
            raise TrainerFailed(error, self.called(model, world)) from error

    def called(self, model: int, world: bool) -> str:
        number = f"model {model}" if model < FIRST_REFERENCE else f"reference model {model - FIRST_REFERENCE}"
        return f"{number} of world {'in' if world else 'out'!r} (seed {trainer_seed(self.seed, model, world)})"


def trainer_seed(seed: int, model: int, present: bool) -> int:
    """Return a seed in [0, 2^32) for a user's trainer. All models of an audit have different seeds.

    Seeds are a permutation of the numbers below 2^32, by a four-round Feistel network keyed by the audit's seed.
    """
    left, right = divmod(2 * model + present, 2**16)
    for turn in range(4):
        digest = blake2b(f"{seed} {turn} {right}".encode(), digest_size=2).digest()
        left, right = right, left ^ int.from_bytes(digest, "little")
    return left * 2**16 + right


def _check_arguments(trainer: UserTrainer) -> None:
    try:
        how = signature(trainer)
    except (TypeError, ValueError):
        return
    try:
        how.bind(0, True)
    except TypeError as error:
        got = f"got one that takes {how}: {error}"
        raise ValueError(f"problem must be a trainer that takes (seed, canary), {got}") from None


def _number(result: object) -> float:
    try:
        score = float(result)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        other = "or parameters with an attack that scores them, such as lastiterate.attacks.Displacement(canary)"
        raise ValueError(f"the trainer must return a number, {other}; got {type(result).__name__}") from None
    if np.isnan(score):
        raise ValueError("scores must be numbers, infinite ones included, got nan from the trainer")
    return score
