"""Models are loaded from safetensors, without network, without running anything, and without a word."""

import json
import shutil
import sys
from pathlib import Path

import huggingface_hub
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from lastiterate.lm.hub import load_model, load_tokenizer, model_folder, weights_digest
from tests.data.writers import refusal
from tests.lm.conftest import SIZES, into_shards, logits


def set_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("model", ["tiny_llama", "tiny_llama_untied", "tiny_gemma2"])
def test_a_folder_is_loaded_ready_for_use_and_without_network(model, request, no_network):
    folder = request.getfixturevalue(model)
    loaded = load_model(folder)
    assert not no_network
    assert type(loaded).__name__ == ("Gemma2ForCausalLM" if model == "tiny_gemma2" else "LlamaForCausalLM")
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    assert {parameter.device.type for parameter in loaded.parameters()} == {"cpu"}
    assert not loaded.training
    assert loaded.config._attn_implementation == "eager"
    assert loaded.config.use_cache is False
    assert loaded(torch.tensor([[1, 5, 6]])).past_key_values is None
    tied = loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight
    assert tied == (model != "tiny_llama_untied")
    stored = load_file(folder / "model.safetensors")
    assert torch.equal(loaded.get_input_embeddings().weight, stored["model.embed_tokens.weight"])


def test_shards_are_loaded_as_one_file_is(folder):
    whole = load_model(folder).state_dict()
    into_shards(folder)
    parts = load_model(folder).state_dict()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_pickled_weights_are_refused(folder, pickled):
    content, marker = pickled
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(content)
    for call in (load_model, model_folder, weights_digest):
        message = refusal(call, folder)
        assert "pytorch_model.bin" in message
        assert "pickles are never loaded" in message
        assert "model.save_pretrained(folder)" in message
    assert not marker.exists()


@pytest.mark.parametrize("place", ["top", "part", "list"])
def test_weights_that_a_configuration_names_are_refused(folder, pickled, place):
    content, marker = pickled
    (folder / "adapter_model.bin").write_bytes(content)
    named = {"transformers_weights": "adapter_model.bin"}
    set_config(folder, **{"top": named, "part": {"text_config": named}, "list": {"parts": [named]}}[place])
    assert "got one with transformers_weights" in refusal(load_model, folder)
    assert not marker.exists()


def test_weights_of_8_bits_are_refused_with_a_reason(folder):
    set_config(folder, quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True})
    message = refusal(load_model, folder)
    assert "float32 or bfloat16, since 8-bit weights cannot be trained, got one with quantization_config" in message


@pytest.fixture
def with_code(folder, tmp_path, monkeypatch):
    """A model of a type that only its own code knows, and the file that appears if that code runs."""
    marker = tmp_path / "code_has_run"
    (folder / "strange.py").write_text(
        "from pathlib import Path\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        f"Path({str(marker)!r}).touch()\n"
        "class StrangeConfig(LlamaConfig):\n"
        "    model_type = 'strange'\n"
        "class StrangeModel(LlamaForCausalLM):\n"
        "    config_class = StrangeConfig\n"
    )
    auto_map = {"AutoConfig": "strange.StrangeConfig", "AutoModelForCausalLM": "strange.StrangeModel"}
    set_config(folder, model_type="strange", architectures=["StrangeModel"], auto_map=auto_map)
    # Code that is trusted is copied there before it is imported.
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    return folder, marker


def test_code_that_comes_with_a_model_runs_only_if_it_is_trusted(with_code):
    folder, marker = with_code
    message = refusal(load_model, folder)
    assert "trust_remote_code (--trust-remote-code) must be given" in message
    assert not marker.exists()
    assert type(load_model(folder, trust_remote_code=True)).__name__ == "StrangeModel"
    assert marker.exists()


