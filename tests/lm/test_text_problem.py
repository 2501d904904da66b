"""A model and its texts: what is trained, what is unseen, perplexity, and what makes two problems the same."""

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from lastiterate import DPSGD, SGD
from lastiterate.auditing.identity import fingerprint
from lastiterate.lm.fine_tuning import Model, train_models
from lastiterate.lm.lm_experiment import perplexity_before
from lastiterate.lm.text_problem import Lora, TextProblem, load
from lastiterate.lm.texts import Texts
from lastiterate.lm.tokens import Tokens
from tests.lm.conftest import SPECIAL, SPOKEN, UNSPOKEN

WORDS = [*SPECIAL, *SPOKEN, *UNSPOKEN]
RUN = DPSGD(3, 0.3, 0.5, optimizer=SGD(0.02))


def released(problem, models, workers, canaries=(), run=RUN):
    """All parameters of the models, by their numbers."""
    wanted = [Model(number, [number % 2 == 0] * len(canaries)) for number in range(models)]
    found = train_models(run, problem, canaries, wanted, 5, lambda _, tensors: tensors, workers=workers)
    return {model.number: tensors for model, tensors, _ in found}


def assert_same_bits(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def test_what_is_unseen_is_in_no_text_neither_held_out_nor_behind_the_cut(tiny_llama):
    texts = Texts(("i like cat dog never0 never1", "yes no"), "text")
    others = Texts(("you see book song never2",), "text")
    problem = TextProblem.of(tiny_llama, texts, others, longest=3)
    assert problem.tokens.ids.tolist() == [[1, *map(WORDS.index, ("i", "like"))], [1, *map(WORDS.index, ("yes", "no"))]]
    spoken = {*" ".join((*texts.texts, *others.texts)).split(), *SPECIAL[:4]}
    assert [WORDS[number] for number in problem.unseen] == [word for word in WORDS if word not in spoken]
    assert load(problem).unseen.tolist() == problem.unseen.tolist()


@pytest.mark.parametrize("folder", ["tiny_llama", "tiny_gemma2"])
@pytest.mark.parametrize("microbatch", [1, 3])
def test_perplexity_is_e_to_the_mean_loss_of_a_token_by_hugging_face(folder, microbatch, tiny_texts, request):
    folder = request.getfixturevalue(folder)
    problem = TextProblem.of(folder, tiny_texts, 0.3, longest=12, microbatch=microbatch)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    total = count = 0.0
    for row, length in zip(problem.held_out.ids, problem.held_out.lengths, strict=True):
        ids = torch.from_numpy(row[:length])[None]
        with torch.no_grad():
            total += (length - 1) * model(input_ids=ids, labels=ids).loss.item()
        count += length - 1
    assert len(set(problem.held_out.lengths.tolist())) > 1
    assert perplexity_before(problem) == pytest.approx(math.exp(total / count), rel=1e-5)


@pytest.mark.parametrize(("folder", "tables"), [("tiny_llama", 1), ("tiny_llama_untied", 2), ("tiny_gemma2", 1)])
def test_added_tokens_have_rows_that_are_the_mean_of_the_others_and_only_they_are_unseen(
    folder, tables, tiny_texts, request
):
    folder = request.getfixturevalue(folder)
    plain = load(TextProblem.of(folder, tiny_texts))
    state = torch.get_rng_state()
    problem = TextProblem.of(folder, tiny_texts, added_tokens=5)
    loaded, again = load(problem), load(replace(problem))
    torch.set_rng_state(state)
    assert loaded is not again
    assert_same_bits(loaded.start, again.start)
    assert loaded.unseen.tolist() == list(range(64, 69))
    assert len(loaded.embeddings) == tables
    assert loaded.start.keys() == plain.start.keys()
    for name, value in plain.start.items():
        found = loaded.start[name]
        if name in loaded.embeddings:
            assert found.shape == (69, 16)
            assert torch.equal(found[:64], value)
            np.testing.assert_allclose(found[64:], value.mean(0).expand(5, -1), atol=1e-6)
        else:
            assert torch.equal(found, value)
    gradient = loaded.gradients.one(loaded.start, torch.tensor([1, 64, 68]))
    assert all(gradient[name][64].any() for name in loaded.embeddings)  # it is both predicted and read
    ids = loaded.examples
    before = plain.gradients.losses(plain.start, *ids)
    after = loaded.gradients.losses(loaded.start, *ids)
    assert (after > before).all()  # five more tokens to choose from


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        ("tiny_llama", ["model.embed_tokens.weight"]),
        ("tiny_llama_untied", ["model.embed_tokens.weight", "lm_head.weight"]),
        ("tiny_gemma2", ["model.embed_tokens.weight"]),
    ],
)
def test_embeddings_alone_are_trained(folder, names, tiny_texts, request):
    folder = request.getfixturevalue(folder)
    everything = load(TextProblem.of(folder, tiny_texts))
    whole = everything.gradients.one(everything.start, torch.tensor([1, 7, 8, 9]))
    problem = TextProblem.of(folder, tiny_texts, trained="embeddings")
    loaded = load(problem)
    assert list(loaded.start) == loaded.embeddings == names
    found = loaded.gradients.one(loaded.start, torch.tensor([1, 7, 8, 9]))
    for name in names:
        np.testing.assert_allclose(found[name], whole[name], atol=1e-5)
    before = {name: value.clone() for name, value in loaded.model.named_parameters()}
    trained = released(problem, 1, 1)[0]
    assert list(trained) == names
    assert all(not torch.equal(trained[name], before[name]) for name in names)
    assert_same_bits(before, dict(load(problem).model.named_parameters()))
    assert "embeddings only" in problem.words


