"""A simulated year of audits: trainings that are what they claim to be, faulty ones, and audits that cannot tell.

Scores are drawn directly, in one dimension: of a last iterate S + N against N, of the likelihood ratio of all iterates,
or of many canaries in one run. Runs, sizes, confidences, thresholds and claims differ from audit to audit; every
verdict comes from the function by which reports judge.

    python -m tests.auditing.year_of_audits [audits of each sort, 1000 unless told]
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import lastiterate as li
from lastiterate.attacks.attack import ExpectedScores, LikelihoodRatio, LinearScores, Unknown
from lastiterate.attacks.likelihood import sample_likelihood_ratios
from lastiterate.auditing.design import OneModel, Paired
from lastiterate.auditing.evidence.estimates import Estimates, verdict_on
from lastiterate.auditing.evidence.kinds import kind_of
from lastiterate.auditing.evidence.question import Question
from lastiterate.privacy.mixtures.law import law_of

RUNS = (
    li.DPSGD(50, 0.2, 1.0),
    li.DPSGD(100, 0.1, 1.2),
    li.DPSGD(40, 1.0, 6.0, sampling="full"),
    li.DPSGD(1, 1.0, 0.7, sampling="full"),
    li.DPSGD(30, 0.2, 1.5, optimizer=li.SGD(0.1, momentum=0.9)),
    li.DPSGD(20, 0.1, 0.8, sampling="shuffled"),
)
ALL_ITERATES = li.DPSGD(8, 0.3, 1.2)
ONE_RUN = li.DPSGD(1, 1.0, 2.0, sampling="full")
SIZES = (150, 400, 1000)
THRESHOLDS = ("a-priori", "split", "corrected", "uncorrected", "number")
CONFIDENCES = (0.8, 0.9, 0.95)
EXPECTED: dict[str, ExpectedScores] = {
    "linear": LinearScores(),
    "none": Unknown(),
    "likelihood-ratio": LikelihoodRatio(),
    "one-run": LinearScores(),
}


@dataclass(frozen=True)
class Audit:
    """What is audited and asked, and what the training did instead.

    Attributes:
        kind: what is known of the scores: "linear", "none", "likelihood-ratio", or "one-run" with many canaries.
        run: what is claimed of the training.
        models: a world, or canaries.
        question: with its threshold and confidence.
        noise: what the training's noise really was, in units of the claimed one.
        copies: how often the canary was in a batch that it was drawn into.
        sign: of the scores.
        signal: how much of the canary the attack sees.
    """

    kind: str
    run: li.DPSGD
    models: int
    question: Question
    noise: float = 1.0
    copies: float = 1.0
    sign: float = 1.0
    signal: float = 1.0

    def verdict(self, generator: np.random.Generator) -> str:
        """What a report would say of one realisation."""
        scores_in, scores_out = self._scores(generator)
        expected = EXPECTED[self.kind]
        design = OneModel(self.models, 0) if self.kind == "one-run" else Paired(self.models)
        estimates = Estimates(self.run, expected, self.sign * scores_in, self.sign * scores_out, self.question)
        return verdict_on(self.question.claim(self.run), kind_of(design, expected), estimates)[0]

    def _scores(self, generator: np.random.Generator) -> tuple[Any, Any]:
        """Last iterates and canaries of one run are in standard deviations of the claimed noise."""
        if self.kind == "likelihood-ratio":
            real = self.run.replace(noise_multiplier=self.run.noise_multiplier * self.noise)
            drawn = sample_likelihood_ratios(real, np.arange(2 * self.models) % 2 == 0, generator)
            return drawn[::2], drawn[1::2]
        present = np.arange(2 * self.models) % 2 == 0
        if self.kind == "one-run":
            while not 0 < (present := generator.random(self.models) < 0.5).sum() < self.models:
                pass
        moved = self.signal * self.copies * used(self.run, present.size, generator) * present
        scores = moved + self.noise * generator.normal(size=present.size)
        return scores[present], scores[~present]


def used(run: li.DPSGD, models: int, generator: np.random.Generator) -> Any:
    """How much of the canary is in the last iterates, in standard deviations of the noise."""
    law = law_of(run)
    total = np.full(models, law.constant)
    for weight, rate, count in zip(law.weights, law.rates, law.counts, strict=True):
        total += weight * generator.binomial(int(count), rate, models)
    for values, chances in law.blocks:
        total += generator.choice(values, models, p=np.asarray(chances) / np.sum(chances))
    return total / law.noise


def ordinary(generator: np.random.Generator) -> Audit:
    """Any audit of a correct training, with scores enough to refute."""
    kind = str(generator.choice(["linear", "none", "likelihood-ratio", "one-run"], p=[0.55, 0.25, 0.05, 0.15]))
    confidence = float(generator.choice(CONFIDENCES))
    threshold: Any = str(generator.choice(THRESHOLDS[: 4 if kind == "likelihood-ratio" else 5]))
    models = int(generator.choice(SIZES))
    if kind == "likelihood-ratio":
        return Audit(kind, ALL_ITERATES, models, Question(1e-5, confidence, threshold=threshold))
    run = ONE_RUN if kind == "one-run" else RUNS[int(generator.integers(len(RUNS)))]
    if threshold == "number":
        threshold = 0.5 * law_of(run).mean / law_of(run).noise  # in the middle between the two worlds
    question = Question(1e-5, confidence, threshold=threshold)
    if kind == "one-run":
        return Audit(kind, run, 5 * models, question)
    if generator.random() < 0.3 and run.sampling != "shuffled":
        question = Question(1e-5, confidence, threshold=threshold, claim_epsilon=_guarantee(run))
    return Audit(kind, run, models, question)


def _guarantee(run: li.DPSGD) -> float:
    return float(li.composition(run).epsilon(1e-5))


def faulty(generator: np.random.Generator) -> tuple[str, Audit]:
    """A training with a tenth of its noise (half, if all is seen), or that counts the canary five times."""
    audit = ordinary(generator)
    changes: dict[str, Any] = {"noise": 0.5 if audit.kind == "likelihood-ratio" else 0.1}
    name = "too little noise"
    if audit.kind in ("linear", "none") and generator.random() < 0.3:
        changes, name = {"copies": 5.0}, "canary counted five times"
    if audit.kind == "none" and generator.random() < 0.5:
        changes["sign"], name = -1.0, f"{name}, scores with the wrong sign and a split"
        changes["question"] = replace(audit.question, threshold="split")
    return name, replace(audit, models=max(audit.models, 400), **changes)


def hopeless(generator: np.random.Generator) -> tuple[str, Audit]:
    """An audit that cannot tell, of a training that is faulty or not."""
    audit = ordinary(generator)
    noise = float(generator.choice([1.0, 0.1]))
    sort = int(generator.integers(3))
    if sort == 0:
        return "too few models", replace(audit, noise=noise, models=4)
    run, question = RUNS[int(generator.integers(len(RUNS)))], audit.question
    if sort == 1:
        return "broken attack", Audit("linear", run, 10_000, replace(question, claim_epsilon=None), signal=0.0)
    threshold = str(generator.choice(["a-priori", "corrected", "uncorrected"]))
    question = replace(question, claim_epsilon=None, threshold=threshold)
    return "wrong sign", Audit("linear", run, 1000, question, noise=noise, sign=-1.0)


@dataclass(frozen=True)
class Year:
    """Verdicts by sort of audit, and how many false ones the confidences of the correct trainings allow."""

    correct: Counter[str]
    allowed: float
    spread: float
    faulty: dict[str, Counter[str]]
    hopeless: dict[str, Counter[str]]


def year(audits: int, seed: int = 0) -> Year:
    """So many correct trainings, so many faulty ones, and a third as many audits that cannot tell."""
    generator = np.random.default_rng(seed)
    correct: Counter[str] = Counter()
    errors = []
    for _ in range(audits):
        audit = ordinary(generator)
        errors.append(1.0 - audit.question.confidence)
        correct[audit.verdict(generator)] += 1
    sorts: list[dict[str, Counter[str]]] = [{}, {}]
    for verdicts, draw, count in zip(sorts, (faulty, hopeless), (audits, audits // 3), strict=True):
        for _ in range(count):
            name, audit = draw(generator)
            verdicts.setdefault(name, Counter())[audit.verdict(generator)] += 1
    variance = sum(error * (1.0 - error) for error in errors)
    return Year(correct, sum(errors), float(np.sqrt(variance)), *sorts)


if __name__ == "__main__":
    found = year(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
    print(f"correct trainings: {dict(found.correct)}; violations allowed: {found.allowed:.0f} +- {found.spread:.0f}")
    for title, sorts in (("faulty trainings", found.faulty), ("audits that cannot tell", found.hopeless)):
        for name, verdicts in sorts.items():
            print(f"{title}, {name}: {dict(verdicts)}")