@pytest.mark.parametrize("is_decoder", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_that_looks_ahead_is_refused(tmp_path, is_decoder, dtype):
    sizes = {name: SIZES[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}
    config = transformers.BertConfig(**sizes, intermediate_size=24, is_decoder=is_decoder, initializer_range=0.3)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        transformers.BertLMHeadModel(config).save_pretrained(tmp_path)
    if is_decoder:
        assert load_model(tmp_path, dtype=dtype).config.is_decoder
    else:
        message = refusal(lambda: load_model(tmp_path, dtype=dtype))
        assert "must be a causal language model, got BertLMHeadModel that sees all tokens" in message


def test_parameters_that_are_missing_are_not_made_up(folder):
    path = folder / "model.safetensors"
    weights = load_file(path)
    del weights["model.norm.weight"], weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, path, {"format": "pt"})
    message = refusal(load_model, folder)
    assert "must hold all parameters of LlamaForCausalLM" in message
    assert "'model.layers.0.mlp.up_proj.weight' and 1 more are missing" in message


def test_damage_is_told_in_one_sentence(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "could not be loaded by transformers" in refusal(load_model, folder)
    set_config(folder, model_type="unheard_of")
    assert "has model type `unheard_of`" in refusal(load_model, folder)
    (folder / "config.json").write_text("{")
    assert "must be a JSON object" in refusal(load_model, folder)
    (folder / "tokenizer.json").write_text("{")
    assert "must be a JSON object" in refusal(load_tokenizer, folder)
    (folder / "tokenizer.json").write_text("{}")
    assert "could not be loaded by transformers" in refusal(load_tokenizer, folder)


def test_the_digest_is_of_weights_and_configuration_and_not_of_names(folder, tmp_path):
    digest = weights_digest(folder)
    assert len(bytes.fromhex(digest)) == 32
    elsewhere = Path(shutil.copytree(folder, tmp_path / "elsewhere"))
    (elsewhere / "notes.txt").touch()
    assert weights_digest(elsewhere) == weights_digest(str(elsewhere)) == digest
    path = elsewhere / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"][3] += 1e-6
    save_file(weights, path, {"format": "pt"})
    assert weights_digest(elsewhere) != digest
    set_config(folder, rms_norm_eps=1e-4)
    assert weights_digest(folder) != digest


COMMIT = "0123456789abcdef" * 2 + "01234567"


@pytest.fixture
def cache(tmp_path, monkeypatch, no_network):
    """An empty cache of the hub, and no way out of this computer."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "cache"


def fill_cache(cache, folder):
    """As if ``owner/tiny`` had been downloaded once."""
    stored = cache / "models--owner--tiny"
    (stored / "refs").mkdir(parents=True)
    (stored / "refs" / "main").write_text(COMMIT)
    shutil.copytree(folder, stored / "snapshots" / COMMIT)


def test_pickles_are_neither_downloaded_nor_loaded_from_the_cache(cache, folder, pickled):
    content, marker = pickled
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(content)
    fill_cache(cache, folder)
    assert "pickles are never loaded" in refusal(load_model, "owner/tiny")
    assert not marker.exists()


@pytest.fixture
def fake_hub(tmp_path, monkeypatch, no_network):
    """A hub on this computer that has one model: what it is asked for is copied, and nothing else."""
    source, snapshot = tmp_path / "source", tmp_path / COMMIT

    def download(name, *, revision, allow_patterns, ignore_patterns):
        assert name == "owner/tiny"
        assert revision in (None, COMMIT)
        snapshot.mkdir(exist_ok=True)
        names = [path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()]
        choose = huggingface_hub.utils.filter_repo_objects
        for file in choose(names, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns):
            shutil.copy(source / file, snapshot / file)
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return source, snapshot


@pytest.mark.parametrize("sharded", [False, True])
def test_only_what_is_needed_is_downloaded(fake_hub, folder, sharded):
    source, snapshot = fake_hub
    if sharded:
        into_shards(folder)
    needed = {path.name for path in folder.iterdir()}
    shutil.copytree(folder, source)
    (source / "original").mkdir()
    for name in ("pytorch_model.bin", "model.fp16.safetensors", "code.py", "vocab.pkl", "original/params.json"):
        (source / name).write_bytes(b"never")
    load_tokenizer("owner/tiny")
    assert {path.name for path in snapshot.iterdir()} == {name for name in needed if not name.endswith(".safetensors")}
    assert torch.equal(logits(load_model("owner/tiny"), [[1, 5]]), logits(load_model(folder), [[1, 5]]))
    assert {path.name for path in snapshot.iterdir()} == needed
    assert weights_digest("owner/tiny") == weights_digest(folder)
    model_folder("owner/tiny", trust_remote_code=True)
    assert {path.name for path in snapshot.iterdir()} == {*needed, "code.py"}
