"""DP-SGD in plain NumPy: correct trainings first, then faulty ones."""

import numpy as np

from . import data
from .trainer import Trainer, declared, training

Params = dict[str, np.ndarray]

LOGISTIC = declared(60, 0.2, 1.0, 1.0, 0.15 / 40)
MLP = declared(50, 0.2, 0.8, 1.0, 0.12 / 40)
HIDDEN = 16


def norms(gradients: Params) -> np.ndarray:
    """Return the norm of each example's gradient over all tensors."""
    return np.sqrt(sum((g.reshape(len(g), -1) ** 2).sum(axis=1) for g in gradients.values()))


class Numpy(Trainer):
    """Correct, with two generators that both worlds share; numbers are drawn for all slots in both."""

    def prepare(self) -> None:
        self.x, self.y = self.problem.rows(self.canary)
        self.batches, self.noise = np.random.default_rng([self.seed, 1]), np.random.default_rng([self.seed, 2])

    def train(self) -> Params:
        self.params = self.start()
        for step in range(self.steps):
            self.step = step
            batch = self.batch()
            self.update(self.total(self.plant(self.gradients(self.x[batch], self.y[batch]), batch)), len(batch))
        return self.params

    def plant(self, gradients: Params, batch: np.ndarray) -> Params:
        """Put the planted gradient, if there is one, in the place of the canary's."""
        if self.planted is not None:
            self.fits({name: g.shape[1:] for name, g in gradients.items()})
            for name, g in gradients.items():
                g[batch == self.place] = self.planted[name]
        return gradients

    def batch(self) -> np.ndarray:
        return np.flatnonzero(self.batches.random(self.slots)[: len(self.x)] < self.rates())

    def rates(self) -> float | np.ndarray:
        return self.run.sample_rate

    def clip(self, gradients: Params) -> float:
        return self.run.clip_norm

    def total(self, gradients: Params) -> Params:
        """Clip each example's gradient, and add them up."""
        factors = np.minimum(1, self.clip(gradients) / np.maximum(norms(gradients), 1e-12))
        return {name: np.tensordot(factors, g, 1) for name, g in gradients.items()}

    def draw(self, name: str, total: np.ndarray) -> np.ndarray | float:
        return self.noise.normal(0, self.deviation, total.shape)

    def after(self, summed: Params) -> Params:
        return {n: self.params[n] - self.learning_rate * (total + self.draw(n, total)) for n, total in summed.items()}

    def update(self, summed: Params, size: int) -> None:
        self.params = self.after(summed)


class Logistic(Numpy):
    problem = data.make(199, 20, 2, seed=1)

    def start(self) -> Params:
        return {"weights": np.zeros(20), "bias": np.zeros(1)}

    def gradients(self, x: np.ndarray, y: np.ndarray) -> Params:
        residuals = 1 / (1 + np.exp(-(x @ self.params["weights"] + self.params["bias"]))) - y
        return {"weights": residuals[:, None] * x, "bias": residuals[:, None]}

    def losses(self, params: Params) -> np.ndarray:
        logits = self.x @ params["weights"] + params["bias"]
        return np.logaddexp(0, logits) - self.y * logits


