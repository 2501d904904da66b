"""A gradient canary in the place of an example: NumPy, PyTorch, JAX, jax-privacy."""

import numpy as np
import pytest

from lastiterate.integrations.gradient_canary import PlantedGradient

PLACE = 7
GRADIENTS = {"weight": np.arange(24.0).reshape(4, 2, 3), "bias": np.ones((4, 3))}
CANARY = {"weight": np.full((2, 3), 50.0), "bias": np.array([1.0, -2.0, 3.0])}
BATCH = np.array([3, 7, 0, 7])  # the canary is in it twice


def test_the_canary_is_where_its_example_was_and_nowhere_else():
    planted = PlantedGradient(CANARY, PLACE)
    assert np.array_equal(planted.batch(BATCH), BATCH)
    put = planted.gradients(GRADIENTS, BATCH)
    for name, rows in GRADIENTS.items():
        assert np.array_equal(put[name][[0, 2]], rows[[0, 2]])
        assert np.array_equal(put[name][[1, 3]], [CANARY[name]] * 2)


def test_torch_and_jax_give_what_numpy_gives():
    import jax.numpy as jnp
    import torch

    expected = PlantedGradient(CANARY, PLACE).gradients(GRADIENTS, BATCH)
    for convert in (torch.as_tensor, jnp.asarray):
        for canary in (CANARY, {name: convert(leaf) for name, leaf in CANARY.items()}):
            gradients = {name: convert(leaf) for name, leaf in GRADIENTS.items()}
            put = PlantedGradient(canary, PLACE).gradients(gradients, convert(BATCH))
            assert all(np.array_equal(np.asarray(put[name]), expected[name]) for name in expected)
    assert PlantedGradient(False, PLACE).batch(torch.as_tensor(BATCH)).tolist() == [3, 0]


def test_a_planted_loss_has_the_canary_as_its_gradient_and_any_other_loss_its_own():
    import jax
    import jax.numpy as jnp

    parameters = {"weight": jnp.ones((2, 3)), "bias": jnp.ones(3)}

    def loss(parameters, x):
        return jnp.sum(jnp.sin(x @ parameters["weight"] + parameters["bias"]))

    x = jnp.array([0.3, 0.4])
    planted = jax.grad(PlantedGradient(CANARY, PLACE).loss(loss))
    assert all(np.array_equal(planted(parameters, x, jnp.array(PLACE))[name], CANARY[name]) for name in CANARY)
    own, found = jax.grad(loss)(parameters, x), planted(parameters, x, jnp.array([3]))
    assert all(np.array_equal(own[name], found[name]) for name in own)
    absent = jax.grad(PlantedGradient(False, PLACE).loss(loss))
    assert not any(np.any(leaf) for leaf in absent(parameters, x, jnp.array(PLACE)).values())


@pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated:DeprecationWarning")
def test_jax_privacy_clips_the_canary_like_any_other_example():
    import jax.numpy as jnp
    from jax_privacy import clipping

    loss = PlantedGradient(CANARY, PLACE).loss(lambda parameters, x: 0.0 * jnp.sum(x))
    total = clipping.clipped_grad(loss, l2_clip_norm=0.5, batch_argnums=(1, 2))
    parameters = {"weight": jnp.ones((2, 3)), "bias": jnp.ones(3)}
    found = total(parameters, jnp.ones((4, 5)), jnp.asarray(BATCH))
    norm = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in CANARY.values()))
    for name, leaf in CANARY.items():
        assert np.allclose(found[name], 2 * 0.5 * leaf / norm, rtol=1e-6)
