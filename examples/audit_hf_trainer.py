"""Audit DP-SGD in Hugging Face's Trainer, with LoRA adapters, and let the Trainer log what is guaranteed.

The private Trainer is that of check_hf_trainer.py. The canary is one more sequence of tokens in the data. Models with
and without it are told apart by how far their adapters went along the canary's gradient. The callback reads the run off
the Trainer and Opacus, logs guarantee, prediction and mu, and writes a privacy card.

    python examples/audit_hf_trainer.py --models 64 --card PRIVACY.md
    MODEL=FOLDER python examples/audit_hf_trainer.py         any causal language model with q_proj and v_proj
    lastiterate audit --trainer examples/audit_hf_trainer.py:train --models 64
    FAULT=noise lastiterate audit --trainer examples/audit_hf_trainer.py:train     (status 3: not the declared run)
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import warnings

import check_hf_trainer as example
import torch
import transformers

import lastiterate as li
from lastiterate.attacks import Displacement
from lastiterate.integrations.transformers import PrivacyCallback

DELTA = 1e-5
CANARY = {"input_ids": [5, 9] * 6}


def canary_gradient() -> dict[str, torch.Tensor]:
    """Of the loss on the canary, at the start of training; before clipping."""
    model = copy.deepcopy(example.model)
    example.mean_loss(model, example.collate([CANARY]))[0].backward()
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


def train(seed: int, canary: bool, card: str | None = None, logging_steps: int = 0) -> li.Trained:
    """The training that is audited. It returns the adapters that would be released, and what it did to get there."""
    torch.set_num_threads(1)
    model, engine = copy.deepcopy(example.model), example.new_engine()
    data = example.examples[:-1] + ([CANARY] if canary else [])
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing")  # of PyTorch, on how Opacus sees gradients
        given = example.arguments(run.steps, seed, folder, logging_steps)
        trainer = example.PrivateTrainer(model, given, example.collate, data, engine=engine, **example.OPTIONS)
        callback = PrivacyCallback(trainer, engine, DELTA, card)
        if logging_steps:
            trainer.add_callback(callback)
        else:
            trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    if callback.run != run:
        raise ValueError(f"run must be what the Trainer and Opacus have done, {callback.run}, got {run}")
    released = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    return li.Trained(released, steps=trainer.state.global_step, noise_multiplier=callback.run.noise_multiplier)


run = example.run
attack = Displacement(canary_gradient(), references=16)


def main() -> None:
    """Train once with the callback's log, then audit, and print what was found beside what was predicted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=int, default=64, help="models in each of the two worlds (default: 64)")
    parser.add_argument("--card", help="a .md file for the privacy card of one training")
    options = parser.parse_args()
    train(0, True, options.card, logging_steps=4)
    result = li.audit(run, train, attack, options.models, delta=DELTA)
    print(f"guaranteed {result.composition:.3f}, predicted {result.last_iterate:.3f} at delta {DELTA:g}")
    for method, epsilon in result.empirical.items():
        print(f"found by {method}: at least {epsilon:.3f}, with {result.confidence:.0%} confidence")
    print(f"verdict: {result.verdict}. {result.reason}")


if __name__ == "__main__":
    main()
