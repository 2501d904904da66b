"""The networks have the parameters that their papers give them, and say which inputs they are for."""

from __future__ import annotations

import jax
import pytest

from lastiterate.training.models import CNN, MLP, WideResNet


def parameters(make) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(make, jax.random.key(0))))


def test_parameter_counts_are_those_of_the_papers():
    assert parameters(lambda key: MLP((64, 128, 10), key)) == 9610
    assert parameters(lambda key: CNN((28, 28, 1), 10, key)) == 26_010  # Papernot et al. 2020


def test_the_wide_resnet_has_the_parameters_of_its_layers():
    def conv(kernel, inputs, outputs):
        return kernel**2 * inputs * outputs + 2 * outputs  # gain and bias

    def branch(kernel, inputs, outputs):
        return 2 * inputs + conv(kernel, inputs, outputs)

    def group(inputs, outputs):
        first = branch(1, inputs, outputs) + branch(3, inputs, outputs) + branch(3, outputs, outputs)
        return first + 2 * branch(3, outputs, outputs)

    expected = conv(3, 3, 16) + group(16, 64) + group(64, 128) + group(128, 256) + 2 * 256 + 256 * 10 + 10
    assert expected == 2_753_818
    assert parameters(lambda key: WideResNet(16, 4, 10, key)) == expected


def test_shapes_that_no_network_is_for_are_refused_in_one_sentence():
    with pytest.raises(ValueError, match=r"shape must be .* one of 8, 28 and 32, got \(9, 9, 1\)"):
        CNN((9, 9, 1), 10, jax.random.key(0))
    with pytest.raises(ValueError, match="sizes must be at least two numbers"):
        MLP((4,), jax.random.key(0))
