"""DP-SGD on language models: tokens a second and memory, beside plain training and Opacus.

Run it with `python benchmarks/language_models.py [--only NAME] [--busy]`; the README beside it says what is measured.
Exit status 1 if a requirement fails.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from opacus_language_models import WAYS, opacus_step
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, LlamaConfig
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

import lastiterate as li
from lastiterate.common.system import cores, kept_memory, process_peak_bytes
from lastiterate.lm.dp_sgd import TextTrainer
from lastiterate.lm.example_gradients import ExampleGradients
from lastiterate.lm.ghost.parameter_uses import linear
from lastiterate.lm.text_problem import choose_trained

LENGTH = 128
NOISE, CLIP, RATE = 1.0, 1.0, 1e-3
STEPS, REPEATS = 2, 4
LEAST_OF_PLAIN, AIM_OF_PLAIN, LEAST_OF_OPACUS, MOST_MEMORY = 0.85, 0.95, 1.7, 1.3

_SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
}
_LARGE: dict[str, Any] = {
    "vocab_size": 8000,
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
}
_GPT2: dict[str, Any] = {"vocab_size": 8000, "n_embd": 512, "n_layer": 6, "n_head": 8, "n_positions": 256}


@dataclass(frozen=True)
class Workload:
    """A model with random weights, and a batch of so many examples.

    Attributes:
        untied: whether Opacus, which cannot tie, is given the same with a head of its own.
    """

    name: str
    config: Callable[[], Any]
    examples: int
    is_large: bool
    lora: bool = False
    untied: bool = False


WORKLOADS = (
    Workload("Llama, 260,032, tied", lambda: LlamaConfig(**_SMALL, tie_word_embeddings=True), 64, False, untied=True),
    Workload("Gemma 2, same sizes", lambda: Gemma2Config(**_SMALL, sliding_window=64), 64, False, untied=True),
    Workload("Llama, 27 million", lambda: LlamaConfig(**_LARGE, tie_word_embeddings=False), 16, True),
    Workload("Llama, 23 million, tied", lambda: LlamaConfig(**_LARGE, tie_word_embeddings=True), 16, True, untied=True),
    Workload("GPT-2, 23 million, tied", lambda: GPT2Config(**_GPT2), 16, True, untied=True),
    Workload("LoRA on the Llama", lambda: LlamaConfig(**_LARGE, tie_word_embeddings=False), 16, True, lora=True),
)
SIDES = ("plain", "ours", "written out", *(f"Opacus, {way}" for way in WAYS))


@dataclass(frozen=True)
class Side:
    """What one way of training reaches; ``megabytes`` is what its steps add to the loaded model's process."""

    tokens_per_second: float
    megabytes: float

    def or_better(self, other: Side | None) -> Side:
        """The better rate of both, and the larger memory."""
        if other is None:
            return self
        rate = max(self.tokens_per_second, other.tokens_per_second)
        return Side(rate, max(self.megabytes, other.megabytes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="workloads whose names begin so")
    parser.add_argument("--sides", default="", help="how their names end, separated by commas: plain,ours,hooks")
    parser.add_argument(
        "--busy", action="store_true", help="one thread, by processor time: the machine does other work"
    )
    parser.add_argument("--json", type=Path, help="also write the rows there")
    asked = parser.parse_args()
    chosen = [workload for workload in WORKLOADS if workload.name.startswith(asked.only)]
    sides = tuple(side for side in SIDES if side.endswith(tuple(asked.sides.split(","))))
    rows = []
    for workload in chosen:
        rows.append(compare(workload, sides, asked.busy))
        if asked.json:  # all takes a quarter of an hour: what is known is kept
            asked.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    print_rows(rows, asked.busy)
    sys.exit(0 if all(row["passed"] for row in rows) else 1)


def print_rows(rows: list[dict[str, Any]], busy: bool) -> None:
    threads = "one thread, by processor time" if busy else f"{cores()} threads, small models one"
    table = Table(title=f"Steps of DP-SGD, examples of {LENGTH} tokens, {threads}")
    for column in ("model", "side", "tokens/s", "MB"):
        table.add_column(column, justify="left" if column in ("model", "side") else "right")
    for row in rows:
        for name, side in row["sides"].items():
            table.add_row(row["model"], name, *_cells(side))
        rate = f"products alone, at {row['flops'] / 1e9:.0f} Gflop/s"
        table.add_row(row["model"], rate, f"{row['limit']:,.0f}", "-", end_section=True)
    Console(width=110).print(table)
    table = Table(title="Requirements")
    for column in ("model", "what", "found", "required", ""):
        table.add_column(column, justify="right" if column in ("found", "required") else "left")
    for row in rows:
        for what, found, required, passed in row["checks"]:
            table.add_row(row["model"], what, f"{found:.2f}", required, "" if passed else "FAILS")
    Console(width=110).print(table)


def compare(workload: Workload, wanted: tuple[str, ...], busy: bool) -> dict[str, Any]:
    """All sides on the same model and tokens, each in a process of its own, in turns: a machine's speed changes."""
    names = [side for side in SIDES if side in wanted]
    with ExitStack() as open_pools:
        spawn = multiprocessing.get_context("spawn")
        pools = {side: open_pools.enter_context(ProcessPoolExecutor(1, spawn)) for side in names}
        number, rates, sides = WORKLOADS.index(workload), [], dict[str, Side | None]()
        for _ in range(REPEATS):
            rates.append(pools[names[0]].submit(product_rate, 1 if busy or not workload.is_large else cores()).result())
            for side in names:
                if side not in sides or sides[side] is not None:
                    found = pools[side].submit(measure, number, side, busy).result()
                    sides[side] = found and found.or_better(sides.get(side))
    checks = list(requirements(workload, sides))
    shown = {side: found and asdict(found) for side, found in sides.items()}
    limit = max(rates) / flops_of_token(workload)
    passed = all(check[3] for check in checks)
    return {
        "model": workload.name,
        "sides": shown,
        "limit": limit,
        "flops": max(rates),
        "checks": checks,
        "passed": passed,
    }


def requirements(workload: Workload, sides: dict[str, Side | None]) -> list[tuple[str, float, str, bool]]:
    """What is asked of this workload: what, how much was found, the bound in words, and whether it holds."""
    ours, plain, written = (sides.get(side) for side in ("ours", "plain", "written out"))
    peers = [side.tokens_per_second for name, side in sides.items() if name.startswith("Opacus") and side]
    found = []
    if ours and plain and workload.is_large:
        ratio, memory = ours.tokens_per_second / plain.tokens_per_second, ours.megabytes / plain.megabytes
        bound = f">= {LEAST_OF_PLAIN} (aim {AIM_OF_PLAIN})"
        found.append(("rate over plain training", ratio, bound, ratio >= LEAST_OF_PLAIN))
        found.append(("memory over plain training", memory, f"<= {MOST_MEMORY}", memory <= MOST_MEMORY))
    if ours and written:
        ratio = ours.tokens_per_second / written.tokens_per_second
        found.append(("rate over written out", ratio, ">= 1", ratio >= 1.0))
    if ours and peers:
        least = LEAST_OF_OPACUS if workload.is_large else 1.0
        ratio = ours.tokens_per_second / max(peers)
        found.append(("rate over Opacus' best", ratio, f">= {least}", ratio >= least))
    return found


_steps: dict[str, Callable[[], None] | None] = {}  # of this process: what trains some steps, once it is built
_before = 0  # the process' peak before
_lasting = ExitStack()  # until the process ends


def measure(number: int, side: str, busy: bool) -> Side | None:
    """One repeat; the first has one more before it. None: the library refuses the model."""
    global _before
    disable_progress_bar()
    set_verbosity_error()
    workload = WORKLOADS[number]
    if busy or not workload.is_large:  # small models are trained side by side, one on each core
        torch.set_num_threads(1)
    clock = time.process_time if busy else time.perf_counter
    try:
        if side not in _steps:
            model = build(workload, untied=workload.untied and side.startswith("Opacus"))
            size = (workload.examples, LENGTH)
            tokens = torch.as_tensor(np.random.default_rng(0).integers(0, model.config.vocab_size, size))
            _before = process_peak_bytes()
            _steps[side] = step_of(side, model, tokens)
            if (first := _steps[side]) is not None:
                first()
        step = _steps[side]
        if step is None:
            return None
        began = clock()
        step()
        seconds = clock() - began
    except (RuntimeError, ValueError, NotImplementedError, AttributeError) as error:
        print(f"{workload.name}, {side}: {str(error).splitlines()[0][:100]}", file=sys.stderr)
        return None
    return Side(STEPS * workload.examples * LENGTH / seconds, (process_peak_bytes() - _before) / 2**20)


def product_rate(threads: int) -> float:
    """Multiplications and additions a second in a large product of matrices, by the quicker of PyTorch's two ways."""
    torch.set_num_threads(threads)
    square, best = torch.ones(2048, 2048), math.inf
    for way in (torch.mm, linear) * 3:
        began = time.perf_counter()
        way(square, square)
        best = min(best, time.perf_counter() - began)
    return 2 * 2048.0**3 / best


def flops_of_token(workload: Workload) -> float:
    """Of the products of a step: forwards, to inputs, and to what is trained.

    Those of the first layer to inputs are counted, though nothing before it may be trained: at most 2% of all.
    """
    model = build(workload, untied=False)
    width, layers = model.config.hidden_size, model.config.num_hidden_layers
    flops = 12.0 * layers * LENGTH * width  # of attention
    looked_up = ("wpe.weight",) if is_tied(model) else ("wpe.weight", "embed_tokens.weight")
    for name, value in model.named_parameters():
        if value.dim() == 2 and not name.endswith(looked_up):
            flops += (6.0 if value.requires_grad else 4.0) * value.numel()
    return flops


def is_tied(model: Any) -> bool:
    return model.get_input_embeddings().weight is model.get_output_embeddings().weight


def build(workload: Workload, *, untied: bool) -> Any:
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(workload.config(), attn_implementation="eager").eval()
    if untied:
        head = torch.nn.Linear(model.config.hidden_size, model.config.vocab_size, bias=False)
        head.weight.data.copy_(model.get_input_embeddings().weight.data)
        model.lm_head, model.config.tie_word_embeddings = head, False
    return choose_trained(model, "lora") if workload.lora else model


def step_of(side: str, model: Any, tokens: torch.Tensor) -> Callable[[], None] | None:
    """What trains ``STEPS`` steps."""
    if side == "plain":
        once = plain_step(model, tokens)
    elif side.startswith("Opacus"):
        way = side.removeprefix("Opacus, ")
        found = opacus_step(model, tokens, way, noise=NOISE, clip_norm=CLIP, rate=RATE)
        if found is None:
            return None
        once = found
    else:
        return our_steps(model, tokens, written_out=side == "written out")

    def several() -> None:
        for _ in range(STEPS):
            once()

    return several


def plain_step(model: Any, tokens: torch.Tensor) -> Callable[[], None]:
    """Training without privacy."""
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=RATE)

    def step() -> None:
        optimizer.zero_grad()
        logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return step


def our_steps(model: Any, tokens: torch.Tensor, *, written_out: bool) -> Callable[[], None]:
    start = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    gradients = ExampleGradients(model, start, tokens.shape[1], written_out=written_out)
    run = li.DPSGD(STEPS, 1.0, NOISE, clip_norm=CLIP, sampling="full", optimizer=li.SGD(RATE))
    trainer = TextTrainer(run, gradients, start, tokens, torch.full((len(tokens),), tokens.shape[1]))
    _lasting.enter_context(kept_memory())  # as while an audit trains its models
    return lambda: trainer.train([], [], [0]) and None


def _cells(side: dict[str, float] | None) -> tuple[str, str]:
    if side is None:
        return "refuses it", "-"
    return f"{side['tokens_per_second']:,.0f}", f"{side['megabytes']:,.0f}"


if __name__ == "__main__":
    main()
