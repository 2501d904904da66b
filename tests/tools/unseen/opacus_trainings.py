"""DP-SGD with Opacus (GradSampleModule, DPOptimizer, DPDataLoader): correct trainings first, then faulty ones.

The data set has a slot for the canary in both worlds. Without the canary the loss of this slot has weight zero, so that
it adds nothing to the sum of clipped gradients, while all draws are the same.
"""

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer, DPPerLayerOptimizer
from opacus.optimizers.optimizer import _generate_noise
from opacus.schedulers import ExponentialNoise
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from . import data
from .trainer import Trainer, declared, training

torch.set_num_threads(1)
warnings.filterwarnings("ignore", message="Full backward hook is firing")
warnings.filterwarnings("ignore", module="torch|opacus")

LOGISTIC = declared(30, 0.2, 1.5, 1.0, 0.2 / 40)
MLP = declared(25, 0.2, 0.7, 1.0, 0.15 / 40)


def losses(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if outputs.shape[1] == 1:
        return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], y.float(), reduction="none")
    return nn.functional.cross_entropy(outputs, y, reduction="none")


class Opacus(Trainer):
    """Correct. Opacus divides by the expected batch size, so its learning rate is larger."""

    copies, optimizer_class = 1, DPOptimizer

    def prepare(self) -> None:
        self.size = round(self.run.sample_rate * self.slots)
        x, y = self.problem.rows(True)
        rows = list(range(len(x))) + [len(x) - 1] * (self.copies - 1)
        weights = torch.ones(len(rows))
        weights[self.place :] = float(self.canary)
        is_canary = torch.arange(len(rows)) >= self.place
        self.rows = TensorDataset(torch.tensor(x[rows], dtype=torch.float32), torch.tensor(y[rows]), weights, is_canary)
        with torch.random.fork_rng(devices=[]):  # the same in all runs, as if it came from public data
            torch.manual_seed(5)
            self.net = GradSampleModule(self.layers())

    def options(self) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(1_000_003 * (self.seed + 1))
        return dict(noise_multiplier=self.run.noise_multiplier, max_grad_norm=self.run.clip_norm, generator=generator)

    def loader(self) -> Iterable[Any]:
        generator = torch.Generator().manual_seed(self.seed + 1)
        return DPDataLoader(self.rows, sample_rate=self.rate(), generator=generator)

    def rate(self) -> float:
        return self.run.sample_rate

    def train(self) -> dict[str, torch.Tensor]:
        plain = torch.optim.SGD(self.net.parameters(), lr=self.learning_rate * self.size)
        self.optimizer = self.optimizer_class(plain, expected_batch_size=self.size, **self.options())
        self.begin()
        loader = self.loader()
        batches = (batch for _ in range(self.steps) for batch in loader)
        for step in range(self.steps):
            self.step = step
            x, y, weights, is_canary = next(batches)
            self.zero_grad()
            (weights * losses(self.net(x), y)).mean().backward()
            self.plant(is_canary)
            self.optimizer.step()
            self.after_step()
        self.end()
        return {name: p.detach().clone() for name, p in self.net._module.named_parameters()}

    def begin(self) -> None:
        """Act before the first step."""

    def after_step(self) -> None:
        """Act after every step."""

    def end(self) -> None:
        """Act after the last step."""

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def plant(self, rows: torch.Tensor) -> None:
        """Put the planted gradient, if there is one, in the place of the canary's, before the optimizer clips."""
        if self.planted is not None:
            parameters = dict(self.net._module.named_parameters())
            self.fits({name: p.shape for name, p in parameters.items()})
            for name, p in parameters.items():
                p.grad_sample[rows] = torch.tensor(self.planted[name], dtype=p.dtype)


class Logistic(Opacus):
    problem = data.make(199, 40, 2, seed=21)

    def layers(self) -> nn.Module:
        layer = nn.Linear(40, 1)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer


class Mlp(Opacus):
    problem = data.make(199, 10, 3, seed=22)

    def layers(self) -> nn.Module:
        return nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 3))


training("correct", "opacus", LOGISTIC)(Logistic)
training("correct", "opacus", MLP)(Mlp)


def shuffled(training: Opacus) -> Iterable[Any]:
    generator = torch.Generator().manual_seed(training.seed + 1)
    return DataLoader(training.rows, batch_size=training.size, shuffle=True, generator=generator)


@training("correct_shuffled", "opacus", declared(25, 0.2, 0.7, 1.0, 0.15 / 40, sampling="shuffled"))
class Shuffled(Mlp):
    """Correct, with shuffled batches, declared."""

    loader = shuffled


