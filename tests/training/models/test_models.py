"""The networks have the parameters that their papers give them, and say which inputs they are for."""

from __future__ import annotations

import jax

from lastiterate.training.models import WideResNet


def parameters(make) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(make, jax.random.key(0))))


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
