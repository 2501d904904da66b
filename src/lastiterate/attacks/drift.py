"""How natural gradients move the parameters, told apart from the noise.

The noise of a model has an address (seed, model, step, parameter). So the same model can be trained once on the data
and once on nothing: SGD is linear in its gradients, and the difference of the two is what the natural gradients did.
Of Adam it is what they did and how they changed its steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lastiterate.arrays import FloatArray
from lastiterate.attacks.attack import References
from lastiterate.optimizer import Adam
from lastiterate.run import DPSGD, noise_root
from lastiterate.training.problem import GradientCanary, Problem, flatten


@dataclass(frozen=True, eq=False)
class Drift:
    """Where parameters go without noise or canary: ``start`` if there were no data, plus ``natural`` [models, d]."""

    start: FloatArray
    natural: FloatArray

    @property
    def mean(self) -> FloatArray:
        mean: FloatArray = self.start + self.natural.mean(axis=0)
        return mean

    @property
    def variance(self) -> FloatArray:
        variance: FloatArray = self.natural.var(axis=0, ddof=1)
        return variance


def measure_drift(run: DPSGD, problem: Problem, references: References, models: int) -> Drift:
    """Train ``models`` models without a canary on the data, and the same ones on nothing."""
    nothing = replace(problem, examples=None, loss=None, gradient=None, multiplicity=None)
    absent = GradientCanary(np.zeros(flatten_one(problem).size, np.float32))
    trained = flatten(references(run, problem, models=models)).astype(np.float64)
    noise = flatten(references(run, nothing, absent, models=models)).astype(np.float64)
    if isinstance(run.optimizer, Adam):  # by symmetry, where decay is decoupled or none; there is no silent Adam
        start = flatten_one(problem).astype(np.float64) * run.optimizer.memory(run.steps, noise_root(run))
    else:
        silent = run.replace(noise_multiplier=1e-30)
        start = flatten(references(silent, nothing, absent, models=1)).astype(np.float64)[0]
    return Drift(start, trained - noise)


def flatten_one(problem: Problem) -> FloatArray:
    """The initial parameters of a problem as one vector."""
    import jax

    flat: FloatArray = flatten(jax.tree.map(lambda leaf: np.asarray(leaf)[None], problem.trainable))[0]
    return flat
