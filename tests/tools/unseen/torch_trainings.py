"""DP-SGD with torch.func (vmap of grad): correct trainings first, then faulty ones."""

import math
from typing import Any

import torch
from torch.func import grad, vmap
from torch.nn import functional

from . import data
from .trainer import Trainer, declared, training

torch.set_num_threads(1)

Params = dict[str, torch.Tensor]

LOGISTIC = declared(40, 0.25, 1.0, 1.0, 0.15 / 40)
MLP = declared(30, 0.25, 1.0, 1.0, 0.15 / 50)
HIDDEN = 24


def norms(gradients: Params) -> torch.Tensor:
    """Return the norm of each example's gradient over all tensors."""
    return torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)


def clipped_sum(gradients: Params, clip: Any) -> Params:
    """Clip each example's gradient to ``clip``, and add them up."""
    factors = (clip / norms(gradients).clamp(min=1e-12)).clamp(max=1)
    return {name: torch.tensordot(factors, g, 1) for name, g in gradients.items()}


class Torch(Trainer):
    """Correct, with two generators that both worlds share; numbers are drawn for all slots in both."""

    def prepare(self) -> None:
        self.x, self.y = self.tensors(self.canary)
        self.batches = torch.Generator().manual_seed(2 * self.seed + 1)
        self.noise = torch.Generator().manual_seed(1_000_003 * (self.seed + 1))

    def tensors(self, canary: bool) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = self.problem.rows(canary)
        return torch.tensor(x, dtype=torch.float32), torch.tensor(y)

    def train(self) -> Params:
        self.params = self.start(self.seed)
        self.begin()
        for step in range(self.steps):
            self.step = step
            batch = (torch.rand(self.slots, generator=self.batches)[: len(self.x)] < self.rates()).nonzero()[:, 0]
            self.learn(batch)
        self.end()
        return self.params

    def begin(self) -> None:
        """Act before the first step."""

    def end(self) -> None:
        """Act after the last step."""

    def rates(self) -> Any:
        return self.run.sample_rate

    def learn(self, batch: torch.Tensor) -> None:
        gradients = self.gradients(self.params, self.x[batch], self.y[batch])
        self.update(self.total(self.plant(gradients, batch == self.place)), len(batch))

    def plant(self, gradients: Params, rows: torch.Tensor) -> Params:
        """Put the planted gradient, if there is one, in the place of the canary's."""
        if self.planted is not None:
            self.fits({name: g.shape[1:] for name, g in gradients.items()})
            for name, g in gradients.items():
                g[rows] = torch.tensor(self.planted[name], dtype=g.dtype)
        return gradients

    def total(self, gradients: Params) -> Params:
        return clipped_sum(gradients, self.run.clip_norm)

    def draw(self, total: torch.Tensor) -> torch.Tensor:
        return self.deviation * torch.randn(total.shape, generator=self.noise)

    def after(self, summed: Params) -> Params:
        return {n: self.params[n] - self.learning_rate * (total + self.draw(total)) for n, total in summed.items()}

    def update(self, summed: Params, size: int) -> None:
        self.params = self.after(summed)

    @classmethod
    def gradients(cls, params: Params, x: torch.Tensor, y: torch.Tensor) -> Params:
        return vmap(grad(cls.loss), in_dims=(None, 0, 0))(params, x, y)


