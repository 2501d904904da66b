"""Audits of language models: many fine-tunings with one canary, or one fine-tuning with many canaries."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lastiterate.attacks.attack import Facts
from lastiterate.auditing.design import OneModel, Quality
from lastiterate.auditing.experiments.choose import Given, experiment_on
from lastiterate.auditing.experiments.protocol import Cost, Experiment, Trials
from lastiterate.auditing.stores.audit_record import Crafted, ScoredTrials
from lastiterate.common.progress import TrainingProgress
from lastiterate.common.system import process_peak_bytes
from lastiterate.common.types import BoolArray, FloatArray, IntArray
from lastiterate.common.validation import number, told
from lastiterate.lm.example_gradients import Tensors
from lastiterate.lm.fine_tuning import FIRST_REFERENCE, Model, TextReferences, second_moment, time_parts, train_models
from lastiterate.lm.one_run_tokens import OneRunTokens
from lastiterate.lm.text_problem import Loaded, TextProblem, load
from lastiterate.lm.unseen_tokens import UnseenTokens
from lastiterate.run import DPSGD

_WATCHED = 2  # a purpose of reference models that no attack uses


@experiment_on.register
def text_experiment(problem: TextProblem, given: Given) -> Experiment:
    """Return the experiment on a language model."""
    number("clip_norm", given.run.clip_norm, 1e-30, 1e30)  # well within the range of float32
    attack = UnseenTokens() if given.attack is None else given.attack
    if given.run.group_size < problem.of_a_person:
        least = f"{problem.of_a_person}, the most examples that a person has in these texts"
        raise ValueError(f"group_size must be at least {least}, got {given.run.group_size}")
    if isinstance(attack, UnseenTokens):
        return FineTunings(given.run, problem, attack, given.paired(), given.seed, given.data)
    if isinstance(attack, OneRunTokens):
        design = OneModel(given.models, given.seed)
        return OneFineTuning(given.run, problem, attack, design, given.seed, given.data)
    raise ValueError(f"attack must be lm.UnseenTokens or lm.OneRunTokens for a TextProblem, got {told(attack)}")


@dataclass(frozen=True, eq=False)
class _OnTexts(Experiment):
    problem: TextProblem

    @property
    def quality(self) -> Quality | None:
        return Quality("perplexity")

    @property
    def data(self) -> str:
        return self.described or self.problem.words

    @abstractmethod
    def facts(self, progress: bool | None) -> Facts:
        """Train reference models and return the facts of the attack."""

    def craft(self, progress: bool | None) -> Crafted:
        facts, moment = self.facts(progress), None
        if self.run.is_adaptive:  # Adam's second moment is measured on models without a canary
            first = FIRST_REFERENCE + _WATCHED * 2**24
            moment = second_moment(self.run, self.problem, seed=self.seed, first=first, progress=progress)
        expected, words = self.attack.expected(facts), self.attack.words(facts)
        return Crafted(facts, expected, words, perplexity_before(self.problem), moment)


@dataclass(frozen=True, eq=False)
class FineTunings(_OnTexts):
    """An experiment on models with one canary of unseen tokens and models without it."""

    attack: UnseenTokens

    def facts(self, progress: bool | None) -> Facts:
        return self.attack.craft(self.run, self.problem, TextReferences(self.seed, progress, self.design.trials))

    def trials(self, crafted: Crafted, chunk_size: int | None, workers: int | None, sharers: int = 1) -> Trials:
        armed, group = self.attack.arm(self.run, self.problem, crafted.facts), self.run.group_size

        def chunks(models: IntArray, present: BoolArray, progress: TrainingProgress | None) -> Iterator[ScoredTrials]:
            wanted = [Model(int(number), (bool(here),) * group) for number, here in zip(models, present, strict=True)]
            positions = armed.positions()

            def read(loaded: Loaded, released: Tensors) -> tuple[float, float]:
                last = float("nan") if positions else armed.score(loaded, released)
                return last, loaded.perplexity(released)

            for model, (last, perplexity), seconds in train_models(
                self.run,
                self.problem,
                [armed.canary] * group,
                wanted,
                self.seed,
                read,
                workers=workers,
                progress=progress,
                look=positions,
                replacements=[] if armed.replacement is None else [armed.replacement] * group,
            ):
                score = armed.score_of(positions.of(model)) if positions else last
                yield ScoredTrials.of([model.number], list(model.present[:1]), [score], [perplexity], seconds=seconds)

        return Trials(1, chunks)

    def cost(self) -> Cost:
        counted = self.design.trials
        return _cost(self.run, self.problem, self.attack.to_craft(counted), counted, self.attack.candidates)


@dataclass(frozen=True, eq=False)
class OneFineTuning(_OnTexts):
    """An experiment on one model. About half of many canaries are present."""

    attack: OneRunTokens

    def facts(self, progress: bool | None) -> Facts:
        return self.attack.craft_many(self.run, self.problem, TextReferences(self.seed, progress), self.design.models)

    def trials(self, crafted: Crafted, chunk_size: int | None, workers: int | None, sharers: int = 1) -> Trials:
        def chunks(models: IntArray, present: BoolArray, progress: TrainingProgress | None) -> Iterator[ScoredTrials]:
            armed = self.attack.arm(self.run, self.problem, crafted.facts)
            one = Model(0, present.tolist())

            def read(loaded: Loaded, released: Tensors) -> tuple[FloatArray, float]:
                return armed.scores(loaded, released), loaded.perplexity(released)

            ((_, (scores, perplexity), seconds),) = train_models(
                self.run, self.problem, armed.canaries, [one], self.seed, read
            )
            if progress:
                progress.advanced(len(models), self.run.steps, finished=True)
            yield ScoredTrials.of(models, present, scores, np.full(len(models), perplexity), seconds=seconds)

        return Trials(self.design.models, chunks)

    def cost(self) -> Cost:
        return _cost(self.run, self.problem, self.attack.references, 1, self.design.models)


def perplexity_before(problem: TextProblem) -> float | None:
    """Return the perplexity of the held-out texts before training, or None if there are no such texts."""
    loaded = load(problem)
    return None if loaded.held_out is None else loaded.perplexity(loaded.start)


def _cost(run: DPSGD, problem: TextProblem, references: int, counted: int, candidates: int) -> Cost:
    (step, perplexity, gradient), total = time_parts(run, problem), references + counted
    seconds = total * run.steps * step + counted * perplexity + (2 * candidates + references) * gradient
    return Cost(total, references, seconds, process_peak_bytes(), "from a few timed steps")