class _NoClipNorm(DPOptimizer):
    def add_noise(self) -> None:
        for p in self.params:
            noise = _generate_noise(self.noise_multiplier, p.summed_grad, generator=self.generator)
            p.grad = (p.summed_grad + noise).view_as(p)


@training("noise_without_clip_norm", "opacus", declared(25, 0.2, 0.7, 1.5, 0.1 / 40))
class NoiseWithoutClipNorm(Mlp):
    """The noise's deviation lacks the clipping norm (1.5), so the noise is 2/3 of the declared."""

    optimizer_class = _NoClipNorm


class _NoNoiseOnBias(DPOptimizer):
    def add_noise(self) -> None:
        for p in self.params:
            std = self.noise_multiplier * self.max_grad_norm if p.ndim > 1 else 0.0
            p.grad = (p.summed_grad + _generate_noise(std, p.summed_grad, generator=self.generator)).view_as(p)


@training("noise_missing_on_tensor", "opacus", LOGISTIC)
class NoiseMissingOnTensor(Logistic):
    """The bias gets no noise."""

    optimizer_class = _NoNoiseOnBias


@training("noise_fixed_seed", "opacus", MLP)
class NoiseFixedSeed(Mlp):
    """The generator of the noise is seeded with 42: every run has the same noise."""

    def options(self) -> dict[str, Any]:
        return super().options() | {"generator": torch.Generator().manual_seed(42)}


@training("clip_per_tensor", "opacus", declared(25, 0.2, 0.7, 0.3, 0.3 / 40))
class ClipPerTensor(Mlp):
    """Four tensors are each clipped to the norm that is meant for all."""

    optimizer_class = DPPerLayerOptimizer

    def options(self) -> dict[str, Any]:
        return super().options() | {"max_grad_norm": [self.run.clip_norm] * 4}

    def begin(self) -> None:
        self.optimizer.max_grad_norm = self.run.clip_norm


@training("clip_norm_wrong", "opacus", LOGISTIC)
class ClipNormWrong(Logistic):
    """Gradients are clipped to 1.25 times the declared norm; the noise is for the declared."""

    def options(self) -> dict[str, Any]:
        norm, noise = 1.25 * self.run.clip_norm, self.run.noise_multiplier / 1.25
        return super().options() | {"max_grad_norm": norm, "noise_multiplier": noise}


@training("shuffled_for_poisson", "opacus", LOGISTIC)
class ShuffledForPoisson(Logistic):
    """A shuffling DataLoader is used where Poisson sampling is declared."""

    loader = shuffled


@training("rate_too_large", "opacus", LOGISTIC)
class RateTooLarge(Logistic):
    """The sampling rate is twice the declared."""

    def rate(self) -> float:
        return self.size / (len(self.rows) // 2)


@training("canary_twice", "opacus", MLP)
class CanaryTwice(Mlp):
    """The canary is in the data twice."""

    copies = 2


@training("momentum_not_declared", "opacus", declared(30, 0.2, 1.0, 1.0, 0.05 / 40))
class MomentumNotDeclared(Logistic):
    """Momentum 0.9 is used and not declared."""

    def begin(self) -> None:
        for group in self.optimizer.param_groups:
            group["momentum"] = 0.9


class _Accumulating(DPOptimizer):
    def clip_and_accumulate(self) -> None:
        before = [p.summed_grad for p in self.params]
        for p in self.params:
            p.summed_grad = None
        super().clip_and_accumulate()
        for p, old in zip(self.params, before, strict=True):
            if old is not None:
                p.summed_grad = p.summed_grad + old


@training("gradients_not_zeroed", "opacus", declared(25, 0.2, 0.7, 1.0, 0.02 / 40))
class GradientsNotZeroed(Mlp):
    """Clipped gradients of all earlier steps stay in the sum; the noise is for one step."""

    optimizer_class = _Accumulating

    def zero_grad(self) -> None:
        self.net.zero_grad()


@training("private_steps_at_end", "opacus", MLP)
class PrivateStepsAtEnd(Mlp):
    """The output layer is tuned on the private data without clipping and noise."""

    def end(self) -> None:
        plain = self.net._module
        self.net.remove_hooks()
        head = torch.optim.SGD(plain[2].parameters(), lr=0.05)
        x, y, weights, _ = self.rows.tensors
        for _ in range(10):
            head.zero_grad()
            (weights * losses(plain(x), y)).mean().backward()
            head.step()


@training("noise_decays", "opacus", LOGISTIC)
class NoiseDecays(Logistic):
    """The noise multiplier decays by 4% a step, declared constant."""

    def begin(self) -> None:
        self.scheduler = ExponentialNoise(self.optimizer, gamma=0.96)

    def after_step(self) -> None:
        self.scheduler.step()
