"""Run every training, and measure that the correct ones are correct. ``python -m faults.sanity [name ...]``."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from . import data
from .catalogue import CORRECT, EXTRA, FAULTS, Training

SEEDS = 12


def flat(released: Any) -> np.ndarray:
    return np.concatenate([np.asarray(released[name], dtype=np.float64).ravel() for name in sorted(released)])


def shaped(vector: np.ndarray, like: Any) -> dict[str, np.ndarray]:
    """Undo ``flat``: return the vector in the form of the parameters."""
    parts, start = {}, 0
    for name in sorted(like):
        shape = np.asarray(like[name]).shape
        parts[name] = vector[start : start + int(np.prod(shape))].reshape(shape)
        start += parts[name].size
    assert start == len(vector)
    return {name: parts[name] for name in like}


def direction(training: Training, like: Any) -> np.ndarray:
    """Return a random direction of norm 1."""
    drawn = np.random.default_rng(len(training.name)).normal(size=len(flat(like)))
    return drawn / np.linalg.norm(drawn)


def problem_of(training: Training) -> data.Problem:
    """Return the data of a training."""
    import importlib

    module = importlib.import_module(f".{training.module}", __package__)
    kind = training.kind
    if kind == "real_batch_size":
        return module.FEW
    if kind == "sparse_noise":
        return module.SPARSE
    if kind == "sampling_by_data" and hasattr(module, "RARE"):
        return module.RARE
    return module.LOGISTIC if training.function.endswith("logistic") else module.MLP


def gradients(training: Training, params: dict[str, Any], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return one gradient for each row, flat as in ``flat``; computed apart from the trainings' own code."""
    p = {name: np.asarray(value, dtype=np.float64) for name, value in params.items()}
    if training.function.endswith("logistic"):
        weights = p.get("weights", p.get("weight")).ravel()
        residuals = 1 / (1 + np.exp(-np.clip(x @ weights + p["bias"].item(), -500, 500))) - y
        return np.hstack([residuals[:, None], residuals[:, None] * x])
    opacus = "0.weight" in p
    if opacus:
        p = {"w1": p["0.weight"].T, "b1": p["0.bias"], "w2": p["2.weight"].T, "b2": p["2.bias"]}
    before = x @ p["w1"] + p["b1"]
    relu = training.module in ("numpy_trainings", "opacus_trainings")
    hidden = np.maximum(before, 0) if relu else np.tanh(before)
    logits = hidden @ p["w2"] + p["b2"]
    top = np.exp(logits - logits.max(axis=1, keepdims=True))
    top /= top.sum(axis=1, keepdims=True)
    top[np.arange(len(y)), y] -= 1
    below = (top @ p["w2"].T) * ((before > 0) if relu else 1 - hidden**2)
    w1, w2 = x[:, :, None] * below[:, None, :], hidden[:, :, None] * top[:, None, :]
    parts = (below, w1.swapaxes(1, 2), top, w2.swapaxes(1, 2)) if opacus else (below, top, w1, w2)
    return np.hstack([part.reshape(len(x), -1) for part in parts])


def canary_norm(training: Training, params: dict[str, Any]) -> float:
    """Return the norm of the canary's gradient."""
    problem = problem_of(training)
    x = problem.canary_x
    if training.name.startswith("private_start_mlp"):
        x = 3 * x / np.abs(x).max()
    return float(np.linalg.norm(gradients(training, params, x[None], np.array([problem.canary_y]))))


def prove(training: Training, seeds: int = 40) -> str:
    """Compare single steps of a correct training with what is declared, exactly.

    The noisy sum of a step, less its mean given the parameters before, must have the variance of the noise and of the
    sampling of clipped gradients, in each parameter. In parameters on which no clipped gradient acts, that is the
    noise alone. The canary must be in the first batch at the declared rate, and then move the model by lr times C.
    """
    train, run, problem = training.load(), training.run, problem_of(training)
    q, clip, rate = run["sample_rate"], run["clip_norm"], run["optimizer"]["learning_rate"]
    momentum = run["optimizer"].get("momentum", 0.0)
    found, expected, bare = [], [], []
    for k in (0, run["steps"] - 1):
        for seed in range(seeds):
            before, after = train(seed, False, k), train(seed, False, k + 1)
            step = (flat(before) - flat(after)) / rate
            if momentum and k:
                step -= momentum * (flat(train(seed, False, k - 1)) - flat(before)) / rate
            g = gradients(training, before, problem.x, problem.y)
            g *= np.minimum(1, clip / np.linalg.norm(g, axis=1, keepdims=True))
            count = len(g)
            sampling = q * (1 - q) * (g**2).sum(axis=0)
            if run["sampling"] != "poisson":
                sampling = q * (1 - q) * count / (count - 1) * ((g - g.mean(axis=0)) ** 2).sum(axis=0)
            residual = step - q * g.sum(axis=0)
            if run["sampling"] != "shuffled" or k == 0:
                found.append((residual**2).mean())
                expected.append(((run["noise_multiplier"] * clip) ** 2 + sampling).mean())
            if g.shape[1] > count:
                span = np.linalg.qr(g.T)[0]
                bare.append(((residual - span @ (span.T @ residual)) ** 2).sum() / (g.shape[1] - count))
    noise = np.sqrt(np.mean(bare)) / (run["noise_multiplier"] * clip) if bare else np.nan
    text = f"{training.name:40s} variance of a step / declared {np.mean(found) / np.mean(expected):.3f}"
    text += f", noise off the gradients / declared {noise:.3f}"
    if training.paired:
        moves = [np.linalg.norm(flat(train(s, True, 1)) - flat(train(s, False, 1))) for s in range(300)]
        moved = np.array(moves) / (rate * clip)
        text += f"; canary in the first batch {np.mean(moved > 0.1):.3f} (declared {q}), moves "
        text += f"{moved[moved > 0.1].min():.4f} to {moved.max():.4f} C"
    return text