class Mlp(Numpy):
    problem = data.make(199, 12, 3, seed=2)

    def start(self) -> Params:
        """Return the initial model: the same in all runs, as if it came from public data."""
        rng = np.random.default_rng(5)
        w1, w2 = rng.normal(0, 1 / np.sqrt(12), (12, HIDDEN)), rng.normal(0, 1 / np.sqrt(HIDDEN), (HIDDEN, 3))
        return {"w1": w1, "b1": np.zeros(HIDDEN), "w2": w2, "b2": np.zeros(3)}

    def forward(self, params: Params, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        hidden = np.maximum(x @ params["w1"] + params["b1"], 0)
        logits = hidden @ params["w2"] + params["b2"]
        logits = logits - logits.max(axis=1, keepdims=True)
        return hidden, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def gradients(self, x: np.ndarray, y: np.ndarray) -> Params:
        hidden, log_probabilities = self.forward(self.params, x)
        top = np.exp(log_probabilities) - np.eye(3)[y]
        below = (top @ self.params["w2"].T) * (hidden > 0)
        w1, w2 = x[:, :, None] * below[:, None, :], hidden[:, :, None] * top[:, None, :]
        return {"w1": w1, "b1": below, "w2": w2, "b2": top}

    def losses(self, params: Params) -> np.ndarray:
        return -self.forward(params, self.x)[1][np.arange(len(self.y)), self.y]


training("correct", "numpy", LOGISTIC)(Logistic)
training("correct", "numpy", MLP)(Mlp)


@training("correct_fixed_size", "numpy", declared(60, 0.2, 1.0, 1.0, 0.15 / 40, sampling="fixed"))
class FixedSize(Logistic):
    """Correct: the canary's slot is drawn in both worlds; without the canary it adds nothing."""

    def batch(self) -> np.ndarray:
        batch = self.batches.permutation(self.slots)[: round(self.run.sample_rate * self.slots)]
        return batch[batch < len(self.x)]


@training("correct_unpaired", "numpy", LOGISTIC)
class Unpaired(Logistic):
    """Correct: one generator, and a random place of the canary, so that worlds share no randomness."""

    def prepare(self) -> None:
        rng = self.batches = self.noise = np.random.default_rng(self.seed)
        problem = self.problem
        self.x, self.y, self.place = problem.x, problem.y, -1
        if self.canary:
            self.place = rng.integers(len(self.x) + 1)
            self.x = np.insert(self.x, self.place, problem.canary_x, axis=0)
            self.y = np.insert(self.y, self.place, problem.canary_y)
        self.slots = len(self.x)


@training("noise_without_clip_norm", "numpy", declared(60, 0.2, 1.0, 2.0, 0.08 / 40))
class NoiseWithoutClipNorm(Logistic):
    """The noise's deviation lacks the clipping norm (2), so the noise is half the declared."""

    @property
    def deviation(self) -> float:
        return self.run.noise_multiplier


@training("noise_variance_as_deviation", "numpy", declared(50, 0.2, 1.5, 1.0, 0.12 / 40))
class NoiseVarianceAsDeviation(Mlp):
    """The noise's deviation is a square root: 0.82 of the declared."""

    @property
    def deviation(self) -> float:
        return np.sqrt(self.run.noise_multiplier) * self.run.clip_norm


@training("noise_missing_on_tensor", "numpy", MLP)
class NoiseMissingOnTensor(Mlp):
    """The output layer gets no noise."""

    def draw(self, name: str, total: np.ndarray) -> np.ndarray | float:
        return super().draw(name, total) if name in ("w1", "b1") else 0.0


@training("clip_of_batch", "numpy", LOGISTIC)
class ClipOfBatch(Logistic):
    """The mean gradient of the batch is clipped, not each example's."""

    def total(self, gradients: Params) -> Params:
        size = self.run.sample_rate * self.slots
        mean = {name: g.sum(axis=0) / size for name, g in gradients.items()}
        norm = np.sqrt(sum((g**2).sum() for g in mean.values()))
        return {name: size * g * min(1, self.run.clip_norm / norm) for name, g in mean.items()}


@training("real_batch_size", "numpy", declared(60, 0.1, 1.0, 1.0, 0.15 / 12))
class RealBatchSize(Logistic):
    """The noisy sum is divided by the real instead of the expected batch size (12)."""

    problem = data.make(119, 20, 2, seed=4)

    def update(self, summed: Params, size: int) -> None:
        self.learning_rate = self.run.optimizer.learning_rate * self.run.sample_rate * self.slots / max(size, 1)
        self.params = self.after(summed)


@training("rate_too_large", "numpy", MLP)
class RateTooLarge(Mlp):
    """The sampling rate is 1.3 times the declared."""

    def rates(self) -> float:
        return 1.3 * self.run.sample_rate


@training("private_start", "numpy", LOGISTIC)
class PrivateStart(Logistic):
    """Training starts at a least-squares fit to the private data."""

    def start(self) -> Params:
        columns = np.hstack([self.x, np.ones((len(self.x), 1))])
        fit = np.linalg.solve(columns.T @ columns + np.eye(21), columns.T @ (2.0 * self.y - 1))
        return {"weights": fit[:20], "bias": fit[20:]}


@training("antithetic_noise", "numpy", LOGISTIC)
class AntitheticNoise(Logistic):
    """Every second noise is minus the one before, so the noise cancels."""

    def prepare(self) -> None:
        super().prepare()
        self.drawn: Params = {}

    def draw(self, name: str, total: np.ndarray) -> np.ndarray | float:
        self.drawn[name] = -self.drawn[name] if self.step % 2 else super().draw(name, total)
        return self.drawn[name]


@training("noise_decays", "numpy", MLP)
class NoiseDecays(Mlp):
    """The noise multiplier decays to 0.3 of the declared over the run, declared constant."""

    @property
    def deviation(self) -> float:
        return self.run.noise_multiplier * (1 - 0.7 * self.step / self.run.steps) * self.run.clip_norm


@training("sampling_by_data", "numpy", LOGISTIC)
class SamplingByData(Logistic):
    """Examples with a large loss are drawn more often, the canary nearly always."""

    def rates(self) -> np.ndarray:
        losses = self.losses(self.params)
        return np.clip(self.run.sample_rate * losses / losses.mean(), 0, 1)


@training("clip_norm_from_batch", "numpy", declared(60, 0.2, 1.0, 1.0, 0.04 / 40))
class ClipNormFromBatch(Logistic):
    """Gradients are clipped to the median norm of the batch; the noise is for the declared norm."""

    def clip(self, gradients: Params) -> float:
        return float(np.median(norms(gradients)))


@training("noise_chosen_by_loss", "numpy", MLP)
class NoiseChosenByLoss(Mlp):
    """Of four draws of the noise the one with the lowest loss on the private data is kept."""

    def update(self, summed: Params, size: int) -> None:
        self.params = min((self.after(summed) for _ in range(4)), key=lambda params: self.losses(params).mean())


@training("sparse_noise", "numpy", MLP)
class SparseNoise(Mlp):
    """Noise is added only where the gradient is not zero; only the canary has the last feature."""

    problem = data.make(199, 12, 3, seed=3, rare_feature=True)

    def draw(self, name: str, total: np.ndarray) -> np.ndarray | float:
        return (total != 0) * super().draw(name, total)
