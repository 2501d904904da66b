"""DP-SGD in plain NumPy: correct trainings first, then faulty ones."""

from __future__ import annotations

import numpy as np

from . import data
from .declared import Run, fits, training

Params = dict[str, np.ndarray]

LOGISTIC = data.make(199, 20, 2, seed=1)
MLP = data.make(199, 12, 3, seed=2)
SPARSE = data.make(199, 12, 3, seed=3, rare_feature=True)
FEW = data.make(119, 20, 2, seed=4)
HIDDEN = 16


def streams(seed: int) -> tuple[np.random.Generator, np.random.Generator]:
    """Return one generator for batches and one for noise."""
    batches, noise = np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2])
    return batches, noise


def poisson(rng: np.random.Generator, rate: float, slots: int, count: int) -> np.ndarray:
    """Return a Poisson batch. Numbers are drawn for all slots, so that both worlds draw the same."""
    return np.flatnonzero(rng.random(slots)[:count] < rate)


def logistic_start() -> Params:
    return {"weights": np.zeros(20), "bias": np.zeros(1)}


def logistic_gradients(params: Params, x: np.ndarray, y: np.ndarray) -> Params:
    """Return the gradients of the logistic loss, one for each example."""
    residuals = 1 / (1 + np.exp(-(x @ params["weights"] + params["bias"]))) - y
    return {"weights": residuals[:, None] * x, "bias": residuals[:, None]}