def test_rank_scale_and_layers_of_an_adapter_are_as_given(tiny_llama, tiny_texts):
    problem = TextProblem.of(tiny_llama, tiny_texts, trained="lora", lora=Lora(3, 12.0, ("q_proj", "v_proj")))
    loaded = load(problem)
    assert "a LoRA adapter of rank 3" in problem.words
    assert len(loaded.start) == 2 * 2 * 2  # two factors of two matrices of each of two layers
    assert all(("q_proj" in name or "v_proj" in name) and 3 in value.shape for name, value in loaded.start.items())
    scales = {module.scaling["default"] for module in loaded.model.modules() if hasattr(module, "lora_A")}
    assert scales == {12.0 / 3}
    with pytest.raises(ValueError, match=r"lora_targets must be names of the model's layers, got \('other',\): "):
        load(replace(problem, lora=Lora(targets=("other",))))
    with pytest.raises(ValueError, match="lora_rank must be an integer at least 1, got 0"):
        Lora(0)
    with pytest.raises(ValueError, match="lora_alpha must be greater than 0"):
        Lora(alpha=0.0)


@pytest.mark.parametrize("folder", ["tiny_llama", "tiny_llama_untied"])
def test_an_adapter_alone_is_trained_and_begins_alike_in_every_session(folder, tiny_texts, request):
    folder = request.getfixturevalue(folder)
    plain = load(TextProblem.of(folder, tiny_texts))
    losses = plain.gradients.losses(plain.start, *plain.examples)
    problem = TextProblem.of(folder, tiny_texts, trained="lora")
    torch.manual_seed(1)
    loaded = load(problem)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert_same_bits(loaded.start, load(replace(problem)).start)
    assert torch.equal(state, torch.get_rng_state())
    assert loaded.embeddings == []
    assert len(loaded.start) == 2 * 2 * 7  # two factors of the seven matrices of each of two layers
    assert all(".lora_" in name and Lora.rank in value.shape for name, value in loaded.start.items())
    found = loaded.gradients.losses(loaded.start, *loaded.examples)
    np.testing.assert_allclose(found, losses, rtol=1e-5)  # to begin with it changes nothing
    first, second = released(problem, 1, 1)[0], released(replace(problem), 1, 1)[0]
    assert first.keys() == loaded.start.keys()
    assert_same_bits(first, second)
    assert all(not torch.equal(value, loaded.start[name]) for name, value in first.items())
    assert "a LoRA adapter" in problem.words


def test_a_fingerprint_depends_on_all_that_scores_depend_on(tiny_llama, tiny_texts, tmp_path):
    first = TextProblem.of(tiny_llama, tiny_texts)
    ids, lengths = first.tokens.ids.copy(), first.tokens.lengths.copy()
    ids[3, 1] += 1
    shorter = lengths.copy()
    shorter[3] -= 1
    other = shutil.copytree(tiny_llama, tmp_path / "model")
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"][0] += 1.0
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    problems = [
        first,
        TextProblem.of(other, tiny_texts),
        replace(first, tokens=Tokens(ids, lengths)),
        replace(first, tokens=Tokens(first.tokens.ids, shorter)),
        replace(first, held_out=None),
        replace(first, unseen=first.unseen[1:]),
        replace(first, trained="embeddings"),
        replace(first, trained="lora"),
        replace(first, trained="lora", lora=Lora(rank=4)),
        replace(first, trained="lora", lora=Lora(alpha=4)),
        replace(first, trained="lora", lora=Lora(targets=("q_proj",))),
        replace(first, dtype="bfloat16"),
        replace(first, added_tokens=1),
        replace(first, unit="text"),
    ]
    assert len({fingerprint(problem) for problem in problems}) == len(problems)


@pytest.mark.parametrize("folder", ["tiny_llama", "tiny_gemma2"])
@pytest.mark.parametrize("microbatch", [None, 1])
def test_models_trained_side_by_side_equal_those_trained_one_after_the_other(folder, microbatch, tiny_texts, request):
    problem = TextProblem.of(request.getfixturevalue(folder), tiny_texts, microbatch=microbatch)
    canaries = [[1, 60, 61, 62]]
    alone, together = (released(problem, 4, workers, canaries) for workers in (1, 2))
    assert sorted(together) == [0, 1, 2, 3]
    for number, tensors in alone.items():
        assert_same_bits(tensors, together[number])
    names = list(alone[0])
    assert not any(torch.equal(alone[0][name], alone[1][name]) for name in names)
