"""A user's own trainer, any function ``(seed, canary) -> score | parameters``: how it is called, how it may fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from inspect import signature
from time import monotonic
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from lastiterate.arrays import BoolArray, IntArray
from lastiterate.attacks.attack import ExpectedScores, Facts, Unknown, Words, models_to_craft
from lastiterate.auditing.design import Paired, Quality
from lastiterate.auditing.experiments.choose import Given
from lastiterate.auditing.experiments.protocol import Cost, Crafted, Trials
from lastiterate.auditing.experiments.trained import Trained
from lastiterate.auditing.identity import Identity, identify
from lastiterate.auditing.stores.trials import ScoredTrials
from lastiterate.machine import process_peak_bytes
from lastiterate.run import DPSGD
from lastiterate.trainer_failure import TrainerFailed, guarded
from lastiterate.values import integer, told

if TYPE_CHECKING:
    from lastiterate.training_progress import TrainingProgress

FIRST_REFERENCE = 2**20  # models that are not counted have numbers from here on
SEED_NUMBERING = 2  # 1 was (seed << 22) + 2 * model + present, which repeated itself from one audit to another

UserTrainer = Callable[[int, bool], object]


@runtime_checkable
class ParametersAttack(Protocol):
    """An attack on whatever parameters a trainer returns; ``attacks.Displacement`` is one."""

    def craft(self, run: DPSGD, references: list[object]) -> Facts:
        """Decide what has to be decided from the parameters of models without the canary."""

    def score(self, run: DPSGD, facts: Facts, parameters: object) -> float:
        """How much the parameters speak for the canary."""

    def expected(self, facts: Facts) -> ExpectedScores: ...
    def words(self, facts: Facts) -> Words: ...


@dataclass(frozen=True, eq=False)
class UserTrainings:
    """A user's trainer and, where it returns parameters, the attack that scores them."""

    run: DPSGD
    trainer: UserTrainer
    attack: ParametersAttack | None
    design: Paired
    seed: int
    data: str
    quality: Quality | None = None

    @classmethod
    def of(cls, trainer: UserTrainer, given: Given) -> UserTrainings:
        """The experiment, once it is known that its parts fit."""
        integer("models", given.models, 1, FIRST_REFERENCE)
        attack = given.attack
        if attack is not None and (isinstance(attack, type) or not isinstance(attack, ParametersAttack)):
            raise ValueError(
                f"attack must be None or lastiterate.attacks.Displacement for a trainer, or have craft, score, "
                f"expected and words, got {told(attack)}"
            )
        _check_arguments(trainer)
        words = given.data or f"the trainer {getattr(trainer, '__qualname__', type(trainer).__name__)}"
        return cls(given.run, trainer, attack, given.paired(), given.seed, words)

    def identity(self) -> Identity:
        return identify(self.run, self.trainer, self.attack, self.design, self.seed, trainer_seeds=SEED_NUMBERING)

    def craft(self, progress: bool | None) -> Crafted:
        attack = self.attack
        if attack is None:
            return Crafted({}, Unknown(), Words("your trainer's own scores", "score"))
        count = models_to_craft(attack)
        trained = [self.train(FIRST_REFERENCE + model, False) for model in range(count)]
        try:
            facts = attack.craft(self.run, trained)
        except (TypeError, ValueError) as error:  # they are no parameters, or not of the canary's shapes
            raise TrainerFailed(error, f"{count} reference models of world 'out'") from error
        return Crafted(facts, attack.expected(facts), attack.words(facts))

    def trials(self, crafted: Crafted, chunk_size: int | None, workers: int | None, sharers: int = 1) -> Trials:
        return _UserTrials(self, crafted, chunk_size or 1)

    def cost(self) -> Cost:
        references = 0 if self.attack is None else models_to_craft(self.attack)
        total = references + self.design.trials
        began = monotonic()
        self.train(0, False)
        return Cost(total, references, total * (monotonic() - began), process_peak_bytes(), "from one model trained")

    def train(self, model: int, world: bool) -> object:
        """What the trainer returns for one model, once it is known to have trained the run that was declared."""
        result = guarded(lambda: self.trainer(trainer_seed(self.seed, model, world), world), self.called(model, world))
        if isinstance(result, Trained):
            result.check(self.run)
            return result.result
        return result

    def score(self, facts: Facts, model: int, world: bool) -> float:
        """Train one model and score it."""
        result = self.train(model, world)
        if self.attack is None and isinstance(result, (list, tuple, np.ndarray)) and np.ndim(result) != 0:
            raise ValueError(
                f"attack must be given where the trainer returns parameters (here of shape {np.shape(result)}): for "
                "example lastiterate.attacks.Displacement(canary); a score is one number for all that is released"
            )
        try:
            return _number(result if self.attack is None else self.attack.score(self.run, facts, result))
        except (TypeError, ValueError) as error:
            raise TrainerFailed(error, self.called(model, world)) from error

    def called(self, model: int, world: bool) -> str:
        """What a model is called where its training fails."""
        number = f"model {model}" if model < FIRST_REFERENCE else f"reference model {model - FIRST_REFERENCE}"
        return f"{number} of world {'in' if world else 'out'!r} (seed {trainer_seed(self.seed, model, world)})"


@dataclass(frozen=True, eq=False)
class _UserTrials:
    """One model after the other; the trainer's framework uses the cores as it does.

    Each is handed over before the next begins, as nobody knows what that will do: it may hang, or end the process.
    """

    experiment: UserTrainings
    crafted: Crafted
    chunk_size: int

    def chunks(self, models: IntArray, present: BoolArray, progress: TrainingProgress | None) -> Iterator[ScoredTrials]:
        for model, world in zip(models.tolist(), present.tolist(), strict=True):
            began = monotonic()
            score = self.experiment.score(self.crafted.facts, model, world)
            if progress:
                progress.advanced(1, self.experiment.run.steps, finished=True)
            yield ScoredTrials.of([model], [world], [score], seconds=monotonic() - began)


def trainer_seed(seed: int, model: int, present: bool) -> int:
    """A seed for a user's trainer: in [0, 2^32), and different for every model and world of an audit.

    A permutation of the numbers below 2^32, a Feistel network of four rounds, whose key is the audit's whole seed.
    """
    left, right = divmod(2 * model + present, 2**16)
    for turn in range(4):
        digest = blake2b(f"{seed} {turn} {right}".encode(), digest_size=2).digest()
        left, right = right, left ^ int.from_bytes(digest, "little")
    return left * 2**16 + right


def _check_arguments(trainer: UserTrainer) -> None:
    """Refuse what cannot be called with seed and canary, as far as Python knows how it is called."""
    try:
        how = signature(trainer)
    except (TypeError, ValueError):
        return
    try:
        how.bind(0, True)
    except TypeError as error:
        raise ValueError(
            f"problem must be a trainer that takes (seed, canary), got one that takes {how}: {error}"
        ) from None


def _number(result: object) -> float:
    try:
        score = float(result)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(
            f"the trainer must return a number, or parameters together with an attack that scores them, such as "
            f"lastiterate.attacks.Displacement(canary); got {type(result).__name__}"
        ) from None
    if np.isnan(score):
        raise ValueError("scores must be numbers, infinite ones included, got nan from the trainer")
    return score