def logistic_losses(params: Params, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    logits = x @ params["weights"] + params["bias"]
    return np.logaddexp(0, logits) - y * logits


def mlp_start() -> Params:
    """Return the initial model: the same in all runs, as if it came from public data."""
    rng = np.random.default_rng(5)
    return {
        "w1": rng.normal(0, 1 / np.sqrt(12), (12, HIDDEN)),
        "b1": np.zeros(HIDDEN),
        "w2": rng.normal(0, 1 / np.sqrt(HIDDEN), (HIDDEN, 3)),
        "b2": np.zeros(3),
    }


def mlp_forward(params: Params, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    hidden = np.maximum(x @ params["w1"] + params["b1"], 0)
    logits = hidden @ params["w2"] + params["b2"]
    logits = logits - logits.max(axis=1, keepdims=True)
    return hidden, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def mlp_gradients(params: Params, x: np.ndarray, y: np.ndarray) -> Params:
    """Return the gradients of the cross-entropy, one for each example."""
    hidden, log_probabilities = mlp_forward(params, x)
    top = np.exp(log_probabilities) - np.eye(3)[y]
    below = (top @ params["w2"].T) * (hidden > 0)
    return {
        "w1": x[:, :, None] * below[:, None, :],
        "b1": below,
        "w2": hidden[:, :, None] * top[:, None, :],
        "b2": top,
    }


def mlp_losses(params: Params, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return -mlp_forward(params, x)[1][np.arange(len(y)), y]


def plant(run: Run, gradients: Params, rows: np.ndarray) -> Params:
    """Put the planted gradient, if there is one, into those rows of the examples' gradients that are the canary's."""
    if run.planted is None:
        return gradients
    fits(run.planted, {name: g.shape[1:] for name, g in gradients.items()})
    gradients = {name: g.copy() for name, g in gradients.items()}
    for name, g in gradients.items():
        g[rows] = run.planted[name]
    return gradients


def norms(gradients: Params) -> np.ndarray:
    """Return the norm of each example's gradient over all tensors."""
    return np.sqrt(sum((g.reshape(len(g), -1) ** 2).sum(axis=1) for g in gradients.values()))


def clipped_sum(gradients: Params, clip: float) -> Params:
    """Clip each example's gradient to ``clip``, and add them up."""
    factors = np.minimum(1, clip / np.maximum(norms(gradients), 1e-12))
    return {name: np.tensordot(factors, g, 1) for name, g in gradients.items()}


# --------------------------------------------------------------------------------------------------------- correct


@training("numpy")
def correct_logistic(run: Run, seed: int, canary: bool) -> Params:
    x, y = LOGISTIC.rows(canary)
    batches, noise = streams(seed)
    params = logistic_start()
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, LOGISTIC.slots(), len(x))
        gradients = plant(run, logistic_gradients(params, x[batch], y[batch]), batch == LOGISTIC.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + noise.normal(0, run.noise * run.clip, total.shape))
    return params


@training("numpy")
def correct_mlp(run: Run, seed: int, canary: bool) -> Params:
    x, y = MLP.rows(canary)
    batches, noise = streams(seed)
    params = mlp_start()
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, MLP.slots(), len(x))
        gradients = plant(run, mlp_gradients(params, x[batch], y[batch]), batch == MLP.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + noise.normal(0, run.noise * run.clip, total.shape))
    return params


@training("numpy")
def correct_fixed_size_logistic(run: Run, seed: int, canary: bool) -> Params:
    # The canary's slot is drawn in both worlds; without the canary it adds nothing (zero-out neighbours).
    x, y = LOGISTIC.rows(canary)
    batches, noise = streams(seed)
    params = logistic_start()
    size = round(run.rate * LOGISTIC.slots())
    for _ in range(run.steps):
        batch = batches.permutation(LOGISTIC.slots())[:size]
        batch = batch[batch < len(x)]
        gradients = plant(run, logistic_gradients(params, x[batch], y[batch]), batch == LOGISTIC.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + noise.normal(0, run.noise * run.clip, total.shape))
    return params


@training("numpy")
def correct_unpaired_logistic(run: Run, seed: int, canary: bool) -> Params:
    # One generator for everything. The canary's place is drawn only if there is a canary, so worlds share nothing.
    rng = np.random.default_rng(seed)
    x, y, place = LOGISTIC.x, LOGISTIC.y, -1
    if canary:
        place = rng.integers(len(x) + 1)
        x, y = np.insert(x, place, LOGISTIC.canary_x, axis=0), np.insert(y, place, LOGISTIC.canary_y)
    params = logistic_start()
    for _ in range(run.steps):
        batch = np.flatnonzero(rng.random(len(x)) < run.rate)
        gradients = plant(run, logistic_gradients(params, x[batch], y[batch]), batch == place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + rng.normal(0, run.noise * run.clip, total.shape))
    return params


# ---------------------------------------------------------------------------------------------------------- faults


@training("numpy")
def noise_without_clip_norm_logistic(run: Run, seed: int, canary: bool) -> Params:
    x, y = LOGISTIC.rows(canary)
    batches, noise = streams(seed)
    params = logistic_start()
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, LOGISTIC.slots(), len(x))
        gradients = plant(run, logistic_gradients(params, x[batch], y[batch]), batch == LOGISTIC.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + noise.normal(0, run.noise, total.shape))  # Fault: no clip.
    return params


@training("numpy")
def noise_variance_as_deviation_mlp(run: Run, seed: int, canary: bool) -> Params:
    x, y = MLP.rows(canary)
    batches, noise = streams(seed)
    params = mlp_start()
    deviation = np.sqrt(run.noise) * run.clip  # Fault: the multiplier is taken for a variance.
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, MLP.slots(), len(x))
        gradients = plant(run, mlp_gradients(params, x[batch], y[batch]), batch == MLP.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + noise.normal(0, deviation, total.shape))
    return params


@training("numpy")
def noise_missing_on_tensor_mlp(run: Run, seed: int, canary: bool) -> Params:
    x, y = MLP.rows(canary)
    batches, noise = streams(seed)
    params = mlp_start()
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, MLP.slots(), len(x))
        gradients = plant(run, mlp_gradients(params, x[batch], y[batch]), batch == MLP.place)
        summed = clipped_sum(gradients, run.clip)
        for name in ("w1", "b1"):  # Fault: the output layer gets no noise.
            summed[name] = summed[name] + noise.normal(0, run.noise * run.clip, summed[name].shape)
        for name, total in summed.items():
            params[name] -= run.learning_rate * total
    return params


