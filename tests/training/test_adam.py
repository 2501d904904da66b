"""Every step of the trainer with Adam is that of ``torch.optim``, and its noise makes up the second moment."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.training import Problem, problems, second_moment, train
from lastiterate.training.update import start, update

STEPS = 30
GRADIENTS = np.random.default_rng(0).normal(size=(STEPS, 4, 3)) * np.geomspace(5.0, 0.01, STEPS)[:, None, None]
INITIAL = np.random.default_rng(1).normal(size=(4, 3))
ADAMS = {
    "default": li.Adam(),
    "schedule": li.Adam(np.geomspace(0.1, 0.001, STEPS), 0.8, 0.95, 1e-3),
    "l2": li.Adam(0.05, weight_decay=0.3),
    "adamw": li.Adam(0.05, weight_decay=0.3, decoupled=True),
    "no momentum": li.Adam(0.05, beta1=0.0, beta2=0.5),
    "sign": li.Adam(0.05, beta1=0.9, beta2=0.0, eps=1e-3),
}


def torchs(adam: li.Adam, dtype: str) -> list[np.ndarray]:
    import torch

    kind = torch.optim.AdamW if adam.decoupled else torch.optim.Adam
    parameters = torch.tensor(INITIAL, dtype=getattr(torch, dtype), requires_grad=True)
    betas = (adam.beta1, adam.beta2)
    theirs = kind([parameters], lr=1.0, betas=betas, eps=adam.eps, weight_decay=adam.weight_decay)
    iterates = []
    for gradient, rate in zip(GRADIENTS, np.broadcast_to(adam.learning_rate, STEPS).tolist(), strict=True):
        theirs.param_groups[0]["lr"] = rate
        parameters.grad = torch.tensor(gradient, dtype=parameters.dtype)
        theirs.step()
        iterates.append(parameters.detach().numpy().copy())
    return iterates


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("float64", 1e-12)])
@pytest.mark.parametrize("name", ADAMS)
def test_every_step_is_that_of_torch(name, dtype, tolerance):
    adam = ADAMS[name]
    with jax.enable_x64(dtype == "float64"):
        weights = start(adam, jnp.asarray(INITIAL, dtype))
        for step, expected in enumerate(torchs(adam, dtype)):
            rate = jnp.asarray(np.broadcast_to(adam.learning_rate, STEPS)[step])
            weights = update(adam, weights, jnp.asarray(GRADIENTS[step], dtype), rate, jnp.int32(step))
            assert weights.parameters.dtype == dtype
            np.testing.assert_allclose(weights.parameters, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["default", "l2", "adamw"])
def test_the_language_models_steps_are_those_of_torch(name):
    import torch

    from lastiterate.lm.dp_sgd import _Weights

    adam = ADAMS[name]
    weights = _Weights(adam, {"w": torch.tensor(INITIAL)})
    for step, expected in enumerate(torchs(adam, "float32")):
        gradient = torch.tensor(GRADIENTS[step], dtype=torch.float32)
        weights.update({"w": gradient}, float(np.broadcast_to(adam.learning_rate, STEPS)[step]), step)
        np.testing.assert_array_equal(weights.parameters["w"].numpy(), expected)


def linear(size: int, scale: float) -> Problem:
    """Gradients are constant: ``scale`` in half of the parameters and none in the others."""
    rows = np.zeros((4, size), np.float32)
    rows[:, : size // 2] = scale / np.sqrt(size // 2)
    return problems.linear(rows)


def test_the_trained_noise_has_the_size_that_the_weights_say():
    run = li.DPSGD(40, 0.1, 3.0, clip_norm=2.0, optimizer=li.Adam(0.01))
    found = train(run, linear(400, 0.0), models=64, seed=1, progress=False).flat()
    weights = np.asarray(run.effective_weights())
    expected = float(np.sqrt(np.sum(weights**2))) * 6.0
    assert found.std() == pytest.approx(expected, rel=0.05)  # Adam's own fluctuations make it a little less
    assert found.std() < expected


def test_the_share_of_noise_is_the_one_that_follows_from_the_gradients():
    """Two of four examples on average, each with a part of 0.5 in 100 of 200 parameters: second moments are known."""
    run = li.DPSGD(200, 0.5, 0.1, clip_norm=5.0, optimizer=li.Adam(1e-6, beta2=0.99))
    found = second_moment(run, linear(200, 5.0), models=8, progress=False)
    noise, sums = 0.25, 0.5**2 * (2.0**2 + 1.0)
    assert found.mean[-1] == pytest.approx(noise + 0.5 * sums, rel=0.1)
    assert found.busy[-1] == pytest.approx(noise + sums, rel=0.1)
    assert found.busy_noise_share == pytest.approx(noise / (noise + sums), rel=0.5)
    assert found.busy_noise_share < found.noise_share < 0.5
