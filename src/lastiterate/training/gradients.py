"""Norms and clipped sums of per-example gradients, mostly without computing the gradients themselves.

The gradient of one example with respect to the weights of a dense layer is the outer product of the layer's input and
the gradient at its output. In the program that JAX traces, this gradient is the result of a ``dot_general``, perhaps
transposed. This module takes the two factors from the traced program instead of their product, and computes norms
and clipped sums from the factors, which needs less memory and time. The gradient of a convolution written as patches
times kernel is a sum of outer products, one for each position in the image. Clipped sums are then products of large
matrices, which are fast. A gradient of any other form is computed directly, so every pure function works.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

if TYPE_CHECKING:
    from jaxtyping import PyTree

    Atom = core.Var | core.Literal


@dataclass(frozen=True)
class Plain:
    """A leaf of the gradient that is computed directly."""

    shape: tuple[int, ...]

    count = 1  # number of arrays that represent the leaf

    @property
    def numbers(self) -> int:
        """The number of floats that an example needs in memory."""
        return math.prod(self.shape)

    def squared_norms(self, gradient: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(gradient), axis=tuple(range(1, gradient.ndim)))

    def weighted_sum(self, weights: jax.Array, gradient: jax.Array) -> jax.Array:
        return jnp.tensordot(weights.astype(gradient.dtype), gradient, axes=1)


@dataclass(frozen=True)
class Product:
    """A leaf of the gradient that is a transposed ``dot_general(a, b)``, represented by the arrays a and b."""

    shape: tuple[int, ...]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]  # shapes of a and b
    contracted: tuple[tuple[int, ...], tuple[int, ...]]  # axes of a and of b that are summed over
    permutation: tuple[int, ...]  # maps the axes of the product to the axes of the leaf

    count = 2

    @property
    def terms(self) -> int:
        """The number of outer products in the sum."""
        return math.prod(self.shapes[0][axis] for axis in self.contracted[0])

    @property
    def numbers(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes) + (math.prod(self.shape) if self.terms > 1 else 0)

    def _matrices(self, a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the factors of each example as matrices [examples, terms, rows] and [examples, terms, columns]."""
        result = []
        for factor, axes in ((a, self.contracted[0]), (b, self.contracted[1])):
            inner = tuple(axis + 1 for axis in axes)
            free = tuple(axis for axis in range(1, factor.ndim) if axis not in inner)
            result.append(factor.transpose(0, *inner, *free).reshape(factor.shape[0], self.terms, -1))
        return result[0], result[1]

    def squared_norms(self, a: jax.Array, b: jax.Array) -> jax.Array:
        left, right = self._matrices(a, b)
        if self.terms == 1:
            return jnp.sum(jnp.square(left), axis=(1, 2)) * jnp.sum(jnp.square(right), axis=(1, 2))
        return jnp.sum(jnp.square(self._written_out(left, right)), axis=(1, 2))

    def weighted_sum(self, weights: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
        left, right = self._matrices(a, b)
        weights = weights.astype(right.dtype)
        if self.terms > 1:  # the norms need the whole gradients anyway
            product = jnp.tensordot(weights, self._written_out(left, right), axes=1)
        else:
            weighted = right * weights[:, None, None]
            product = left.reshape(-1, left.shape[-1]).T @ weighted.reshape(-1, right.shape[-1])
        pairs = zip(self.shapes, self.contracted, strict=True)
        free = [size for shape, axes in pairs for axis, size in enumerate(shape) if axis not in axes]
        return product.reshape(free).transpose(self.permutation)

    def _written_out(self, left: jax.Array, right: jax.Array) -> jax.Array:
        """Return the whole gradients. Norms from inner products of terms would be inaccurate if terms cancel."""
        # XLA multiplies many small matrices fastest if the narrower factor is on the left, with its terms last.
        if left.shape[2] <= right.shape[2]:
            return jnp.einsum("kis,ksj->kij", left.transpose(0, 2, 1), right)
        return jnp.einsum("kjs,ksi->kji", right.transpose(0, 2, 1), left).transpose(0, 2, 1)


Leaf = Plain | Product


@dataclass(frozen=True)
class GradientForm:
    """The form of each leaf of an example's gradient, and the function that computes the arrays of these forms."""

    leaves: tuple[Leaf, ...]
    describe: Callable[..., list[jax.Array]]

    @property
    def numbers(self) -> int:
        """The approximate number of floats that an example needs in memory."""
        return sum(leaf.numbers for leaf in self.leaves)

    @property
    def has_sums(self) -> bool:
        """True if some leaf's gradient is a sum of several outer products, as for a convolution."""
        return any(isinstance(leaf, Product) and leaf.terms > 1 for leaf in self.leaves)

    def _split(self, arrays: list[jax.Array]) -> list[tuple[Leaf, list[jax.Array]]]:
        ends = np.cumsum([leaf.count for leaf in self.leaves])
        return [(leaf, arrays[end - leaf.count : end]) for leaf, end in zip(self.leaves, ends, strict=True)]

    def norms(self, arrays: list[jax.Array]) -> jax.Array:
        """Return the norm of each example's gradient, from arrays with a leading axis of examples."""
        return jnp.sqrt(sum(leaf.squared_norms(*parts) for leaf, parts in self._split(arrays)))

    def weighted_sum(self, weights: jax.Array, arrays: list[jax.Array]) -> list[jax.Array]:
        return [leaf.weighted_sum(weights, *parts) for leaf, parts in self._split(arrays)]


def gradient_form(gradient: Callable[..., PyTree], *arguments: PyTree) -> GradientForm:
    """Return the form of the pytree that the function ``gradient`` returns for arguments of these shapes."""
    traced = jax.make_jaxpr(lambda *given: jax.tree.leaves(gradient(*given)))(*arguments)
    closed = jax.make_jaxpr(_inlined(traced))(*jax.tree.leaves(arguments))
    jaxpr = closed.jaxpr
    makers = {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}
    forms: list[Leaf] = []
    outputs: list[Atom] = []
    for output in jaxpr.outvars:
        form, variables = _form_of(output, makers)
        forms.append(form)
        outputs.extend(variables)
    information = jaxpr.debug_info._replace(result_paths=None)
    asked = core.ClosedJaxpr(jaxpr.replace(outvars=outputs, debug_info=information), closed.consts)
    compute: Callable[..., list[jax.Array]] = core.jaxpr_as_fun(asked)
    return GradientForm(tuple(forms), lambda *given: compute(*jax.tree.leaves(given)))


def _form_of(output: Atom, makers: dict[core.Var, core.JaxprEqn]) -> tuple[Leaf, tuple[Atom, ...]]:
    """Return the form of one output of the traced program, and the arrays that represent the output."""
    shape = _array(output).shape
    permutation = tuple(range(len(shape)))
    variable = output
    while not isinstance(variable, core.Literal) and variable in makers:
        equation = makers[variable]
        if equation.primitive.name == "transpose":
            permutation = tuple(equation.params["permutation"][axis] for axis in permutation)
            variable = equation.invars[0]
            continue
        if equation.primitive.name == "dot_general":
            contracted, batch = equation.params["dimension_numbers"]
            a, b = equation.invars
            if not batch[0] and _array(a).dtype == _array(b).dtype == _array(output).dtype:
                axes = (tuple(contracted[0]), tuple(contracted[1]))
                return Product(shape, (_array(a).shape, _array(b).shape), axes, permutation), (a, b)
        break
    return Plain(shape), (output,)


def _array(variable: Atom) -> jax.core.ShapedArray:
    assert isinstance(variable.aval, jax.core.ShapedArray)
    return variable.aval


def _inlined(closed: core.ClosedJaxpr) -> Callable[..., list[jax.Array]]:
    """Inline the jitted functions of a traced program, so that products inside them are found."""

    def run(jaxpr: core.Jaxpr, constants: Sequence[jax.Array], *arguments: jax.Array) -> list[jax.Array]:
        values: dict[core.Var, jax.Array] = dict(zip(jaxpr.constvars, constants, strict=True))
        values |= dict(zip(jaxpr.invars, arguments, strict=True))

        def read(variable: Atom) -> jax.Array:
            return variable.val if isinstance(variable, core.Literal) else values[variable]

        for equation in jaxpr.eqns:
            inputs = [read(variable) for variable in equation.invars]
            if equation.primitive.name in ("jit", "pjit"):
                inner = equation.params["jaxpr"]
                results = run(inner.jaxpr, inner.consts, *inputs)
            else:
                primitive = equation.primitive
                bind: Callable[..., PyTree] = primitive.bind
                parameters: Callable[..., dict[str, object]] = primitive.get_bind_params
                outputs = bind(*inputs, **parameters(equation.params))
                results = outputs if primitive.multiple_results else [outputs]
            values |= dict(zip(equation.outvars, results, strict=True))
        return [read(variable) for variable in jaxpr.outvars]

    return lambda *arguments: run(closed.jaxpr, closed.consts, *arguments)
