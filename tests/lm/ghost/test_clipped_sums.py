"""Sums of gradients that are not written out are those of gradients that are, however a model's modules are called."""

from typing import Any

import pytest
import torch
import transformers

from lastiterate.lm.example_gradients import ExampleGradients
from lastiterate.lm.ghost import parameter_uses as products
from lastiterate.lm.text_problem import choose_trained

TOLERANCE = 1e-5  # some hundred roundings of float32, in units of the largest entry
BFLOAT16 = 1e-2
LENGTHS = {"padded": [9, 2, 17, 5, 12, 9, 3], "unpadded": [11, 11, 11]}

_SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_HEADS = {"num_key_value_heads": 1, "head_dim": 8}
_GPT2: dict[str, Any] = {
    **dict(vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=64, initializer_range=0.3),
    **dict(bos_token_id=1, eos_token_id=2),
}
_OPT = dict(_SIZES, ffn_dim=24, word_embed_proj_dim=8, init_std=0.3)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("Llama", dict(_SIZES, **_HEADS)),
    "Llama, tied": ("Llama", dict(_SIZES, **_HEADS, tie_word_embeddings=True)),
    "Gemma 2": ("Gemma2", dict(_SIZES, **_HEADS, sliding_window=4, query_pre_attn_scalar=8)),
    "Qwen 2": ("Qwen2", dict(_SIZES, num_key_value_heads=1)),
    "Qwen 3": ("Qwen3", dict(_SIZES, **_HEADS)),
    "GPT-2": ("GPT2", _GPT2),
    "GPT-2, untied": ("GPT2", dict(_GPT2, tie_word_embeddings=False)),
    "OPT": ("OPT", _OPT),
    "GPT-NeoX": ("GPTNeoX", _SIZES),
    "Bloom": ("Bloom", dict(vocab_size=64, hidden_size=16, n_layer=2, n_head=2, initializer_range=0.3)),
}


def build(family, **changes):
    name, sizes = FAMILIES[family]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        config = getattr(transformers, f"{name}Config")(**{**sizes, **changes})
        return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def in_part(family, part):
    """A model of which only a part is trained, an adapter or the embeddings."""
    model = choose_trained(build(family), part)
    generator = torch.Generator().manual_seed(5)
    for value in model.parameters():
        if value.requires_grad and not value.any():  # an adapter begins with zeros
            value.data.normal_(0, 0.3, generator=generator)
    return model


def examples(lengths):
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, 64, (len(lengths), max(lengths)), generator=generator), torch.tensor(lengths)


def trained(model):
    return {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}


def norm_of(gradients, start, tokens, lengths):
    """The norm of an example that is neither the longest nor the shortest."""
    found = gradients.one(start, tokens[0, : lengths[0]])
    return float(torch.stack([value.float().norm() for value in found.values()]).norm())


def distance(found, expected):
    """The largest difference, in units of the largest entry."""
    assert found.keys() == expected.keys()
    largest = max(float(value.abs().max()) for value in expected.values())
    return max(float((found[name] - expected[name]).abs().max()) for name in expected) / largest


def assert_same(model, lengths, understood=None, **options):
    start, batch = trained(model), examples(lengths)
    ghosts = ExampleGradients(model, start, 17, **options)
    written = ExampleGradients(model, start, 17, written_out=True)
    assert ghosts.ghosts == (frozenset(start) if understood is None else understood)
    clip_norm = norm_of(written, start, *batch)
    expected = written.clipped_sum(start, *batch, clip_norm)
    assert distance(ghosts.clipped_sum(start, *batch, clip_norm), expected) < TOLERANCE