def prove_planted(training: Training, seeds: int = 60, many: int = 1500) -> str:
    """Check what one step of a correct training makes of a gradient that is planted as the canary's.

    A gradient of norm 0.5 C must move the model by -lr times itself, and one of norm 20 C by -lr C times its direction,
    if the canary is in the batch, and else by nothing. Draws do not depend on the planted gradient, so that a planted
    gradient of zero gives the world without the canary's push also where the two worlds share no randomness. In that
    case the mean push is compared with the world without a canary as well.
    """
    train, run = training.load(), training.run
    q, clip, rate = run["sample_rate"], run["clip_norm"], run["optimizer"]["learning_rate"]
    start = train(0, False, 0)
    unit = direction(training, start)
    # In single precision a step of size lr C is rounded where parameters are about 1.
    allowed = 1e-9 if np.asarray(next(iter(start.values()))).dtype == np.float64 else 5e-3
    text = f"{training.name:40s} planted:"
    for size, moved in ((0.5, 0.5), (20.0, 1.0)):
        gradient = shaped(size * clip * unit, start)
        base = False if training.paired else shaped(0 * unit, start)
        drawn, errors, others = 0, [], []
        for seed in range(seeds):
            zero, one = flat(train(seed, base, 1)), flat(train(seed, gradient, 1))
            # The step with the canary's own gradient tells in which seeds the canary is in the batch.
            natural = flat(train(seed, True, 1))
            push = (one - zero) / (-rate * clip * moved)
            if np.linalg.norm(natural - zero) > 0.1 * rate * clip:
                drawn += 1
                errors.append(np.linalg.norm(push - unit))
            else:
                others.append(np.linalg.norm(push))
        assert drawn > 0, training.name
        assert max(errors) < allowed, (training.name, errors)
        assert max(others) < allowed, (training.name, others)
        text += (
            f" {size} C moves {moved} C with error {max(errors):.0e} in {drawn}/{seeds} seeds (else {max(others):.0e});"
        )
        if not training.paired:
            pushes = np.array(
                [
                    [(flat(train(s, c, 0)) - flat(train(s, c, 1))) @ unit / (rate * clip) for c in (gradient, False)]
                    for s in range(many)
                ]
            )
            mean, error = pushes.mean(axis=0) @ (1, -1), np.sqrt(pushes.var(axis=0, ddof=1).sum() / many)
            assert abs(mean - q * moved) < 4 * error, (training.name, mean, error)
            text += f" on average {mean:.3f} +- {error:.3f} C (declared {q * moved:.3f});"
    return text


# With these the gradient of the canary's features is not the only thing that differs: the last steps are taken after
# the noisy one, or views of an example are not the example.
OTHER_THAN_NATURAL = ("private_steps_at_end", "augmentations_clipped_apart")


def check_planted(training: Training) -> str:
    """Run any training with planted gradients.

    Where the canary's own gradient at the start is planted, a step must be the one that the canary makes by itself.
    """
    train, run, problem = training.load(), training.run, problem_of(training)
    clip, rate = run["clip_norm"], run["optimizer"]["learning_rate"]
    seeds = round(6 / run["sample_rate"])  # The canary is in about six first batches.
    start = train(0, False, 0)
    unit = direction(training, start)
    text = f"{training.name:55s} planted, one step:"
    for size in (0.5, 20.0):
        gradient = shaped(size * clip * unit, start)
        whole = flat(train(1, gradient))
        assert np.isfinite(whole).all(), training.name
        assert np.array_equal(whole, flat(train(1, gradient))), training.name
        assert not np.array_equal(whole, flat(train(1, False))), training.name
        zero = shaped(0 * unit, start)
        pushes = np.array([flat(train(s, zero, 1)) - flat(train(s, gradient, 1)) for s in range(seeds)]) / rate / clip
        lengths = np.linalg.norm(pushes, axis=1)
        moved = pushes[lengths > 1e-2]
        if len(moved):
            text += (
                f" {size} C moves {np.median(np.linalg.norm(moved, axis=1)):.3f} C (max {lengths.max():.3f}, cosine "
            )
            text += f"{np.median(moved @ unit / np.linalg.norm(moved, axis=1)):.3f}) in {len(moved)}/{seeds};"
        else:
            text += f" {size} C never drawn in {seeds};"
    if training.kind not in OTHER_THAN_NATURAL:
        worst = 0.0
        for seed in range(seeds):
            before, x = train(seed, True, 0), problem.canary_x
            if training.name.startswith("private_start_mlp"):
                x = 3 * x / np.abs(x).max()
            natural = shaped(gradients(training, before, x[None], np.array([problem.canary_y]))[0], before)
            gap = np.linalg.norm(flat(train(seed, natural, 1)) - flat(train(seed, True, 1)))
            worst = max(worst, gap / (rate * clip))
        assert worst < 5e-3, (training.name, worst)
        text += f" its own gradient: error {worst:.0e} C"
    return text