@training("numpy")
def clip_of_batch_logistic(run: Run, seed: int, canary: bool) -> Params:
    x, y = LOGISTIC.rows(canary)
    batches, noise = streams(seed)
    params = logistic_start()
    size = run.rate * LOGISTIC.slots()
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, LOGISTIC.slots(), len(x))
        gradients = plant(run, logistic_gradients(params, x[batch], y[batch]), batch == LOGISTIC.place)
        mean = {name: g.sum(axis=0) / size for name, g in gradients.items()}
        norm = np.sqrt(sum((g**2).sum() for g in mean.values()))
        for name, g in mean.items():
            clipped = g * min(1, run.clip / norm)  # Fault: the mean is clipped, not each example.
            step = clipped + noise.normal(0, run.noise * run.clip / size, g.shape)
            params[name] -= run.learning_rate * size * step
    return params


@training("numpy")
def real_batch_size_logistic(run: Run, seed: int, canary: bool) -> Params:
    x, y = FEW.rows(canary)
    batches, noise = streams(seed)
    params = logistic_start()
    rate_of_mean = run.learning_rate * run.rate * FEW.slots()
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, FEW.slots(), len(x))
        gradients = plant(run, logistic_gradients(params, x[batch], y[batch]), batch == FEW.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            noisy = total + noise.normal(0, run.noise * run.clip, total.shape)
            params[name] -= rate_of_mean * noisy / max(len(batch), 1)  # Fault: real instead of expected size.
    return params


@training("numpy")
def rate_too_large_mlp(run: Run, seed: int, canary: bool) -> Params:
    x, y = MLP.rows(canary)
    batches, noise = streams(seed)
    params = mlp_start()
    for _ in range(run.steps):
        batch = poisson(batches, 1.3 * run.rate, MLP.slots(), len(x))  # Fault: 30% more than declared.
        gradients = plant(run, mlp_gradients(params, x[batch], y[batch]), batch == MLP.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + noise.normal(0, run.noise * run.clip, total.shape))
    return params


@training("numpy")
def private_start_logistic(run: Run, seed: int, canary: bool) -> Params:
    x, y = LOGISTIC.rows(canary)
    batches, noise = streams(seed)
    # Fault: training starts at a least-squares fit to the private data.
    columns = np.hstack([x, np.ones((len(x), 1))])
    fit = np.linalg.solve(columns.T @ columns + np.eye(21), columns.T @ (2.0 * y - 1))
    params = {"weights": fit[:20].copy(), "bias": fit[20:].copy()}
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, LOGISTIC.slots(), len(x))
        gradients = plant(run, logistic_gradients(params, x[batch], y[batch]), batch == LOGISTIC.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + noise.normal(0, run.noise * run.clip, total.shape))
    return params


@training("numpy")
def antithetic_noise_logistic(run: Run, seed: int, canary: bool) -> Params:
    x, y = LOGISTIC.rows(canary)
    batches, noise = streams(seed)
    params = logistic_start()
    drawn: Params = {}
    for step in range(run.steps):
        batch = poisson(batches, run.rate, LOGISTIC.slots(), len(x))
        gradients = plant(run, logistic_gradients(params, x[batch], y[batch]), batch == LOGISTIC.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            if step % 2 == 0:
                drawn[name] = noise.normal(0, run.noise * run.clip, total.shape)
            else:
                drawn[name] = -drawn[name]  # Fault: every second noise takes back the one before.
            params[name] -= run.learning_rate * (total + drawn[name])
    return params


@training("numpy")
def noise_decays_mlp(run: Run, seed: int, canary: bool) -> Params:
    x, y = MLP.rows(canary)
    batches, noise = streams(seed)
    params = mlp_start()
    for step in range(run.steps):
        multiplier = run.noise * (1 - 0.7 * step / run.declared_steps)  # Fault: declared constant.
        batch = poisson(batches, run.rate, MLP.slots(), len(x))
        gradients = plant(run, mlp_gradients(params, x[batch], y[batch]), batch == MLP.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + noise.normal(0, multiplier * run.clip, total.shape))
    return params


@training("numpy")
def sampling_by_data_logistic(run: Run, seed: int, canary: bool) -> Params:
    x, y = LOGISTIC.rows(canary)
    batches, noise = streams(seed)
    params = logistic_start()
    for _ in range(run.steps):
        # Fault: examples with a large loss are drawn more often.
        losses = logistic_losses(params, x, y)
        rates = np.clip(run.rate * losses / losses.mean(), 0, 1)
        batch = np.flatnonzero(batches.random(LOGISTIC.slots())[: len(x)] < rates)
        gradients = plant(run, logistic_gradients(params, x[batch], y[batch]), batch == LOGISTIC.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + noise.normal(0, run.noise * run.clip, total.shape))
    return params


@training("numpy")
def clip_norm_from_batch_logistic(run: Run, seed: int, canary: bool) -> Params:
    x, y = LOGISTIC.rows(canary)
    batches, noise = streams(seed)
    params = logistic_start()
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, LOGISTIC.slots(), len(x))
        gradients = plant(run, logistic_gradients(params, x[batch], y[batch]), batch == LOGISTIC.place)
        clip = float(np.median(norms(gradients)))  # Fault: the clipping norm follows the private batch.
        summed = clipped_sum(gradients, clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + noise.normal(0, run.noise * run.clip, total.shape))
    return params


