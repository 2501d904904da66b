"""Augmentation multiplicity (De et al. 2022): an example's gradient is a mean over random views of it, then clipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array

from lastiterate.training.problem import Loss, Moment
from lastiterate.values import function, integer

if TYPE_CHECKING:
    from jaxtyping import PyTree

_REACH = 4  # pixels by which a view is moved at most


def random_view(image: Array, key: Array) -> Array:
    """The image, moved by up to four pixels into its mirror image at the border, and mirrored every second time."""
    where, mirrored = jax.random.split(key)
    padded = jnp.pad(image, ((_REACH, _REACH), (_REACH, _REACH), (0, 0)), mode="symmetric")
    corner = jax.random.randint(where, (2,), 0, 2 * _REACH + 1)
    moved = jax.lax.dynamic_slice(padded, (corner[0], corner[1], 0), image.shape)
    return jnp.where(jax.random.bernoulli(mirrored), moved[:, ::-1], moved)


def augmentation_multiplicity(loss: Loss, count: int) -> Loss:
    """The loss of an example ``(image, label)`` as the mean over ``count`` random views of its image."""

    function("loss", loss, "a function of parameters, example and moment")
    integer("count", count, 1, 2**20)

    def mean_loss(parameters: PyTree, example: tuple[Array, Array], moment: Moment) -> Array:
        image, label = example

        def one_view(key: Array) -> Array:
            looking, losing = jax.random.split(key)
            return loss(parameters, (random_view(image, looking), label), Moment(moment.step, losing))

        return jnp.mean(jax.vmap(one_view)(jax.random.split(moment.key, count)))

    return mean_loss