@pytest.mark.parametrize("padding", LENGTHS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_of_the_family_is_understood(family, padding):
    assert_same(build(family), LENGTHS[padding])


@pytest.mark.parametrize("family", FAMILIES)
def test_products_by_onednn_give_the_same(family, monkeypatch):
    monkeypatch.setattr(products, "_WORTHWHILE", 0)
    assert_same(build(family), LENGTHS["padded"])


@pytest.mark.parametrize("family", ["Llama, tied", "GPT-2"])
def test_long_examples_have_their_norms_from_gram_matrices_of_several_blocks(family):
    model = build(family, max_position_embeddings=256, n_positions=256)
    start = trained(model)
    tokens, lengths = examples([150, 70, 129])
    ghosts, written = (ExampleGradients(model, start, 150, written_out=way) for way in (False, True))
    clip_norm = norm_of(written, start, tokens, lengths)
    expected = written.clipped_sum(start, tokens, lengths, clip_norm)
    assert distance(ghosts.clipped_sum(start, tokens, lengths, clip_norm), expected) < TOLERANCE


@pytest.mark.parametrize("family", ["Llama, tied", "GPT-2"])
@pytest.mark.parametrize("part", ["lora", "embeddings"])
def test_adapters_and_embeddings_alone_are_understood(family, part):
    assert_same(in_part(family, part), LENGTHS["padded"])


@pytest.mark.parametrize("family", ["Llama, tied", "Gemma 2", "GPT-2"])
def test_in_bfloat16_sums_are_near_and_no_farther_from_float32_than_written_out_ones(family):
    exact, rounded = build(family), build(family).bfloat16()
    exact.load_state_dict(rounded.float().state_dict())
    rounded = rounded.bfloat16()
    batch = examples(LENGTHS["padded"])
    start, exact_start = trained(rounded), trained(exact)
    clip_norm = norm_of(ExampleGradients(exact, exact_start, 17), exact_start, *batch)
    expected = ExampleGradients(exact, exact_start, 17).clipped_sum(exact_start, *batch, clip_norm)
    ghosts, written = (ExampleGradients(rounded, start, 17, written_out=way) for way in (False, True))
    assert ghosts.ghosts == frozenset(start)
    found, before = (way.clipped_sum(start, *batch, clip_norm) for way in (ghosts, written))
    assert distance(found, before) < BFLOAT16
    assert squared(found, expected) <= 1.05 * squared(before, expected)  # both round at the same places of the model


def squared(found, expected):
    return sum(float((found[name] - expected[name]).square().sum()) for name in expected)


class Twice(torch.nn.Module):
    """A layer that is used twice, and whose weight another one shares."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.added = inner, torch.nn.Linear(16, 16)
        self.shared = torch.nn.Linear(16, 16, bias=False)
        self.shared.weight = self.added.weight

    def forward(self, hidden):
        return self.inner(self.added(torch.tanh(self.added(hidden)))) + self.shared(hidden)


def test_a_layer_that_is_used_several_times_has_one_gradient():
    model = build("Llama, tied")
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model.model.layers[0].mlp = Twice(model.model.layers[0].mlp)
    assert_same(model, LENGTHS["padded"])


class Swapped(torch.nn.Module):
    """Gives a layer the tokens of all examples along one axis, in an order of its own."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.layer = inner, torch.nn.Linear(16, 16)

    def forward(self, hidden):
        mixed = hidden.transpose(0, 1)
        found = self.layer(mixed.reshape(-1, 16) if self.flat else mixed)
        return self.inner(found.view(mixed.shape).transpose(0, 1))


@pytest.mark.parametrize("flat", [False, True])
def test_a_layer_whose_examples_are_not_where_they_are_expected_is_written_out(flat):
    model = build("Llama")
    model.model.layers[0].mlp = Swapped(model.model.layers[0].mlp)
    model.model.layers[0].mlp.flat = flat
    unknown = {"model.layers.0.mlp.layer.weight", "model.layers.0.mlp.layer.bias"}
    assert_same(model, LENGTHS["padded"], frozenset(trained(model)) - unknown)


class LiesAboutItsGradient(torch.nn.Module):
    """Hides a use of its weight from the tape, as code with gradients of its own may."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.layer = inner, torch.nn.Linear(16, 16)

    def forward(self, hidden):
        return self.inner(self.layer(hidden)) + _Hidden.apply(hidden, self.layer.weight)


class _Hidden(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(hidden, weight):
        return hidden @ weight

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        hidden, weight = ctx.saved_tensors
        return gradient @ weight.T, torch.einsum("...td,...te->de", hidden, gradient)


def test_what_autograd_contradicts_is_written_out():
    model = build("Llama")
    model.model.layers[0].mlp = LiesAboutItsGradient(model.model.layers[0].mlp)
    assert_same(model, LENGTHS["unpadded"], frozenset(trained(model)) - {"model.layers.0.mlp.layer.weight"})


@pytest.fixture(scope="module")
def deep():
    """SmolLM2-135M with random weights and fewer words: its 30 layers amplify rounding errors a thousandfold."""
    smollm2 = dict(vocab_size=512, hidden_size=576, intermediate_size=1536, num_hidden_layers=30)
    heads = dict(num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True, initializer_range=0.3)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**smollm2, **heads)).eval()


@pytest.mark.parametrize("threads", [1, 2])
def test_every_parameter_of_a_deep_model_is_understood_with_any_number_of_threads(deep, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert ExampleGradients(deep, trained(deep), 17).ghosts == frozenset(trained(deep))
    finally:
        torch.set_num_threads(before)
