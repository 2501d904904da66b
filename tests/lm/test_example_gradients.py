"""Gradients of single examples are those of autograd through Hugging Face's own loss, however many come at once."""

import copy
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from lastiterate.lm.example_gradients import ExampleGradients, clip_factors
from lastiterate.lm.hub import load_model
from tests.lm.conftest import SLIDING_WINDOW

TOLERANCE = 1e-5  # some hundred roundings of float32, in units of the largest entry of the gradient
FAMILIES = ["tiny_llama", "tiny_llama_untied", "tiny_gemma2"]
LENGTHS = {"padded": [9, 2, 17, 5, 12, 9, 3], "unpadded": [11, 11, 11]}
MICROBATCHES = [1, 2, 3, 32]


class Case(NamedTuple):
    """A model, examples whose padding holds arbitrary tokens, and what Hugging Face's model says about each alone."""

    model: Any
    start: dict[str, Any]
    tokens: Any
    lengths: Any
    losses: np.ndarray
    expected: list[dict[str, np.ndarray]]

    def __repr__(self):
        return f"Case({type(self.model).__name__})"  # hypothesis shows it

    def gradients(self, **options):
        return ExampleGradients(self.model, self.start, self.tokens.shape[1], **options)

    def changed(self, **changes):
        """The same with a copy of the model, to do harm to."""
        return self._replace(model=copy.deepcopy(self.model), **changes)

    def clipped(self, clip_norm):
        """The sum of the clipped gradients in float64, each with the norm of all parameters together."""
        total = {name: np.zeros(value.shape) for name, value in self.start.items()}
        for gradient in self.expected:
            factor = min(1.0, clip_norm / norm_of(gradient))
            for name, value in gradient.items():
                total[name] += factor * value
        return total

    def assert_clipped(self, gradients, clip_norm=None):
        clip_norm = clip_norm or self.middle_norm
        found = gradients.clipped_sum(self.start, self.tokens, self.lengths, clip_norm)
        assert {value.dtype for value in found.values()} == {torch.float32}
        assert_close(found, self.clipped(clip_norm))

    @property
    def middle_norm(self):
        """Half of the examples are clipped to it."""
        return float(np.median([norm_of(gradient) for gradient in self.expected]))


def norm_of(gradient):
    return np.sqrt(sum(np.sum(value**2) for value in gradient.values()))


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    bound = TOLERANCE * max(np.abs(value).max() for value in expected.values())
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].double().numpy(), value, rtol=0, atol=bound, err_msg=name)


def alone(model, ids):
    """The loss of one example without padding and its gradient, by the model's own ``labels=``."""
    model.zero_grad()
    loss = model(input_ids=ids[None], labels=ids[None]).loss
    loss.backward()
    return loss.item(), {name: value.grad.double().numpy() for name, value in model.named_parameters()}


def make_case(folder, lengths):
    model = load_model(folder)
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    tokens = torch.from_numpy(np.random.default_rng(2).integers(5, 64, (len(lengths), max(lengths))))
    found = [alone(reference, row[:length]) for row, length in zip(tokens, lengths, strict=True)]
    start = {name: value.detach() for name, value in model.named_parameters()}
    losses, expected = zip(*found, strict=True)
    return Case(model, start, tokens, torch.tensor(lengths), np.array(losses), list(expected))


@pytest.fixture(scope="module", params=LENGTHS)
def lengths(request):
    return LENGTHS[request.param]


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, lengths):
    return make_case(request.getfixturevalue(request.param), lengths)


@pytest.fixture(scope="module")
def llama(tiny_llama):
    return make_case(tiny_llama, LENGTHS["padded"])


def test_gradients_at_once_are_those_of_each_example_alone(case):
    assert int(case.lengths.max()) > SLIDING_WINDOW + 1
    found = case.gradients().several(case.start, case.tokens, case.lengths)
    for row, expected in enumerate(case.expected):
        assert_close({name: value[row] for name, value in found.items()}, expected)


@pytest.mark.parametrize("microbatch", MICROBATCHES)
def test_losses_are_hugging_faces_in_the_order_of_the_examples(case, microbatch):
    found = case.gradients(microbatch=microbatch).losses(case.start, case.tokens, case.lengths)
    assert found.numpy() == pytest.approx(case.losses, abs=TOLERANCE, rel=TOLERANCE)


@pytest.mark.parametrize("written_out", [False, True])
@pytest.mark.parametrize("microbatch", MICROBATCHES)
def test_the_clipped_sum_is_the_same_for_every_microbatch(case, microbatch, written_out):
    gradients = case.gradients(microbatch=microbatch, written_out=written_out)
    assert gradients.ghosts == (frozenset() if written_out else frozenset(case.start))
    case.assert_clipped(gradients)
    assert gradients.microbatch == microbatch


def test_a_model_that_looks_at_its_data_is_computed_one_example_at_a_time(case, monkeypatch):
    inner, calls = case.model.forward, []

    def looking(tokens, **options):
        calls.append(tokens.shape)
        assert tokens.sum().item() >= 0
        return inner(tokens, **options)

    monkeypatch.setattr(case.model, "forward", looking)
    gradients = case.gradients(microbatch=4, written_out=True)
    case.assert_clipped(gradients)
    assert gradients.microbatch == 1
    assert len(calls) == 1 + len(case.tokens)
    case.assert_clipped(gradients)
    assert len(calls) == 1 + 2 * len(case.tokens)  # it was not tried again


def test_a_microbatch_is_halved_until_it_fits(llama, monkeypatch):
    gradients = llama.gradients(microbatch=32, written_out=True)
    inner, tried = gradients.several, []

    def small(parameters, tokens, *others):
        tried.append(len(tokens))
        if len(tokens) > 2:
            raise torch.OutOfMemoryError("no memory left")
        return inner(parameters, tokens, *others)

    monkeypatch.setattr(gradients, "several", small)
    llama.assert_clipped(gradients)
    assert gradients.microbatch == 2
    assert tried == [7, 7, 7, 4, 2, 2, 2, 1]  # at once 32, 16, 8 and 4, of which there are 7, and then 2


@given(exponent=st.floats(-4, 4), microbatch=st.sampled_from([1, 3, 32]))
def test_each_gradient_is_clipped_by_its_norm_over_all_parameters(llama, exponent, microbatch):
    llama.assert_clipped(llama.gradients(microbatch=microbatch), llama.middle_norm * 10**exponent)


@given(
    clip_norm=st.floats(1e-6, 1e6),
    scales=st.lists(st.sampled_from([0.0, 1e-6, 1e-3, 1.0, 1e3, 1e6]), min_size=1, max_size=5),
    seed=st.integers(0, 2**32 - 1),
)
def test_clip_factors_are_those_of_numpy_and_1_where_there_is_no_gradient(clip_norm, scales, seed):
    generator, count = np.random.default_rng(seed), len(scales)
    shapes = {"w": (count, 3, 4), "b": (count, 5), "s": (count, 1)}
    gradients = {name: (generator.normal(size=shape).T * scales).T.astype(np.float32) for name, shape in shapes.items()}
    found = clip_factors({name: torch.from_numpy(value) for name, value in gradients.items()}, clip_norm)
    rows = np.concatenate([value.reshape(count, -1) for value in gradients.values()], axis=1).astype(float)
    norms = np.linalg.norm(rows, axis=1)
    expected = np.minimum(1.0, clip_norm / np.where(norms > 0, norms, 1e-300))
    assert found.numpy() == pytest.approx(expected, rel=1e-6)  # some roundings of float32
    assert (norms * found.numpy() <= clip_norm * (1 + 1e-6)).all()
