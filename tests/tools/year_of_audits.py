"""A simulated year of audits: trainings that are what they claim to be, faulty ones, and audits that cannot tell.

Scores are drawn directly, in one dimension: of a last iterate S + N against N, of the likelihood ratio of all iterates,
or of many canaries in one run. Runs, sizes, confidences, thresholds and claims differ from audit to audit; every
verdict comes from the function by which reports judge.

    python -m tests.tools.year_of_audits --audits 1000 1000 500
"""

import argparse
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import lastiterate as li
from lastiterate.attacks.attack import ExpectedScores, LikelihoodRatio, LinearScores, Unknown
from lastiterate.attacks.released_iterates import sample_likelihood_ratios
from lastiterate.auditing.design import OneModel, Paired
from lastiterate.auditing.evidence.estimates import Estimates, Question
from lastiterate.auditing.evidence.forecast import Forecast
from lastiterate.auditing.evidence.score_signal import Kind, kind_of
from lastiterate.auditing.evidence.threshold import deciding
from lastiterate.auditing.evidence.verdict import Judgement, verdict_on
from lastiterate.auditing.evidence.verdict_strength import chance_to_refute
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
        noise: the noise of the training, in units of the claimed one.
        copies: how often the canary is in a batch that it was drawn into.
        rate: by what the sample rate exceeds the claimed one.
        sign: of the scores.
        signal: the share of the canary that the attack sees.
        spread: the standard deviation of scores of a correct training, in that of the noise.
    """

    kind: str
    run: li.DPSGD
    models: int
    question: Question
    noise: float = 1.0
    copies: float = 1.0
    rate: float = 1.0
    sign: float = 1.0
    signal: float = 1.0
    spread: float = 1.0

    def judgement(self, generator: np.random.Generator) -> Judgement:
        """What a report would say of one realisation."""
        scores_in, scores_out = self._scores(generator)
        expected = EXPECTED[self.kind]
        estimates = Estimates(self.run, expected, self.sign * scores_in, self.sign * scores_out, self.question)
        return verdict_on(self.question.claim(self.run), self._kind(), estimates)

    def _kind(self) -> Kind:
        return kind_of(OneModel(self.models, 0) if self.kind == "one-run" else Paired(self.models), EXPECTED[self.kind])

    def true_chance(self, noise: float = 0.5) -> float:
        """The probability that such an audit refutes a training with this share of the claimed noise.

        The attack is as it really is: its true signal and spread, and not what its scores allow.
        """
        if self.signal == 0.0 or self.sign < 0.0:
            return 0.0
        expected, claim = EXPECTED[self.kind], self.question.claim(self.run)
        threshold: Any = deciding(self.question.threshold)
        claimed = self.run if claim.run is None else claim.run
        factor = float(np.max(self.run.noise_multiplier) / np.max(claimed.noise_multiplier)) / noise
        asked = self.run, self.models, self.question.delta, self.question.confidence, expected
        rule = "split" if threshold == "a-priori" and self.kind == "none" else threshold
        scores: Any = LinearScores(self.signal, self.spread)
        if self.kind == "likelihood-ratio":
            scores = LikelihoodRatio(signal=self.signal)
        forecast = Forecast(*asked, threshold=rule, scores=scores, one_run=self.kind == "one-run")
        return chance_to_refute(forecast, claim, factor)

    def _scores(self, generator: np.random.Generator) -> tuple[Any, Any]:
        """Last iterates and canaries of one run are in standard deviations of the claimed noise."""
        if self.kind == "likelihood-ratio":
            worlds = np.arange(2 * self.models) % 2 == 0
            drawn = sample_likelihood_ratios(self.run, worlds, generator, self.signal, self.noise)
            return drawn[::2], drawn[1::2]
        present = np.arange(2 * self.models) % 2 == 0
        if self.kind == "one-run":
            present = generator.random(self.models) < 0.5
            while present.all() or not present.any():  # an audit without scores of both worlds is refused
                present = generator.random(self.models) < 0.5
        run = self.run
        if self.rate > 1.0:
            run = run.replace(sample_rate=min(self.rate * float(run.sample_rate), 1.0))
        moved = self.signal * self.copies * used(run, present.size, generator) * present
        other = np.sqrt(self.spread**2 - 1.0)
        scores = moved + np.hypot(self.noise, other) * generator.normal(size=present.size)
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


# Eight kinds of faults in three sizes: the noise, the copies of the canary and the sample rate that they amount to.
FAULTS: dict[str, list[dict[str, float]]] = {
    "too little noise": [{"noise": 0.5}, {"noise": 0.3}, {"noise": 0.1}],
    "noise divided by the batch's root": [{"noise": 0.35}, {"noise": 0.25}, {"noise": 0.06}],
    "steps without noise": [{"noise": 0.7}, {"noise": 0.5}, {"noise": 0.2}],
    "clipped to a larger norm": [{"copies": 1.5}, {"copies": 2.0}, {"copies": 4.0}],
    "canary counted several times": [{"copies": 2.0}, {"copies": 3.0}, {"copies": 5.0}],
    "sampled too often": [{"rate": 1.5}, {"rate": 2.0}, {"rate": 4.0}],
    "sampled too often, too little noise": [
        {"rate": 1.2, "noise": 0.7},
        {"rate": 1.5, "noise": 0.5},
        {"rate": 2.0, "noise": 0.3},
    ],
    "larger norm, too little noise": [
        {"copies": 1.2, "noise": 0.7},
        {"copies": 1.5, "noise": 0.5},
        {"copies": 2.0, "noise": 0.3},
    ],
}


def faulty(generator: np.random.Generator) -> tuple[str, Audit]:
    """A training with one of the faults."""
    audit = ordinary(generator)
    names = list(FAULTS)
    if audit.kind == "likelihood-ratio" or audit.run.sampling != "poisson":  # the rate means nothing there
        names = [name for name in names if all("rate" not in each for each in FAULTS[name])]
    if audit.kind == "likelihood-ratio":
        names = [name for name in names if all("copies" not in each for each in FAULTS[name])]
    name = str(generator.choice(names))
    size = int(generator.integers(3))
    return f"{name}, size {size + 1}", replace(audit, **FAULTS[name][size])  # type: ignore[arg-type]


def powerless(generator: np.random.Generator) -> tuple[str, Audit]:
    """An audit that cannot tell, of a training that is faulty or not."""
    audit = replace(ordinary(generator), noise=float(generator.choice([1.0, 0.5])))
    sort = int(generator.integers(5))
    if sort == 0:
        return "too few models", replace(audit, models=int(generator.choice([4, 12, 24])))
    run, question = RUNS[int(generator.integers(len(RUNS)))], replace(audit.question, claim_epsilon=None)
    if sort == 1:
        return "broken attack", Audit("linear", run, 2000, question, signal=0.0)
    if sort == 2:
        return "weak attack", Audit(str(generator.choice(["linear", "none"])), run, 1000, question, signal=0.3)
    if sort == 3:
        question = replace(question, threshold=100.0)
        return "threshold far away", Audit("none", run, 400, question, noise=audit.noise)
    threshold = str(generator.choice(["a-priori", "corrected", "uncorrected"]))
    question = replace(question, threshold=threshold)
    return "wrong sign", Audit("linear", run, 1000, question, noise=audit.noise, sign=-1.0)


@dataclass(frozen=True)
class Year:
    """Verdicts by sort of audit.

    Attributes:
        correct: verdicts on correct trainings.
        allowed: the number of false verdicts that their confidences allow, on average.
        spread: the standard deviation of that number.
        faulty: verdicts on faulty trainings, by fault.
        powerless: verdicts of audits that cannot tell, by sort.
        kind: for each "consistent" verdict, the true chance of refuting half the noise.
        strengths: for some verdicts with a strength, the true chance of refuting the noise that it names.
    """

    correct: Counter[str]
    allowed: float
    spread: float
    faulty: dict[str, Counter[str]]
    powerless: dict[str, Counter[str]]
    kind: list[float]
    strengths: list[float]

    @property
    def too_kind(self) -> float:
        """The share of "consistent" verdicts whose true chance is below 80%, but for simulation errors."""
        return float(np.mean(np.array(self.kind) < 0.8 - 0.05)) if self.kind else 0.0


def year(correct: int, faults: int, weak: int, seed: int = 0) -> Year:
    """Simulate so many audits of each sort."""
    generator = np.random.default_rng(seed)
    found: dict[str, dict[str, Counter[str]]] = {"correct": {}, "faulty": {}, "powerless": {}}
    errors, kind, strengths = [], [], []
    draws = {"correct": lambda rng: ("", ordinary(rng)), "faulty": faulty, "powerless": powerless}
    for sort, count in zip(draws, (correct, faults, weak), strict=True):
        for index in range(count):
            name, audit = draws[sort](generator)
            verdict, _, strength = audit.judgement(generator)
            found[sort].setdefault(name, Counter())[verdict] += 1
            if sort == "correct":
                errors.append(1.0 - audit.question.confidence)
            if verdict == "consistent":
                kind.append(audit.true_chance())
            if strength.caught is not None and index % 10 == 0:
                strengths.append(audit.true_chance(strength.caught))
    variance = sum(error * (1.0 - error) for error in errors)
    verdicts = found["correct"].get("", Counter())
    return Year(verdicts, sum(errors), float(np.sqrt(variance)), found["faulty"], found["powerless"], kind, strengths)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--audits", type=int, nargs=3, default=(1000, 1000, 500), help="correct, faulty, powerless")
    found = year(*parser.parse_args().audits)
    print(f"correct trainings: {dict(found.correct)}; violations allowed: {found.allowed:.0f} +- {found.spread:.0f}")
    for title, sorts in (("faulty trainings", found.faulty), ("audits without power", found.powerless)):
        for name, verdicts in sorts.items():
            print(f"{title}, {name}: {dict(verdicts)}")
    print(f"consistent: {len(found.kind)}, of which the true chance is below 80%: {found.too_kind:.1%}")
    shares = np.array(found.strengths)
    print(f"strengths: {shares.size}, true chances: quantiles {np.quantile(shares, [0.05, 0.25, 0.5, 0.75])}")
