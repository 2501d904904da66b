"""The gradient in the logits is that of cross-entropy, in place or not."""

import pytest
import torch

from lastiterate.lm.tokens import logit_gradient, token_weights

LENGTHS = torch.tensor([7, 4, 2])


def batch():
    source = torch.Generator().manual_seed(0)
    return torch.randn(3, 7, 11, generator=source), torch.randint(11, (3, 7), generator=source)


def by_autograd(logits, tokens):
    leaf = logits.clone().requires_grad_()
    losses = [
        torch.nn.functional.cross_entropy(leaf[row, : length - 1], tokens[row, 1:length])
        for row, length in enumerate(LENGTHS.tolist())
    ]
    return torch.autograd.grad(sum(losses), leaf)[0]


@pytest.mark.parametrize("overwrite", [False, True])
def test_it_is_that_of_autograd_and_leaves_logits_alone_unless_told(overwrite):
    logits, tokens = batch()
    before = logits.clone()
    expected = by_autograd(logits, tokens)
    found = logit_gradient(logits, tokens, token_weights(LENGTHS, 7), overwrite=overwrite)
    torch.testing.assert_close(found, expected)
    assert (found.data_ptr() == logits.data_ptr()) is overwrite
    assert overwrite or torch.equal(logits, before)