@training("numpy")
def noise_chosen_by_loss_mlp(run: Run, seed: int, canary: bool) -> Params:
    x, y = MLP.rows(canary)
    batches, noise = streams(seed)
    params = mlp_start()
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, MLP.slots(), len(x))
        gradients = plant(run, mlp_gradients(params, x[batch], y[batch]), batch == MLP.place)
        summed = clipped_sum(gradients, run.clip)
        candidates = []
        for _ in range(4):
            candidate = {
                name: params[name] - run.learning_rate * (total + noise.normal(0, run.noise * run.clip, total.shape))
                for name, total in summed.items()
            }
            candidates.append((mlp_losses(candidate, x, y).mean(), candidate))
        params = min(candidates, key=lambda pair: pair[0])[1]  # Fault: the best of four noises on private data.
    return params


@training("numpy")
def sparse_noise_mlp(run: Run, seed: int, canary: bool) -> Params:
    # The canary has a feature that no other example has.
    x, y = SPARSE.rows(canary)
    batches, noise = streams(seed)
    params = mlp_start()
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, SPARSE.slots(), len(x))
        gradients = plant(run, mlp_gradients(params, x[batch], y[batch]), batch == SPARSE.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            drawn = noise.normal(0, run.noise * run.clip, total.shape)
            touched = total != 0  # Fault: noise only where the gradient is not zero.
            params[name] -= run.learning_rate * (total + touched * drawn)
    return params


# ------------------------------------------------------------------------------------ faults that leave no trace


@training("numpy")
def noise_half_precision_logistic(run: Run, seed: int, canary: bool) -> Params:
    x, y = LOGISTIC.rows(canary)
    batches, noise = streams(seed)
    params = logistic_start()
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, LOGISTIC.slots(), len(x))
        gradients = plant(run, logistic_gradients(params, x[batch], y[batch]), batch == LOGISTIC.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            drawn = noise.normal(0, run.noise * run.clip, total.shape).astype(np.float16)  # Fault: has gaps.
            params[name] -= run.learning_rate * (total + drawn.astype(np.float64))
    return params


@training("numpy")
def noise_few_seeds_mlp(run: Run, seed: int, canary: bool) -> Params:
    x, y = MLP.rows(canary)
    batches, _ = streams(seed)
    # Fault: the noise is one of 2^20, all of which an attacker can try.
    noise = np.random.default_rng(int(np.random.default_rng([seed, 2]).integers(2**20)))
    params = mlp_start()
    for _ in range(run.steps):
        batch = poisson(batches, run.rate, MLP.slots(), len(x))
        gradients = plant(run, mlp_gradients(params, x[batch], y[batch]), batch == MLP.place)
        summed = clipped_sum(gradients, run.clip)
        for name, total in summed.items():
            params[name] -= run.learning_rate * (total + noise.normal(0, run.noise * run.clip, total.shape))
    return params
