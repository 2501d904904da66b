"""Norms by Gram matrices are those of the gradients written out, also where gradients of tokens nearly cancel."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastiterate.lm.ghost.norms_and_sums import squared_norms
from lastiterate.lm.ghost.parameter_uses import Lookup, Product, Uses

TOLERANCE = 1e-5  # what a clipped gradient may differ by


def uses_of(product, lookup=None):
    uses = Uses(len(product.inputs), torch.device("cpu"))
    uses.products["w"] = [product]
    if lookup is not None:
        uses.lookups["w"] = [lookup]
    return uses


def exact_norms(product, lookup=None):
    """In float64, written out."""
    found = torch.einsum("btp,btd->bpd", product.gradient.double(), product.inputs.double())
    if lookup is not None:
        for example in range(len(found)):
            found[example].index_add_(0, lookup.rows[example], lookup.gradient[example].double())
    return found.flatten(1).norm(dim=1)


@settings(deadline=None, max_examples=30)
@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 150), st.integers(1, 40), st.integers(1, 40)),
    tied=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_norms_are_those_of_written_out_gradients(sizes, tied, seed):
    generator = torch.Generator().manual_seed(seed)
    examples, tokens, d, p = sizes
    product = Product(
        torch.randn(examples, tokens, d, generator=generator),
        torch.randn(examples, tokens, p, generator=generator),
        False,
    )
    lookup = None
    if tied:
        rows = torch.randint(p, (examples, tokens), generator=generator)
        lookup = Lookup(rows, torch.randn(examples, tokens, d, generator=generator))
    found = squared_norms(uses_of(product, lookup), 0.0).sqrt()
    torch.testing.assert_close(found, exact_norms(product, lookup), rtol=TOLERANCE, atol=0)


@pytest.mark.parametrize("left", [1.0, 1e-1, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("tied", [False, True])
def test_norms_keep_their_digits_where_tokens_nearly_cancel(left, tied):
    """The second half of the tokens takes back what the first has done, but for a part."""
    generator = torch.Generator().manual_seed(0)
    half, d, p = 64, 200, 300
    inputs, gradient = torch.randn(2, half, d, generator=generator), torch.randn(2, half, p, generator=generator)
    product = Product(torch.cat([inputs, inputs], 1), torch.cat([gradient, (left - 1.0) * gradient], 1), False)
    lookup = None
    if tied:
        rows = torch.randint(p, (2, half), generator=generator).repeat(1, 2)
        found = torch.randn(2, half, d, generator=generator)
        lookup = Lookup(rows, torch.cat([found, (left - 1.0) * found], 1))
    found = squared_norms(uses_of(product, lookup), 0.0).sqrt()
    # Written out in float32 the entries are good to some roundings of what was cancelled.
    tolerance = max(TOLERANCE, 1e-7 / left)
    torch.testing.assert_close(found, exact_norms(product, lookup), rtol=tolerance, atol=0)