def check(training: Training) -> str:
    train = training.load()
    flat(train(0, True)), flat(train(0, False))
    start = time.process_time()
    with_canary, without = flat(train(1, True)), flat(train(1, False))
    seconds = (time.process_time() - start) / 2
    assert seconds < 0.15, f"{training.name}: {seconds:.3f} s"
    assert np.isfinite(with_canary).all(), training.name
    assert np.isfinite(without).all(), training.name
    assert np.array_equal(with_canary, flat(train(1, True)))
    assert np.array_equal(without, flat(train(1, False)))
    assert not np.array_equal(without, flat(train(2, False)))
    assert not np.array_equal(with_canary, without)
    # Where worlds share randomness, one step differs by the canary's gradient or by nothing.
    run, run_rate = training.run, training.run["optimizer"]["learning_rate"]
    differences = np.array([np.linalg.norm(flat(train(s, True, 1)) - flat(train(s, False, 1))) for s in range(20)]) / (
        run_rate * run["clip_norm"]
    )
    moved = differences[differences > 1e-3]
    steps = run["steps"]
    clipped = [
        canary_norm(training, train(s, True, k)) / run["clip_norm"]
        for s in (0, 1, 2)
        for k in (1, steps // 4, steps // 2, 3 * steps // 4, steps - 1)
    ]
    return (
        f"{training.name:55s} {1000 * seconds:6.1f} ms {len(with_canary):5d} parameters; one step: canary in "
        f"{len(moved)}/20, moves {np.median(moved) if len(moved) else 0:.3f} (max {differences.max():.3f}) C; "
        f"canary's gradient at least {min(clipped):.2f} C"
    )


def measure(training: Training, seeds: int = SEEDS) -> str:
    """Compare the noise of the final parameters with the declared, and the canary's displacement too.

    The plain sum of gradients of the declared run has noise of deviation lr sigma C sqrt(sum of squared weights) in
    each parameter. Curvature may shrink it and sampling increases it, so parameters that natural data hardly move tell
    most: deviations are of the quarter of parameters that vary least, and of all of them (median).
    """
    train, run = training.load(), training.run
    steps, rate = run["steps"], run["optimizer"]["learning_rate"]
    momentum = run["optimizer"].get("momentum", 0.0)
    weights = np.array([(1 - momentum ** (steps - t)) / (1 - momentum) for t in range(steps)])
    noise = rate * run["noise_multiplier"] * run["clip_norm"] * np.sqrt((weights**2).sum())
    pushed = rate * run["clip_norm"] * run["sample_rate"] * weights.sum()
    ones = np.array([flat(train(s, True)) for s in range(seeds)])
    zeros = np.array([flat(train(s, False)) for s in range(seeds)])
    starts = np.array([flat(train(s, False, 0)) for s in range(seeds)])
    deviations = np.sqrt(((zeros - starts) - (zeros - starts).mean(axis=0)).var(axis=0, ddof=1))
    along = np.linalg.norm(ones - zeros, axis=1)
    return (
        f"{training.name:55s} deviation / declared: 5% {np.quantile(deviations, 0.05) / noise:.2f}, median "
        f"{np.median(deviations) / noise:.2f}, 95% {np.quantile(deviations, 0.95) / noise:.2f}; canary moves "
        f"{along.mean() / pushed:.2f} of the linear sum, deviation {along.std(ddof=1) / pushed:.2f} (binomial "
        f"{np.sqrt((1 - run['sample_rate']) / run['sample_rate'] / steps):.2f})"
    )


def main() -> None:
    everything = CORRECT + FAULTS + EXTRA
    chosen = [t for t in everything if not sys.argv[1:] or any(word in t.name for word in sys.argv[1:])]
    assert len({t.name for t in everything}) == len(everything)
    assert len(FAULTS) == 50
    assert len({t.kind for t in FAULTS}) == 25
    for training in chosen:
        training.declared_run()
        print(check(training), flush=True)
        print(check_planted(training), flush=True)
    for training in chosen:
        if training.kind == "correct" and training.run["optimizer"]["name"] == "SGD":
            print(prove(training), flush=True)
            print(prove_planted(training), flush=True)
    for training in chosen:
        print(measure(training), flush=True)


if __name__ == "__main__":
    main()
