"""DP-SGD on a language model: tokens a second and memory, ours and Opacus' side by side.

Run it with `python benchmarks/language_models.py [--model FOLDER]`; the README beside it says what is measured. Exit
status 1 if a requirement fails.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

import lastiterate as li
from lastiterate.lm.gradients import ExampleGradients
from lastiterate.lm.trainer import TextTrainer
from lastiterate.machine import process_peak_bytes

BATCH, LENGTH = 64, 128
NOISE, CLIP, RATE = 1.0, 1.0, 1e-3
REPEATS = 5


@dataclass(frozen=True)
class Side:
    """What one library reaches, in a process of its own; ``megabytes`` is what its steps add to the loaded model."""

    tokens_per_second: float
    megabytes: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="the folder of a model (default: stories260k's sizes at random)")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--json", type=Path, help="also write the rows there")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = {"given": asked.model} if asked.model else random_models(Path(folder))
        rows = [compare(name, path, asked.batch, asked.length) for name, path in models.items()]
    table = Table(title=f"{asked.batch} examples of {asked.length} tokens, {torch.get_num_threads()} threads")
    for column in ("model", "weights", "library", "tokens/s", "MB", "ratio", "required"):
        table.add_column(column, justify="left" if column in ("model", "weights", "library") else "right")
    for row in rows:
        for each in ("tied", "untied"):
            table.add_row(row["model"], each, "lastiterate", *_cells(row[each]))
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
        table.add_row(row["model"], "untied", "Opacus", *_cells(row["opacus"]), ratio, "1")
    Console(width=110).print(table)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    sys.exit(0 if all(row["ratio"] is None or row["ratio"] >= 1.0 for row in rows) else 1)


def random_models(folder: Path) -> dict[str, Path]:
    """Both architectures at a small size."""
    disable_progress_bar()
    sizes: dict[str, Any] = {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 172,
        "num_hidden_layers": 5,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 8,
    }
    LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True)).save_pretrained(folder / "llama")
    Gemma2ForCausalLM(Gemma2Config(**sizes, sliding_window=64)).save_pretrained(folder / "gemma2")
    return {"Llama, 260,032": folder / "llama", "Gemma 2, same sizes": folder / "gemma2"}


def compare(name: str, path: Path, batch: int, length: int) -> dict[str, Any]:
    """Both libraries on the untied model, in turns, and ours on the tied one; Opacus cannot tie."""
    sides: dict[str, Side | None] = {}
    for key, work, tied in (("tied", ours, True), ("untied", ours, False), ("opacus", opacus, False)):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            sides[key] = pool.submit(measure, work, path, tied, batch, length).result()
    ours_, theirs = sides["untied"], sides["opacus"]
    ratio = ours_.tokens_per_second / theirs.tokens_per_second if ours_ and theirs else None
    return {"model": name, **{key: side and asdict(side) for key, side in sides.items()}, "ratio": ratio}


def measure(
    work: Callable[[Any, torch.Tensor], Callable[[], None] | None], path: Path, tied: bool, *size: int
) -> Side | None:
    """The best of some steps; memory is the growth of the process' peak. None: the library refuses the model."""
    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
    if not tied:
        head = torch.nn.Linear(model.config.hidden_size, model.config.vocab_size, bias=False)
        head.weight.data.copy_(model.get_input_embeddings().weight.data)
        model.lm_head, model.config.tie_word_embeddings = head, False
    tokens = torch.as_tensor(np.random.default_rng(0).integers(0, model.config.vocab_size, size))
    before = process_peak_bytes()
    step = work(model, tokens)
    if step is None:
        return None
    best = math.inf
    for _ in range(REPEATS):
        began = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - began)
    return Side(tokens.numel() / best, (process_peak_bytes() - before) / 2**20)


def ours(model: Any, tokens: torch.Tensor) -> Callable[[], None]:
    start = {name: value.detach() for name, value in model.named_parameters()}
    gradients = ExampleGradients(model, start, tokens.shape[1])
    run = li.DPSGD(1, 1.0, NOISE, clip_norm=CLIP, sampling="full", optimizer=li.SGD(RATE))
    trainer = TextTrainer(run, gradients, start, tokens, torch.full((len(tokens),), tokens.shape[1]))
    return lambda: trainer.train([], [], [0]) and None


def opacus(model: Any, tokens: torch.Tensor) -> Callable[[], None] | None:
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    if GradSampleModule.validate(model.train()):  # what it cannot train
        return None
    sampled = GradSampleModule(model.train(), batch_first=True, loss_reduction="mean", force_functorch=True)
    optimizer = DPOptimizer(
        torch.optim.SGD(sampled.parameters(), lr=RATE),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=len(tokens),
    )

    # One mask and one row of positions for each example, since Opacus takes everything to have a row an example.
    positions = torch.arange(tokens.shape[1]).repeat(len(tokens), 1)

    def step() -> None:
        optimizer.zero_grad()
        logits = sampled(input_ids=tokens, position_ids=positions, use_cache=False).logits[:, :-1]
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return step


def _cells(side: dict[str, float] | None) -> tuple[str, str]:
    if side is None:
        return "refuses it", "-"
    return f"{side['tokens_per_second']:,.0f}", f"{side['megabytes']:,.0f}"


if __name__ == "__main__":
    main()
