"""DP-SGD in NumPy with switches: trainings of many correct kinds, and one switch for each way to get it wrong."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.stats import norm

import lastiterate as li
from tests.shuffling import epoch_length

Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class Numpy:
    """A trainer ``(seed, canary, steps) -> parameters``; the canary has a place of its own, the last, in both worlds.

    ``fault`` is one of ``FAULTS``, with ``size`` where it has one.
    """

    run: li.DPSGD
    model: str = "softmax"  # "softmax", "mlp", "mean", "linear"
    examples: int = 200
    features: int = 20
    classes: int = 5
    fault: str | None = None
    size: float = 1.0
    shared: bool = True  # whether noise and batches are the same in both worlds
    dtype: Any = np.float64
    data_seed: int = 0
    calls: list[Any] = field(default_factory=list)

    @cached_property
    def data(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(self.data_seed)
        x = rng.standard_normal((self.examples, self.features))
        x[:, : self.features // 4] = 0.0  # quiet coordinates, as the edges of images
        return x, rng.integers(0, self.classes, self.examples)

    @property
    def batch(self) -> float:
        return float(np.mean(self.run.sample_rate)) * (self.examples + 1)

    def initial(self, seed: int = 0) -> Tensors:
        rng = np.random.default_rng(7)
        n, k = self.features, self.classes
        if self.model == "mlp":
            return {
                "w1": rng.standard_normal((n, 8)) / np.sqrt(n),
                "b1": np.zeros(8),
                "w2": rng.standard_normal((8, k)) / np.sqrt(8),
                "b2": np.zeros(k),
            }
        if self.model in ("mean", "linear"):
            return {"m": np.zeros(n * k)}
        return {"w": np.zeros((n, k)), "b": np.zeros(k)}

    def gradients(self, p: Tensors, which: np.ndarray) -> Tensors:
        """One gradient for each example of a batch, along a leading axis."""
        x, y = self.data[0][which], self.data[1][which]
        if self.model in ("mean", "linear"):
            points = np.tile(x, (1, self.classes)) / np.sqrt(self.features)
            return {"m": (p["m"] if self.model == "mean" else 0.0) - points}
        hidden = np.tanh(x @ p["w1"] + p["b1"]) if self.model == "mlp" else x
        last_w, last_b = ("w2", "b2") if self.model == "mlp" else ("w", "b")
        logits = hidden @ p[last_w] + p[last_b]
        error = np.exp(logits - logits.max(axis=1, keepdims=True))
        error /= error.sum(axis=1, keepdims=True)
        error[np.arange(len(y)), y] -= 1.0
        found = {last_w: hidden[:, :, None] * error[:, None, :], last_b: error}
        if self.model == "mlp":
            back = (error @ p["w2"].T) * (1.0 - hidden**2)
            found = {"w1": x[:, :, None] * back[:, None, :], "b1": back, **found}
        return found

    def clip(self, g: Tensors) -> Tensors:
        """Clip per-example gradients, along the leading axis."""
        norm = self.run.clip_norm * (self.size if self.fault == "clip norm" else 1.0)

        def scaled(x: np.ndarray, axes: Any) -> np.ndarray:
            return x * np.minimum(1.0, norm / np.maximum(np.sqrt((x**2).sum(axis=axes, keepdims=True)), 1e-30))

        match self.fault:
            case "no clipping":
                return g
            case "by layer":
                return {k: scaled(v, tuple(range(1, v.ndim))) for k, v in g.items()}
            case "by column":
                return {k: scaled(v, 1) for k, v in g.items()}
            case "by coordinate":
                return {k: np.clip(v, -norm, norm) for k, v in g.items()}
        counted = {k: v for k, v in g.items() if not (self.fault == "bias not in norm" and k.startswith("b"))}
        length = np.sqrt(sum((v**2).sum(axis=tuple(range(1, v.ndim))) for v in counted.values()))
        if self.fault == "l1 norm":
            length = sum(np.abs(v).sum(axis=tuple(range(1, v.ndim))) for v in counted.values())
        factor = norm / np.maximum(length, 1e-30)
        if self.fault != "normalise":
            factor = np.minimum(1.0, factor)
        if self.fault == "bias not clipped":
            return {k: v if k.startswith("b") else v * _wide(factor, v) for k, v in g.items()}
        return {k: v * _wide(factor, v) for k, v in g.items()}

    def clipped_sum(self, g: Tensors) -> Tensors:
        if self.fault == "after averaging":
            total = {k: v.sum(axis=0, keepdims=True) for k, v in g.items()}
            return {k: v[0] for k, v in self.clip(total).items()}
        if self.fault == "micro-batches":
            count = next(iter(g.values())).shape[0]
            parts = np.array_split(np.arange(count), max(1, count // 4))
            means = {k: np.stack([v[part].mean(axis=0) for part in parts]) for k, v in g.items()}
            return {k: 4.0 * v.sum(axis=0) for k, v in self.clip(means).items()}
        return {k: v.sum(axis=0) for k, v in self.clip(g).items()}

    def batches(self, rng: np.random.Generator, step: int, order: np.ndarray) -> tuple[np.ndarray, int]:
        """Examples of a batch, and how often the canary is in it."""
        run, places = self.run, self.examples + 1
        rate = float(np.broadcast_to(run.sample_rate, run.steps)[min(step, run.steps - 1)])
        if self.fault == "sample rate":
            rate = min(1.0, rate * self.size)
        sampling = {"poisson instead": "poisson", "shuffled instead": "shuffled", "bins instead": "balls-in-bins"}.get(
            str(self.fault), run.sampling
        )
        if sampling == "poisson":
            drawn = np.flatnonzero(rng.random(places) < rate)
        elif sampling == "full":
            drawn = np.arange(places)
        elif sampling == "fixed":
            drawn = rng.permutation(places)[: round(rate * places)]
        elif sampling == "balls-in-bins":
            if step % round(1.0 / rate) == 0:
                order[:] = rng.integers(0, round(1.0 / rate), places)
            drawn = np.flatnonzero(order == step % round(1.0 / rate))
        else:
            length = int(1.0 / rate) if self.fault == "drop last" else epoch_length(rate)
            if step % length == 0:
                order[:] = rng.permutation(places)
            size = round(rate * places)
            drawn = order[(step % length) * size : (step % length + 1) * size]
        if self.fault == "replacement":
            drawn = rng.integers(0, places, rng.binomial(places, rate))
        times = int(np.count_nonzero(drawn == self.examples))
        if self.fault == "always in":
            times = 1
        if self.fault == "twice":
            times *= 2
        return drawn[drawn != self.examples], times

    def noise(self, rng: np.random.Generator, p: Tensors, step: int, seed: int, kept: dict[str, Any]) -> Tensors:
        run = self.run
        sigma = float(np.broadcast_to(run.noise_multiplier, run.steps)[min(step, run.steps - 1)]) * run.clip_norm
        drawn = {k: sigma * rng.standard_normal(v.shape) for k, v in p.items()}
        if self.fault == "one key":  # the first number of the noise decides whether the canary is in the batch
            first = next(iter(drawn.values()))
            first.flat[0] = sigma * norm.ppf(kept["uniform"])
        if run.noise_filter is not None and self.fault != "no filter":
            past = kept.setdefault("past", [])
            past.insert(0, drawn)
            drawn = {k: sum(c * z[k] for c, z in zip(run.noise_filter, past, strict=False)) for k in p}
        match self.fault:
            case "noise":
                return {k: self.size * v for k, v in drawn.items()}
            case "uniform":
                return {k: sigma * rng.uniform(-(3.0**0.5), 3.0**0.5, v.shape) for k, v in p.items()}
            case "laplace":
                return {k: rng.laplace(0.0, sigma / 2.0**0.5, v.shape) for k, v in p.items()}
            case "few values":
                return {
                    k: np.where(np.arange(v.size).reshape(v.shape) < 3, 1.1 * np.round(v), v) for k, v in drawn.items()
                }
            case "no noise in the last step" if step == run.steps - 1:
                return {k: 0.0 * v for k, v in drawn.items()}
            case "every other step" if step % 2:
                return {k: 0.0 * v for k, v in drawn.items()}
            case "no noise on biases":
                return {k: v * (not k.startswith("b")) for k, v in drawn.items()}
            case "no noise":
                return {k: 0.0 * v for k, v in drawn.items()}
            case "antithetic":
                if step % 2:
                    return {k: -v for k, v in kept["last"].items()}
                kept["last"] = drawn
            case "repeated":
                return kept.setdefault("first", drawn)
            case "same in all":
                again = np.random.default_rng(step)
                return {k: sigma * again.standard_normal(v.shape) for k, v in p.items()}
            case "same in tensors":
                return {
                    k: sigma * np.random.default_rng([seed, step]).standard_normal(v.size).reshape(v.shape)
                    for k, v in p.items()
                }
        return drawn

    def __call__(self, seed: int, canary: Any, steps: int | None = None) -> Tensors:
        self.calls.append((seed, canary, steps))
        run, sgd = self.run, self.run.optimizer or li.SGD()
        stop = run.steps if steps is None or self.fault == "ignores steps" else steps
        stop += self.fault == "a step more"
        if self.fault == "unseeded":
            seed = len(self.calls)
        if self.fault == "one seed":
            seed = 1
        world = 0 if self.shared else int(canary is not False)
        drawing, noising = (np.random.default_rng([seed, i, world]) for i in range(2))
        p = {k: v.astype(self.dtype) for k, v in self.initial(seed).items()}
        state: dict[str, Any] = {"average": {k: 0.0 * v for k, v in p.items()}, "moving": dict(p)}
        kept: dict[str, Any] = {}
        order = np.arange(self.examples + 1)
        for step in range(stop):
            drawn, times = self.batches(drawing, step, order)
            if self.fault == "one key":
                kept["uniform"] = drawing.random()
                times = int(kept["uniform"] < run.sample_rate)
            g = self.gradients(p, drawn)
            if times and canary is not False:
                given = self.example() if canary is True else canary
                g = {k: np.concatenate([v, *([given[k][None]] * times)]) for k, v in g.items()}
            count = next(iter(g.values())).shape[0]
            total = self.clipped_sum(g)
            noise = self.noise(noising, p, step, seed, kept)
            scale = 1.0
            if self.fault == "realised batch":
                scale = self.batch / max(count, 1)
            if self.fault == "mean rate":
                scale = 1.0 / self.batch
            if self.fault == "rate":
                scale = self.size
            gradient = {k: scale * (total[k] + noise[k]) for k in p}
            if self.fault == "not zeroed":
                gradient = {k: v + kept.get(("gradient", k), 0.0) for k, v in gradient.items()}
                kept.update({("gradient", k): v for k, v in gradient.items()})
            p = {k: v.astype(self.dtype) for k, v in self.update(p, gradient, sgd, step, state).items()}
        if sgd.averaging is None or self.fault == "no averaging":
            return p
        return (
            {k: v / max(stop, 1) for k, v in state["average"].items()}
            if sgd.averaging == "uniform"
            else state["moving"]
        )

    def example(self) -> Tensors:
        rng = np.random.default_rng(3)
        return {k: 10.0 * rng.standard_normal(v.shape) for k, v in self.initial().items()}

    def update(self, p: Tensors, gradient: Tensors, sgd: li.SGD, step: int, state: dict[str, Any]) -> Tensors:
        rate = float(np.broadcast_to(sgd.learning_rate, self.run.steps)[min(step, self.run.steps - 1)])
        if isinstance(sgd, li.Adam):
            return {k: _adam(sgd, k, v, gradient[k], rate, step + 1, state) for k, v in p.items()}
        if self.fault == "no schedule":
            rate = float(np.mean(sgd.learning_rate))
        momentum = 0.0 if self.fault == "no momentum" else sgd.momentum
        decay = self.size if self.fault == "decay" else sgd.weight_decay
        new = {}
        for k, v in p.items():
            g = gradient[k] + (0.0 if sgd.decoupled else decay * v)
            start = v * (1.0 - rate * decay) if sgd.decoupled else v
            if momentum:
                before = state.get(("buffer", k))
                buffer = g if before is None else momentum * before + (1.0 - sgd.dampening) * g
                state["buffer", k] = buffer
                g = g + momentum * buffer if sgd.nesterov else buffer
            new[k] = start - rate * g
            state["average"][k] = state["average"][k] + new[k]
            if isinstance(sgd.averaging, float):
                state["moving"][k] = sgd.averaging * state["moving"][k] + (1.0 - sgd.averaging) * new[k]
        return new


def _adam(
    adam: li.Adam, k: str, p: np.ndarray, g: np.ndarray, rate: float, t: int, state: dict[str, Any]
) -> np.ndarray:
    if adam.decoupled:
        p = p * (1.0 - rate * adam.weight_decay)
    else:
        g = g + adam.weight_decay * p
    m = adam.beta1 * state.get(("m", k), 0.0) + (1.0 - adam.beta1) * g
    v = adam.beta2 * state.get(("v", k), 0.0) + (1.0 - adam.beta2) * g**2
    state["m", k], state["v", k] = m, v
    return p - rate * m / (1.0 - adam.beta1**t) / (np.sqrt(v / (1.0 - adam.beta2**t)) + adam.eps)


def _wide(factor: np.ndarray, like: np.ndarray) -> np.ndarray:
    return factor.reshape((-1,) + (1,) * (like.ndim - 1))


def short(**changes: Any) -> li.DPSGD:
    """A short training that shows everything."""
    usual = dict(steps=10, sample_rate=0.2, noise_multiplier=1.0, optimizer=li.SGD(0.002))
    return li.DPSGD(**(usual | changes))


Trainer = Callable[[int, Any], Any]
