"""Models by their names on the hub: from its cache, or downloaded, and never more than is needed."""

import shutil

import huggingface_hub
import pytest
import torch

from lastiterate.lm.hub import load_model, load_tokenizer, model_folder, weights_digest
from tests.data.writers import refusal
from tests.lm.conftest import into_shards, logits

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
