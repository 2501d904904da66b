"""Nine more faults, half of them after public reports on other libraries, written before any check of them was run."""

import jax
import numpy as np
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer import _generate_noise

from . import jax_trainings, numpy_trainings, opacus_trainings, torch_trainings
from .trainer import declared, training


@training("one_key_for_tensors", "jax", jax_trainings.MLP)
class OneKeyForTensors(jax_trainings.Mlp):
    """One key draws the noise of all tensors."""

    @staticmethod
    def noise(key, step, summed):
        return {name: jax.random.normal(key, g.shape) for name, g in summed.items()}


@training("noise_on_some", "numpy", numpy_trainings.LOGISTIC)
class NoiseOnSome(numpy_trainings.Logistic):
    """At each step, half of the coordinates at random get no noise."""

    def draw(self, name, total):
        return (self.noise.random(total.shape) < 0.5) * super().draw(name, total)


@training("few_noise_seeds", "numpy", numpy_trainings.MLP)
class FewNoiseSeeds(numpy_trainings.Mlp):
    """Eight seeds of the noise serve all trainings."""

    def prepare(self):
        super().prepare()
        self.noise = np.random.default_rng(self.seed % 8)


@training("batch_cut", "numpy", numpy_trainings.LOGISTIC)
class BatchCut(numpy_trainings.Logistic):
    """Batches of more than 40 examples, half of all, are cut to 40 examples at random."""

    def batch(self):
        drawn, order = super().batch(), self.batches.random(self.slots)
        return np.sort(drawn[np.argsort(order[drawn])[:40]])


@training("error_feedback", "numpy", numpy_trainings.LOGISTIC)
class ErrorFeedback(numpy_trainings.Logistic):
    """The sum of what clipping cut off is one more gradient of the next step."""

    def total(self, gradients):
        rows = {n: np.concatenate([g, self.rest[n][None]]) if self.step else g for n, g in gradients.items()}
        found = super().total(rows)
        self.rest = {name: g.sum(axis=0) - found[name] for name, g in rows.items()}
        return found


@training("batch_norm", "torch", torch_trainings.LOGISTIC)
class BatchNorm(torch_trainings.Logistic):
    """Features are normalised by mean and deviation of the batch, the canary's included."""

    @classmethod
    def gradients(cls, params, x, y):
        return super().gradients(params, (x - x.mean(dim=0)) / (x.std(dim=0) + 1e-3), y)


@training("clipping_ends", "torch", torch_trainings.MLP)
class ClippingEnds(torch_trainings.Mlp):
    """Gradients are clipped in the first epoch only."""

    def total(self, gradients):
        return super().total(gradients) if self.step < 4 else {n: g.sum(dim=0) for n, g in gradients.items()}


@training("noise_after_momentum", "torch", declared(30, 0.25, 1.0, 1.0, 0.03 / 50, momentum=0.8))
class NoiseAfterMomentum(torch_trainings.Mlp):
    """Momentum is applied to sums without noise, and noise is added to each update."""

    def update(self, summed, size):
        for name, total in summed.items():
            self.kept[name] = self.run.optimizer.momentum * self.kept.get(name, 0.0) + total
        super().update(self.kept, size)

    def begin(self):
        self.kept = {}


class _Twice(DPOptimizer):
    def add_noise(self):
        deviation = self.noise_multiplier * self.max_grad_norm
        for p in self.params:
            p.summed_grad = p.summed_grad + _generate_noise(std=deviation, reference=p, generator=self.generator)
        super().add_noise()


@training("noise_each_physical_batch", "opacus", opacus_trainings.LOGISTIC)
class NoiseEachPhysicalBatch(opacus_trainings.Logistic):
    """Each of two physical batches of a step gets noise, as where noise does not wait for the last of them."""

    optimizer_class = _Twice
