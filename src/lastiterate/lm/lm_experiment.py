"""Audits of language models: many fine-tunings with one canary, or one fine-tuning with many canaries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.attacks.attack import models_to_craft
from lastiterate.auditing.design import OneModel, Paired, Quality
from lastiterate.auditing.experiments.choose import Given, experiment_on
from lastiterate.auditing.experiments.protocol import Cost, Crafted, Experiment, Trials
from lastiterate.auditing.identity import Identity, identify
from lastiterate.auditing.stores.audit_record import ScoredTrials
from lastiterate.common.system import process_peak_bytes
from lastiterate.common.types import BoolArray, FloatArray, IntArray
from lastiterate.common.validation import number
from lastiterate.lm.example_gradients import Tensors
from lastiterate.lm.fine_tuning import FIRST_REFERENCE, Model, TextReferences, second_moment, time_parts, train_models
from lastiterate.lm.one_run_tokens import ArmedTexts, OneRunTokens
from lastiterate.lm.text_problem import Loaded, TextProblem, load
from lastiterate.lm.unseen_tokens import ArmedText, UnseenTokens
from lastiterate.optimizer import is_adam
from lastiterate.run import DPSGD
from lastiterate.trainers.adam_second_moment import SecondMoment

if TYPE_CHECKING:
    from lastiterate.common.progress import TrainingProgress


_WATCHED = 2  # a purpose that no attack uses


@experiment_on.register
def text_experiment(problem: TextProblem, given: Given) -> Experiment:
    """Return the experiment on a language model."""
    number("clip_norm", given.run.clip_norm, 1e-30, 1e30)  # well within the range of float32
    attack = UnseenTokens() if given.attack is None else given.attack
    if given.run.group_size < problem.of_a_person:
        raise ValueError(
            f"group_size must be at least {problem.of_a_person}, the most examples that a person has in these texts, "
            f"got {given.run.group_size}"
        )
    match attack:
        case UnseenTokens():
            return FineTunings(given.run, problem, attack, given.paired(), given.seed, given.data)
        case OneRunTokens():
            return OneFineTuning(given.run, problem, attack, given.models, given.seed, given.data)
    raise ValueError(f"attack must be lm.UnseenTokens or lm.OneRunTokens for a TextProblem, got {attack!r}")


@dataclass(frozen=True, eq=False)
class FineTunings:
    """An experiment on models with one canary of unseen tokens and models without it."""

    run: DPSGD
    problem: TextProblem
    attack: UnseenTokens
    design: Paired
    seed: int
    described: str = ""

    @property
    def quality(self) -> Quality | None:
        return Quality("perplexity")

    @property
    def data(self) -> str:
        return self.described or self.problem.words

    def identity(self) -> Identity:
        return identify(self.run, self.problem, self.attack, self.design, self.seed)

    def craft(self, progress: bool | None) -> Crafted:
        facts = self.attack.craft(self.run, self.problem, TextReferences(self.seed, progress, self.design.trials))
        words = self.attack.words(facts)
        moment = _second_moment(self.run, self.problem, self.seed, progress)
        return Crafted(facts, self.attack.expected(facts), words, perplexity_before(self.problem), moment)

    def trials(self, crafted: Crafted, chunk_size: int | None, workers: int | None, sharers: int = 1) -> Trials:
        return _ModelByModel(self, self.attack.arm(self.run, self.problem, crafted.facts), workers)

    def cost(self) -> Cost:
        counted = self.design.trials
        return _cost(self.run, self.problem, self.attack.to_craft(counted), counted, self.attack.candidates)


@dataclass(frozen=True, eq=False)
class _ModelByModel:
    experiment: FineTunings
    armed: ArmedText
    workers: int | None
    chunk_size: int = 1

    def chunks(self, models: IntArray, present: BoolArray, progress: TrainingProgress | None) -> Iterator[ScoredTrials]:
        this, armed = self.experiment, self.armed
        group = this.run.group_size
        wanted = [Model(int(number), (bool(here),) * group) for number, here in zip(models, present, strict=True)]
        positions = armed.positions()

        def read(loaded: Loaded, released: Tensors) -> tuple[float, float]:
            last = float("nan") if positions else armed.score(loaded, released)
            return last, _perplexity(loaded, released)

        for model, (last, perplexity), seconds in train_models(
            this.run,
            this.problem,
            [armed.canary] * group,
            wanted,
            this.seed,
            read,
            workers=self.workers,
            progress=progress,
            look=positions,
            replacements=[] if armed.replacement is None else [armed.replacement] * group,
        ):
            score = armed.score_of(positions.of(model)) if positions else last
            yield ScoredTrials.of([model.number], list(model.present[:1]), [score], [perplexity], seconds=seconds)


@dataclass(frozen=True, eq=False)
class OneFineTuning:
    """An experiment on one model with about half of many canaries; ``models`` is the number of canaries."""

    run: DPSGD
    problem: TextProblem
    attack: OneRunTokens
    models: int
    seed: int
    described: str = ""

    @property
    def design(self) -> OneModel:
        return OneModel(self.models, self.seed)

    @property
    def quality(self) -> Quality | None:
        return Quality("perplexity")

    @property
    def data(self) -> str:
        return self.described or self.problem.words

    def identity(self) -> Identity:
        return identify(self.run, self.problem, self.attack, self.design, self.seed)

    def craft(self, progress: bool | None) -> Crafted:
        references = TextReferences(self.seed, progress)
        facts = self.attack.craft_many(self.run, self.problem, references, self.models)
        words = self.attack.words(facts)
        moment = _second_moment(self.run, self.problem, self.seed, progress)
        return Crafted(facts, self.attack.expected(facts), words, perplexity_before(self.problem), moment)

    def trials(self, crafted: Crafted, chunk_size: int | None, workers: int | None, sharers: int = 1) -> Trials:
        return _AllCanaries(self, crafted, self.models)

    def cost(self) -> Cost:
        return _cost(self.run, self.problem, models_to_craft(self.attack), 1, self.models)


@dataclass(frozen=True, eq=False)
class _AllCanaries:
    """Trials of the one model: a single chunk with all canaries."""

    experiment: OneFineTuning
    crafted: Crafted
    chunk_size: int

    def chunks(self, models: IntArray, present: BoolArray, progress: TrainingProgress | None) -> Iterator[ScoredTrials]:
        this = self.experiment
        armed: ArmedTexts = this.attack.arm(this.run, this.problem, self.crafted.facts)
        one = Model(0, present.tolist())

        def read(loaded: Loaded, released: Tensors) -> tuple[FloatArray, float]:
            return armed.scores(loaded, released), _perplexity(loaded, released)

        ((_, (scores, perplexity), seconds),) = train_models(
            this.run, this.problem, armed.canaries, [one], this.seed, read
        )
        if progress:
            progress.advanced(len(models), this.run.steps, finished=True)
        yield ScoredTrials.of(models, present, scores, np.full(len(models), perplexity), seconds=seconds)


def _second_moment(run: DPSGD, problem: TextProblem, seed: int, progress: bool | None) -> SecondMoment | None:
    """Measure Adam's second moment on models without a canary; None for other optimizers."""
    if not is_adam(run.optimizer):
        return None
    return second_moment(run, problem, seed=seed, first=FIRST_REFERENCE + _WATCHED * 2**24, progress=progress)


def perplexity_before(problem: TextProblem) -> float | None:
    """Return the perplexity before training, on the held-out texts; None if there are none."""
    loaded = load(problem)
    return None if loaded.held_out is None else loaded.perplexity(loaded.start)


def _perplexity(loaded: Loaded, released: Tensors) -> float:
    return float("nan") if loaded.held_out is None else loaded.perplexity(released)


def _cost(run: DPSGD, problem: TextProblem, references: int, counted: int, candidates: int) -> Cost:
    """Estimate the cost of an audit from its parts: steps, perplexities, and gradients of candidate canaries."""
    took, total = time_parts(run, problem), references + counted
    gradients = 2 * candidates + references
    seconds = total * run.steps * took.step + counted * took.perplexity + gradients * took.gradient
    return Cost(total, references, seconds, process_peak_bytes(), "from a few steps trained")
