"""The trainer's step is PyTorch's, and what it releases is the linear map that the analyses take from ``SGD``."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import lastiterate as li
from lastiterate import SGD
from lastiterate.training import Problem, problems, second_moment, train
from lastiterate.training.update import released, start, update
from tests.test_optimizer import assert_same_weights, optimizers

STEPS = 12
RATES = np.geomspace(0.5, 0.02, STEPS)
MOMENTA = [(0.0, 0.0, False), (0.9, 0.0, False), (0.9, 0.5, False), (0.9, 0.0, True), (0.0, 0.3, False)]
GRADIENTS = {
    "w": np.random.default_rng(1).normal(size=(STEPS, 4, 3, 2)),
    "b": np.random.default_rng(2).normal(size=(STEPS, 4)),
}
INITIAL = {"w": np.random.default_rng(3).normal(size=(4, 3, 2)), "b": np.random.default_rng(4).normal(size=4)}


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def iterate(optimizer: SGD, initial, gradients, dtype=np.float64) -> tuple[list, dict]:
    """The parameters after each step, and what is released after the last. ``gradients`` have a first axis of steps."""
    steps = len(jax.tree.leaves(gradients)[0])
    rates = np.broadcast_to(optimizer.learning_rate, steps)
    weights = start(optimizer, jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), initial))
    iterates = []
    for step in range(steps):
        gradient = jax.tree.map(lambda leaf, at=step: jnp.asarray(leaf[at], dtype), gradients)
        weights = update(optimizer, weights, gradient, jnp.asarray(rates[step]), jnp.int32(step))
        iterates.append(jax.tree.map(np.asarray, weights.parameters))
    return iterates, jax.tree.map(np.asarray, released(weights))


def assert_trees_equal(found, expected) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for leaf, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert leaf.dtype == wanted.dtype
        np.testing.assert_allclose(leaf, wanted, rtol=1e-12, atol=1e-14)


def by_torch(optimizer: SGD) -> list:
    import torch

    parameters = {name: torch.tensor(leaf, requires_grad=True) for name, leaf in INITIAL.items()}
    theirs = torch.optim.SGD(
        parameters.values(),
        lr=1.0,
        momentum=optimizer.momentum,
        dampening=optimizer.dampening,
        nesterov=optimizer.nesterov,
        weight_decay=optimizer.weight_decay,
    )
    iterates = []
    for step, rate in enumerate(np.broadcast_to(optimizer.learning_rate, STEPS).tolist()):
        theirs.param_groups[0]["lr"] = rate
        for name, leaf in parameters.items():
            leaf.grad = torch.tensor(GRADIENTS[name][step])
        theirs.step()
        iterates.append({name: leaf.detach().numpy().copy() for name, leaf in parameters.items()})
    return iterates


@pytest.mark.parametrize("rate", [0.1, RATES], ids=["constant", "schedule"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize(("momentum", "dampening", "nesterov"), MOMENTA)
def test_every_step_is_that_of_torch(momentum, dampening, nesterov, weight_decay, rate):
    optimizer = SGD(rate, momentum, dampening, nesterov, weight_decay)
    iterates, last = iterate(optimizer, INITIAL, GRADIENTS)
    for found, expected in zip(iterates, by_torch(optimizer), strict=True):
        assert_trees_equal(found, expected)
    assert_trees_equal(last, iterates[-1])


def released_units(optimizer: SGD, steps: int) -> np.ndarray:
    """What is released of a unit of gradient at each step alone, from zero: every coordinate is a run of its own."""
    units = np.zeros((steps, STEPS))
    units[:, :steps] = np.eye(steps)
    return iterate(optimizer, np.zeros(STEPS), units)[1][:steps]


@given(optimizers())
def test_a_unit_of_gradient_releases_minus_the_weight_of_its_step(drawn):
    optimizer, steps = drawn
    assert_same_weights(optimizer.weights(steps), -released_units(optimizer, steps))


def test_what_is_released_is_the_sum_of_all_gradients_times_their_weights():
    optimizer = SGD(RATES, 0.8, nesterov=True, weight_decay=0.1, averaging="uniform")
    _, last = iterate(optimizer, jax.tree.map(np.zeros_like, INITIAL), GRADIENTS)
    expected = jax.tree.map(lambda leaf: -np.tensordot(optimizer.weights(STEPS), leaf, axes=1), GRADIENTS)
    assert_trees_equal(last, expected)


@pytest.mark.parametrize("averaging", [None, "uniform", 0.9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_compiled_loop_takes_the_same_steps_and_keeps_the_type(dtype, averaging):
    optimizer = SGD(RATES, 0.9, 0.1, weight_decay=0.1, averaging=averaging)
    rates, gradients, initial = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), (RATES, GRADIENTS, INITIAL))

    @jax.jit
    def loop(rates, gradients, initial):
        def one(step, weights):
            return update(optimizer, weights, jax.tree.map(lambda leaf: leaf[step], gradients), rates[step], step)

        return released(jax.lax.fori_loop(0, STEPS, one, start(optimizer, initial)))

    found = loop(rates, gradients, initial)
    _, expected = iterate(optimizer, INITIAL, GRADIENTS)
    for name, leaf in found.items():
        assert leaf.dtype == dtype
        np.testing.assert_allclose(leaf, expected[name], rtol=0, atol=100 * np.finfo(dtype).eps)


ADAM_STEPS = 30
ADAM_GRADIENTS = (
    np.random.default_rng(0).normal(size=(ADAM_STEPS, 4, 3)) * np.geomspace(5.0, 0.01, ADAM_STEPS)[:, None, None]
)
ADAM_INITIAL = np.random.default_rng(1).normal(size=(4, 3))
ADAMS = {
    "default": li.Adam(),
    "schedule": li.Adam(np.geomspace(0.1, 0.001, ADAM_STEPS), 0.8, 0.95, 1e-3),
    "l2": li.Adam(0.05, weight_decay=0.3),
    "adamw": li.Adam(0.05, weight_decay=0.3, decoupled=True),
    "no momentum": li.Adam(0.05, beta1=0.0, beta2=0.5),
    "sign": li.Adam(0.05, beta1=0.9, beta2=0.0, eps=1e-3),
}


def torchs(adam: li.Adam, dtype: str) -> list[np.ndarray]:
    import torch

    kind = torch.optim.AdamW if adam.decoupled else torch.optim.Adam
    parameters = torch.tensor(ADAM_INITIAL, dtype=getattr(torch, dtype), requires_grad=True)
    betas = (adam.beta1, adam.beta2)
    theirs = kind([parameters], lr=1.0, betas=betas, eps=adam.eps, weight_decay=adam.weight_decay)
    iterates = []
    for gradient, rate in zip(ADAM_GRADIENTS, np.broadcast_to(adam.learning_rate, ADAM_STEPS).tolist(), strict=True):
        theirs.param_groups[0]["lr"] = rate
        parameters.grad = torch.tensor(gradient, dtype=parameters.dtype)
        theirs.step()
        iterates.append(parameters.detach().numpy().copy())
    return iterates


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("float64", 1e-12)])
@pytest.mark.parametrize("name", ADAMS)
def test_every_step_with_adam_is_that_of_torch(name, dtype, tolerance):
    adam = ADAMS[name]
    with jax.enable_x64(dtype == "float64"):
        weights = start(adam, jnp.asarray(ADAM_INITIAL, dtype))
        for step, expected in enumerate(torchs(adam, dtype)):
            rate = jnp.asarray(np.broadcast_to(adam.learning_rate, ADAM_STEPS)[step])
            weights = update(adam, weights, jnp.asarray(ADAM_GRADIENTS[step], dtype), rate, jnp.int32(step))
            assert weights.parameters.dtype == dtype
            np.testing.assert_allclose(weights.parameters, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["default", "l2", "adamw"])
def test_the_language_models_steps_are_those_of_torch(name):
    import torch

    from lastiterate.lm.dp_sgd import _Weights

    adam = ADAMS[name]
    weights = _Weights(adam, {"w": torch.tensor(ADAM_INITIAL)})
    for step, expected in enumerate(torchs(adam, "float32")):
        gradient = torch.tensor(ADAM_GRADIENTS[step], dtype=torch.float32)
        weights.update({"w": gradient}, float(np.broadcast_to(adam.learning_rate, ADAM_STEPS)[step]), step)
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
