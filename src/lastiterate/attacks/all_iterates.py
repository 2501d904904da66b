"""Attack on all iterates, the paper's contrast: the likelihood ratio over the increments of a gradient-space canary.

Two consecutive iterates reveal the gradient of the step. Along a quiet direction this gradient is noise, plus the
canary if it was in the batch. The sum of the log-likelihood ratios of all steps is the best possible test and reaches
the epsilon of composition.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from lastiterate.attacks.attack import Armed, Facts, LikelihoodRatio, References, Words
from lastiterate.attacks.gradient_space import GradientSpace
from lastiterate.attacks.released_iterates import Collected, recovered_gradients, total_log_likelihood_ratio
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import integer, one_of
from lastiterate.run import DPSGD
from lastiterate.supported_runs import ADAM, BASIC, SHUFFLED, Support
from lastiterate.training.problem import Problem, flatten


@dataclass(frozen=True)
class AllIterates:
    """A constant canary gradient, and a distinguisher that sees every iterate.

    Args:
        others: "natural" keeps the problem's data and picks a quiet parameter; "zero" makes all other gradients zero.
        references: number of models without the canary that are trained first to find a quiet parameter.
    """

    others: Literal["natural", "zero"] = "natural"
    references: int = 16

    def __post_init__(self) -> None:
        one_of("others", self.others, ("natural", "zero"))
        integer("references", self.references, 2)

    supports: ClassVar = Support(
        "the attack AllIterates",
        BASIC - {ADAM, SHUFFLED},
        {
            ADAM: "a step of Adam does not reveal the gradient, whose likelihood ratio is the score",
            SHUFFLED: "its steps depend on each other",
        },
    )

    @property
    def to_craft(self) -> int:
        return 0 if self.others == "zero" else self.references

    def craft(self, run: DPSGD, problem: Problem, references: References) -> Facts:
        if self.others == "zero":
            return {"indices": [0], "centre": 0.0, "spread": 1.0}
        return self._quiet.craft(run, problem, references)

    def arm(self, run: DPSGD, problem: Problem, facts: Facts) -> Armed:
        if self.others == "zero":
            problem = problem.without_examples()
        index = facts["indices"][0]

        def score(iterates: FloatArray) -> FloatArray:
            return total_log_likelihood_ratio(run, recovered_gradients(run, iterates) / run.clip_norm)

        def watch() -> Collected:
            return Collected(lambda parameters: flatten(parameters)[:, index].astype(np.float64), score)

        return replace(self._quiet.arm(run, problem, facts), watch=watch)

    def expected(self, facts: Facts) -> LikelihoodRatio:
        return LikelihoodRatio()

    def words(self, facts: Facts) -> Words:
        others = "natural data" if self.others == "natural" else "all other gradients zero"
        return Words(
            f"all iterates released, {others}: likelihood ratio over the increments of a Dirac canary",
            "nats of the log-likelihood ratio",
            ("This attack sees every iterate: what it finds belongs to composition, not to the last iterate.",),
        )

    @property
    def _quiet(self) -> GradientSpace:
        return GradientSpace("quiet", references=self.references)
