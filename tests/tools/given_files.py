"""Files that the fuzzed commands are given: a trainer, scores, texts, a tiny language model, a store, and junk."""

from pathlib import Path

import numpy as np

_TRAINER = """
import numpy as np
import lastiterate as li
from lastiterate.attacks import Adversarial as Attack

run = li.DPSGD(steps=3, sample_rate=0.5, noise_multiplier=1.0)
number = 3


def train(seed, canary):
    return float(canary + np.random.default_rng(seed).standard_normal())


def parameters(seed, canary):
    return np.random.default_rng(seed).standard_normal(4)


def broken(seed):
    return 0.0


class NoAttack:
    pass


class Broken(Attack):
    def __init__(self, needed):
        self.needed = needed
"""


def make_files(folder: Path) -> None:
    """Write all of them into a new folder."""
    folder.mkdir()
    (folder / "mine.py").write_text(_TRAINER)
    rows = [f"{world},{i + 9 * (world == 'in')}" for world in ("in", "out") for i in range(6)]
    (folder / "few.csv").write_text("\n".join(["world,score", *rows, ""]))
    (folder / "filter.txt").write_text("1.0, -0.5\n-0.125\n")
    (folder / "junk").write_bytes(bytes(range(256)) * 4)
    (folder / "folder.png").mkdir()
    (folder / "loop").symlink_to("loop")
    rng = np.random.default_rng(0)
    images = {"x_train": rng.random((20, 4, 4)), "y_train": np.arange(20) % 2}
    np.savez(folder / "images.npz", **images, x_test=images["x_train"][:4], y_test=images["y_train"][:4])
    _language_model(folder / "tiny")
    _texts(folder / "texts.txt", rng)
    _store(folder / "audit.sqlite", steps=3)
    _store(folder / "other.sqlite", steps=4)


def _language_model(folder: Path) -> None:
    import torch
    import transformers

    from tests.lm.conftest import SIZES, _tokenizer

    torch.manual_seed(3)
    config = transformers.LlamaConfig(**SIZES, tie_word_embeddings=True)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    _tokenizer(transformers).save_pretrained(folder)


def _texts(file: Path, rng: np.random.Generator) -> None:
    from tests.lm.conftest import SPOKEN

    lines = [" ".join(rng.choice(SPOKEN, 6)) for _ in range(40)]
    file.write_text("\n".join(lines) + "\n")


def _store(file: Path, steps: int) -> None:
    import lastiterate as li

    def train(seed: int, canary: bool) -> float:
        return float(canary + np.random.default_rng(seed).standard_normal())

    run = li.DPSGD(steps=steps, sample_rate=0.5, noise_multiplier=1.0)
    li.audit(run, train, models=6, store=file, progress=False)
