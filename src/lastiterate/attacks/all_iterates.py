"""Attack on all iterates, the paper's contrast: the likelihood ratio over the increments of a gradient-space canary.

Two consecutive iterates reveal the gradient of the step. Along a quiet direction this gradient is noise, plus the
canary if it was in the batch. The sum of the log-likelihood ratios of all steps is the best possible test and reaches
the epsilon of composition.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from lastiterate.attacks.attack import Armed, Facts, LikelihoodRatio, References, Words
from lastiterate.attacks.gradient_space import GradientSpace
from lastiterate.attacks.likelihood_ratio import log_likelihood_ratio
from lastiterate.attacks.released_iterates import recovered_gradient
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import integer, one_of, per_step
from lastiterate.optimizer import is_sgd
from lastiterate.run import DPSGD, require_basic
from lastiterate.training.problem import Problem, flatten

if TYPE_CHECKING:
    from jaxtyping import PyTree


@dataclass(frozen=True)
class AllIterates:
    """A constant canary gradient, watched at every step.

    Args:
        others: "natural" keeps the problem's data and picks a quiet parameter; "zero" makes all other gradients zero.
        references: number of models without the canary that are trained first to find a quiet parameter.
    """

    others: Literal["natural", "zero"] = "natural"
    references: int = 16

    def __post_init__(self) -> None:
        one_of("others", self.others, ("natural", "zero"))
        integer("references", self.references, 2)

    @property
    def needs_sgd(self) -> str:
        """Reason why this attack does not work on Adam."""
        return "a step of Adam does not tell the gradient, whose likelihood ratio is the score"

    @property
    def to_craft(self) -> int:
        """Number of models that are trained first."""
        return 0 if self.others == "zero" else self.references

    def craft(self, run: DPSGD, problem: Problem, references: References) -> Facts:
        require_basic(run, "the likelihood ratio of all iterates", knows=("releases", "group_size", "neighbours"))
        if run.sampling == "shuffled":
            raise ValueError(
                "sampling must not be 'shuffled' for the likelihood ratio of all iterates: its steps depend"
            )
        if self.others == "zero":
            return {"indices": [0], "centre": 0.0, "spread": 1.0}
        return self._quiet.craft(run, problem, references)

    def arm(self, run: DPSGD, problem: Problem, facts: Facts) -> Armed:
        if self.others == "zero":
            problem = replace(problem, examples=None, loss=None, gradient=None, multiplicity=None)
        armed = self._quiet.arm(run, problem, facts)
        index = facts["indices"][0]
        return replace(armed, watch=lambda: Increments(run, index))

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


class Increments:
    """A distinguisher that recovers each step's gradient at one parameter and adds up the log-likelihood ratios."""

    def __init__(self, run: DPSGD, index: int) -> None:
        assert is_sgd(run.optimizer)
        self._run, self._optimizer, self._index = run, run.optimizer, index
        self._rates = np.broadcast_to(per_step("learning_rate", run.optimizer.learning_rate, run.steps), run.steps)
        self._last = self._buffer = self._total = np.zeros(1)

    def see(self, step: int, parameters: PyTree) -> None:
        here = flatten(parameters)[:, self._index].astype(np.float64)
        if step:
            gradient, self._buffer = recovered_gradient(
                self._optimizer, self._last, here, self._buffer, float(self._rates[step - 1]), step - 1
            )
            self._total = self._total + log_likelihood_ratio(self._run, gradient / self._run.clip_norm, step - 1)
        self._last = here

    def scores(self) -> FloatArray:
        return np.asarray(self._total)