class Logistic(Torch):
    problem = data.make(159, 50, 2, seed=11)

    def start(self, seed: int) -> Params:
        return {"weights": torch.zeros(50), "bias": torch.zeros(1)}

    @staticmethod
    def loss(params: Params, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = x @ params["weights"] + params["bias"].squeeze()
        return functional.softplus(logits) - y * logits


class Mlp(Torch):
    problem = data.make(199, 16, 4, seed=12)

    def start(self, seed: int) -> Params:
        generator = torch.Generator().manual_seed(7 * seed + 500_000_003)
        w1 = torch.randn(16, HIDDEN, generator=generator) / 4
        w2 = torch.randn(HIDDEN, 4, generator=generator) / (2 * math.sqrt(HIDDEN))
        return {"w1": w1, "b1": torch.zeros(HIDDEN), "w2": w2, "b2": torch.zeros(4)}

    @staticmethod
    def loss(params: Params, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(x @ params["w1"] + params["b1"])
        return -functional.log_softmax(hidden @ params["w2"] + params["b2"], dim=-1).gather(-1, y[..., None])[..., 0]


training("correct", "torch", LOGISTIC)(Logistic)
training("correct", "torch", MLP)(Mlp)


@training("correct_momentum", "torch", declared(30, 0.25, 1.0, 1.0, 0.03 / 50, momentum=0.8))
class Momentum(Mlp):
    """Correct, with momentum 0.8, declared."""

    def begin(self) -> None:
        momentum = self.run.optimizer.momentum
        self.optimizer = torch.optim.SGD(self.params.values(), lr=self.learning_rate, momentum=momentum)

    def update(self, summed: Params, size: int) -> None:
        for name, total in summed.items():
            self.params[name].grad = total + self.draw(total)
        self.optimizer.step()


@training("correct_unpaired", "torch", MLP)
class Unpaired(Mlp):
    """Correct: one generator, and a random place of the canary, so that worlds share no randomness."""

    def prepare(self) -> None:
        generator = self.batches = self.noise = torch.Generator().manual_seed(self.seed)
        self.x, self.y = self.tensors(False)
        self.place = -1
        if self.canary:
            place = self.place = int(torch.randint(len(self.x) + 1, (), generator=generator))
            canary_x = torch.tensor(self.problem.canary_x, dtype=torch.float32)[None]
            self.x = torch.cat([self.x[:place], canary_x, self.x[place:]])
            self.y = torch.cat([self.y[:place], torch.tensor([self.problem.canary_y]), self.y[place:]])
        self.slots = len(self.x)
        self.seed = int(torch.randint(2**31, (), generator=generator))


@training("noise_of_mean_on_sum", "torch", LOGISTIC)
class NoiseOfMeanOnSum(Logistic):
    """Noise for the mean is added to the sum: 40 times too small."""

    @property
    def deviation(self) -> float:
        return super().deviation / (self.run.sample_rate * self.slots)


@training("noise_variance_as_deviation", "torch", declared(40, 0.25, 1.5, 1.0, 0.15 / 40))
class NoiseVarianceAsDeviation(Logistic):
    """The noise's deviation is a square root: 0.82 of the declared."""

    @property
    def deviation(self) -> float:
        return math.sqrt(super().deviation)


@training("same_noise_every_step", "torch", MLP)
class SameNoiseEveryStep(Mlp):
    """The generator of the noise is seeded again in every step, so all steps have the same noise."""

    def update(self, summed: Params, size: int) -> None:
        self.noise.manual_seed(self.seed + 99)
        super().update(summed, size)


@training("noise_fixed_seed", "torch", LOGISTIC)
class NoiseFixedSeed(Logistic):
    """The generator of the noise is never seeded: every run has the same noise."""

    def begin(self) -> None:
        self.noise = torch.Generator()


@training("clip_per_tensor", "torch", declared(40, 0.25, 1.0, 0.4, 0.3 / 40))
class ClipPerTensor(Logistic):
    """Weights and bias are each clipped to the norm that is meant for both."""

    def total(self, gradients: Params) -> Params:
        return {name: clipped_sum({name: g}, self.run.clip_norm)[name] for name, g in gradients.items()}


@training("clip_of_batch", "torch", MLP)
class ClipOfBatch(Mlp):
    """``clip_grad_norm_`` clips the mean gradient of the batch, not each example's."""

    def total(self, gradients: Params) -> Params:
        size = self.run.sample_rate * self.slots
        sums = {name: torch.zeros_like(p) for name, p in self.params.items()}
        for name, g in gradients.items():
            sums[name].grad = g.sum(dim=0) / size
        torch.nn.utils.clip_grad_norm_(sums.values(), self.run.clip_norm)
        return {name: size * p.grad for name, p in sums.items()}


@training("real_batch_size", "torch", declared(30, 0.1, 1.0, 1.0, 0.1 / 12))
class RealBatchSize(Mlp):
    """The noisy sum is divided by the real instead of the expected batch size (12)."""

    problem = data.make(119, 16, 4, seed=13)

    def update(self, summed: Params, size: int) -> None:
        self.learning_rate = self.run.optimizer.learning_rate * self.run.sample_rate * self.slots / max(size, 1)
        super().update(summed, size)


@training("shuffled_for_poisson", "torch", MLP)
class ShuffledForPoisson(Mlp):
    """Batches are cut from a permutation where Poisson sampling is declared."""

    def begin(self) -> None:
        self.order: list[torch.Tensor] = []
        self.shuffler = torch.Generator().manual_seed(2 * self.seed + 1)

    def learn(self, batch: torch.Tensor) -> None:
        if not self.order:
            order = torch.randperm(self.slots, generator=self.shuffler)
            self.order = list(order.split(round(self.run.sample_rate * self.slots)))
        batch = self.order.pop(0)
        super().learn(batch[batch < len(self.x)])


@training("gradients_not_zeroed", "torch", declared(40, 0.25, 1.0, 1.0, 0.02 / 40))
class GradientsNotZeroed(Logistic):
    """Noisy gradients of all earlier steps stay in the gradient."""

    def begin(self) -> None:
        self.kept = {name: torch.zeros_like(p) for name, p in self.params.items()}

    def update(self, summed: Params, size: int) -> None:
        for name, total in summed.items():
            self.kept[name] += total + self.draw(total)
            self.params[name] = self.params[name] - self.learning_rate * self.kept[name]


@training("private_steps_at_end", "torch", LOGISTIC)
class PrivateStepsAtEnd(Logistic):
    """Five last steps on all data are neither clipped nor noised."""

    def end(self) -> None:
        for _ in range(5):
            gradients = self.gradients(self.params, self.x, self.y)
            self.params = {name: self.params[name] - 0.2 * g.mean(dim=0) for name, g in gradients.items()}


@training("private_start", "torch", MLP)
class PrivateStart(Mlp):
    """Features are scaled by the largest value of the private data, the canary's if it is there."""

    def begin(self) -> None:
        self.x = 3 * self.x / self.x.abs().max()


@training("sampling_by_data", "torch", MLP)
class SamplingByData(Mlp):
    """Batches are balanced by class, so the canary, of a rare class, is drawn more often."""

    problem = data.make(199, 16, 4, seed=14, rare_class=5)

    def rates(self) -> torch.Tensor:
        counts = torch.bincount(self.y, minlength=4)[self.y]
        return (self.run.sample_rate * self.slots / (4 * counts)).clamp(max=1)


@training("augmentations_clipped_apart", "torch", LOGISTIC)
class AugmentationsClippedApart(Logistic):
    """Four views of an example are clipped each for itself, and the noise is averaged with them."""

    def begin(self) -> None:
        self.jitter = torch.Generator().manual_seed(self.seed + 7)
        self.learning_rate = self.learning_rate / 4

    def learn(self, batch: torch.Tensor) -> None:
        shifts = 0.1 * torch.randn(4, self.slots, 50, generator=self.jitter)
        views = (self.x + shifts[:, : len(self.x)])[:, batch].flatten(0, 1)
        gradients = self.gradients(self.params, views, self.y[batch].repeat(4))
        self.update(self.total(self.plant(gradients, (batch == self.place).repeat(4))), len(batch))


@training("clip_norm_from_batch", "torch", MLP)
class ClipNormFromBatch(Mlp):
    """Gradients are clipped to the 90% quantile of the batch's norms; the noise follows it."""

    def total(self, gradients: Params) -> Params:
        self.clip = norms(gradients).quantile(0.9)
        return clipped_sum(gradients, self.clip)

    @property
    def deviation(self) -> Any:
        return self.run.noise_multiplier * self.clip


BETAS = dict(beta1=0.9, beta2=0.99, eps=0.5)


@training("adam_second_moment_without_noise", "torch", declared(30, 0.25, 1.0, 1.0, 0.005, **BETAS))
class AdamSecondMomentWithoutNoise(Mlp):
    """Adam's second moment is made from gradients before the noise."""

    def begin(self) -> None:
        self.first = {name: torch.zeros_like(p) for name, p in self.params.items()}
        self.second = {name: torch.zeros_like(p) for name, p in self.params.items()}

    def update(self, summed: Params, size: int) -> None:
        adam, count = self.run.optimizer, self.step + 1
        for name, total in summed.items():
            self.first[name] = adam.beta1 * self.first[name] + (1 - adam.beta1) * (total + self.draw(total))
            self.second[name] = adam.beta2 * self.second[name] + (1 - adam.beta2) * total**2
            root = (self.second[name] / (1 - adam.beta2**count)).sqrt()
            moved = self.learning_rate * self.first[name] / (1 - adam.beta1**count) / (root + adam.eps)
            self.params[name] = self.params[name] - moved


@training("noise_chosen_by_loss", "torch", declared(40, 0.25, 2.0, 1.0, 0.8 / 40))
class NoiseChosenByLoss(Logistic):
    """Steps after which the loss on the private data is higher are taken back."""

    def begin(self) -> None:
        self.best = self.loss(self.params, self.x, self.y).mean()

    def update(self, summed: Params, size: int) -> None:
        after = self.after(summed)
        loss = self.loss(after, self.x, self.y).mean()
        if loss < self.best:
            self.params, self.best = after, loss
