"""Gradient-space attack on adversarial data: all other gradients are zero, and the canary's gradient is constant.

Only the canary and the noise move the model, so that the heuristic is exact and the attack is optimal. The last iterate
is either trained step by step, or drawn directly from its distribution. Drawing is much faster.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.attacks.attack import (
    ONE_EXAMPLE,
    Armed,
    BringsProblem,
    ExpectedScores,
    Facts,
    LikelihoodRatio,
    LinearScores,
    References,
    Words,
)
from lastiterate.attacks.released_iterates import (
    LinearScore,
    armed_for_releases,
    noise_unit,
    sample_released_scores,
    score_unit,
)
from lastiterate.common.types import BoolArray, FloatArray
from lastiterate.common.validation import one_of
from lastiterate.privacy.mixtures.law import law_of
from lastiterate.run import DPSGD
from lastiterate.supported_runs import ADAM, GROUPS, RELEASES, REPLACEMENT, SEPARATION, Support

_MOST_SLOTS = 10_000


@dataclass(frozen=True)
class Adversarial(BringsProblem):
    """A constant canary gradient among zeros.

    Args:
        iterates: "exact" draws last iterates from their distribution, "trained" takes every step of the trainer.
    """

    iterates: Literal["exact", "trained"] = "exact"

    def __post_init__(self) -> None:
        one_of("iterates", self.iterates, ("exact", "trained"))

    @property
    def supports(self) -> Support:
        """Runs that this attack supports. Runs with Adam need ``iterates="trained"``."""
        features = ONE_EXAMPLE | {RELEASES, GROUPS, REPLACEMENT}
        if self.iterates == "trained":
            return Support("the attack Adversarial('trained')", features)
        why = "only the prediction would be drawn, not what Adam does; use iterates='trained' (adversarial-trained)"
        return Support("the attack Adversarial('exact')", (features | {SEPARATION}) - {ADAM}, {ADAM: why})

    def craft(self, run: DPSGD, problem: object, references: References) -> Facts:
        return facts_of(run)

    def arm(self, run: DPSGD, problem: object, facts: Facts) -> Armed:
        from lastiterate.training import GradientCanary, problems

        canary = GradientCanary(np.array([10.0 * run.clip_norm], np.float32))
        others = _others(run)
        setting = problems.linear(np.zeros((others, 1), np.float32)) if others else problems.linear()
        if run.release_count > 1:
            seen = {**facts, "centres": [0.0] * run.release_count, "spread": 1.0, "signal": 1.0}
            return armed_for_releases(run, setting, canary, np.ones(1), seen)
        return Armed(setting, canary, LinearScore(np.ones(1), 0.0, noise_unit(run)))

    def sample(self, run: DPSGD, present: BoolArray, generator: np.random.Generator) -> FloatArray:
        """Draw scores of models with and without the canary from their exact distribution, without training."""
        return sample_scores(run, present, generator)

    def expected(self, facts: Facts) -> ExpectedScores:
        return LikelihoodRatio(released=True) if "releases" in facts else LinearScores()

    def words(self, facts: Facts) -> Words:
        how = "drawn from their exact distribution" if self.iterates == "exact" else "trained step by step"
        what = f"all {facts['releases']:,} released" if "releases" in facts else "last"
        words = f"gradient space, adversarial data: all other gradients are zero; {what} iterates {how}"
        return Words(words, score_unit(facts))


def facts_of(run: DPSGD) -> Facts:
    """Return the number of released iterates as a fact, or no facts if only the last iterate is released."""
    return {"releases": run.release_count} if run.release_count > 1 else {}


def _others(run: DPSGD) -> int:
    """Return the number of zero gradients to add, so that batches can have exactly the run's sample rate."""
    if run.sampling in ("poisson", "balls-in-bins", "full"):
        return 0
    if run.dataset_size is not None:
        return run.dataset_size - run.group_size
    rate = float(np.max(run.sample_rate))
    slots = np.arange(1, _MOST_SLOTS + 1)
    whole = np.abs(rate * slots - np.rint(rate * slots)) < 1e-9
    least = int(slots[np.argmax(whole)] if whole.any() else _MOST_SLOTS)
    return least * -(-run.group_size // least) - run.group_size


def sample_scores(run: DPSGD, present: ArrayLike, generator: np.random.Generator) -> FloatArray:
    """Draw scores in units of the noise: S + N with the canary, and N without it.

    S is the amount of the canary in the model, and N is normal noise. If the neighbouring data set replaces an example,
    the score without the canary is -S + N. If a run releases several iterates, the score is the log-likelihood ratio of
    all released iterates.
    """
    here = np.asarray(present, bool)
    if run.release_count > 1:
        return sample_released_scores(run, here, generator)
    law = law_of(run)
    scores = generator.standard_normal(here.size)
    scores[here] += law.sample(int(here.sum()), generator) / law.noise
    if run.is_mirrored:
        scores[~here] -= law.sample(int((~here).sum()), generator) / law.noise
    return scores
