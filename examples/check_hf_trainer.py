"""Check DP-SGD in Hugging Face's Trainer: a language model with LoRA adapters from PEFT, trained with Opacus.

`Private` is the part to copy. It makes any Trainer private, TRL's SFTTrainer too: `class Mine(Private, SFTTrainer)`.

    python examples/check_hf_trainer.py                      a tiny Llama with random weights
    python examples/check_hf_trainer.py --model FOLDER       any causal language model with its tokenizer
    lastiterate check --trainer examples/check_hf_trainer.py:train
    FAULT=frozen lastiterate check --trainer examples/check_hf_trainer.py:train     (status 1; see FAULTS)
"""

from __future__ import annotations

import argparse
import copy
import gc
import os
import tempfile
import warnings
from typing import Any

import peft
import torch
import transformers
from opacus import PrivacyEngine
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import lastiterate as li
from lastiterate.integrations.opacus import plant

EXAMPLES, BATCH_SIZE, STEPS, LEARNING_RATE, NOISE_MULTIPLIER, CLIP_NORM = 44, 8, 12, 0.05, 1.0, 3.0
BATCHES = -(-EXAMPLES // BATCH_SIZE)  # of an epoch
FAULTS = {
    "frozen": "one adapter tensor is missing from the optimizer, and silently does not train",
    "microbatch": "noise is added once for each micro-batch",
    "noise": "half of the noise",
    "tokens": "the usual loss of language models: the mean over the tokens of the drawn batch",
}
FAULT = os.environ.get("FAULT", "")
if FAULT not in ("", *FAULTS):
    raise ValueError(f"FAULT must be one of {', '.join(FAULTS)}, got {FAULT!r}")


def mean_loss(model: Any, inputs: Any) -> tuple[torch.Tensor, Any]:
    """Return the mean over examples of each example's own mean over its tokens, and the model's outputs."""
    labels = inputs["labels"][:, 1:]
    outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs.get("attention_mask"))
    losses = cross_entropy(outputs.logits[:, :-1].transpose(1, 2), labels, reduction="none")
    return (losses.sum(1) / (labels != -100).sum(1).clamp(min=1)).mean(), outputs


class Private:
    """A mixin for Trainer and its subclasses: Poisson sampling, per-example clipping and noise by Opacus."""

    def __init__(self, *args: Any, engine: Any, privacy: dict[str, Any], micro_batch: int, **more: Any) -> None:
        self.engine, self.privacy, self.micro_batch = engine, privacy, micro_batch
        super().__init__(*args, **more)

    def get_train_dataloader(self) -> DataLoader:
        """Make model, optimizer and loader private. The Trainer calls this before it creates an optimizer."""
        size = self.args.per_device_train_batch_size  # of the batch that is drawn, however it is split
        loader = DataLoader(self.train_dataset, size, shuffle=True, collate_fn=self.data_collator)
        _, self.optimizer, loader = self.engine.make_private(
            module=self.model,
            optimizer=self.create_optimizer(),
            data_loader=loader,
            wrap_model=False,  # the model keeps its class, so that it can be saved and can generate
            **self.privacy,
        )
        loader.collate_fn([self.train_dataset[0]])  # shows Opacus what an empty batch looks like
        return loader

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **ignored: Any) -> Any:
        """Use a loss in which no example's gradient depends on another example."""
        loss, outputs = mean_loss(model, inputs)
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Add up the clipped gradients of micro-batches. The Trainer's next call, optimizer.step(), adds noise once."""
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)  # without accelerate's wrapper
        optimizer.zero_grad()  # the Trainer clears the model's gradients only
        rows = len(inputs["input_ids"])
        if not rows:  # Poisson sampling may draw nobody: a step of noise alone
            for parameter in optimizer.params:
                parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))
            return torch.zeros((), device=self.args.device)
        total = torch.zeros((), device=self.args.device)
        for begin in range(0, rows, self.micro_batch):
            if begin:
                optimizer.signal_skip_step(do_skip=True)  # clip and add up, without noise
                optimizer.step()
                optimizer.zero_grad()
            part = {name: tensor[begin : begin + self.micro_batch] for name, tensor in inputs.items()}
            loss = super().training_step(model, part, num_items_in_batch)
            total += loss * len(part["input_ids"]) / rows
        return total


class PrivateTrainer(Private, transformers.Trainer):
    """The Trainer with Opacus."""


class CheckedTrainer(PrivateTrainer):
    """The private Trainer with the check's canary in its data, and with one of the FAULTS if there is one."""

    canary: Any = False

    def get_train_dataloader(self) -> DataLoader:
        loader = super().get_train_dataloader()
        return plant(self.canary, self.model, self.optimizer, loader)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        is_new, optimizer = self.optimizer is None, super().create_optimizer(model)
        if FAULT == "frozen" and is_new:
            optimizer.add_param_group({"params": optimizer.param_groups[0]["params"].pop(), "lr": 0.0})
        return optimizer

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
        if FAULT == "tokens":
            return transformers.Trainer.compute_loss(self, model, inputs, return_outputs, **more)
        return super().compute_loss(model, inputs, return_outputs, **more)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        if FAULT == "microbatch":  # every micro-batch gets noise, and is an update
            self.optimizer.optimizer.signal_skip_step = lambda do_skip: None
        return super().training_step(model, inputs, num_items_in_batch)


def tiny_model() -> Any:
    """Return a Llama with random weights."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, initializer_range=0.3, **sizes))


def load(name: str | None) -> tuple[Any, list[list[int]]]:
    """Return a model and token sequences that it can read: random ones, since a check looks at gradients alone."""
    model = tiny_model() if name is None else transformers.AutoModelForCausalLM.from_pretrained(name)
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(4, 13, (EXAMPLES,), generator=generator).tolist()
    sequences = [torch.randint(3, model.config.vocab_size, (each,), generator=generator).tolist() for each in lengths]
    return model, sequences


def collate(examples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Pad to the longest example. Labels of padding are -100, which no loss counts."""
    longest = max(len(each["input_ids"]) for each in examples)

    def padded(fill: int, rows: list[list[int]]) -> torch.Tensor:
        return torch.tensor([row + [fill] * (longest - len(row)) for row in rows])

    tokens = [each["input_ids"] for each in examples]
    masks = padded(0, [[1] * len(each) for each in tokens])
    return {"input_ids": padded(0, tokens), "labels": padded(-100, tokens), "attention_mask": masks}


def with_adapters(model: Any) -> Any:
    """Return the model with LoRA adapters, both factors nonzero, so that both have gradients from the first step."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft warns of what saving would need
        config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        return peft.get_peft_model(model, config)


def arguments(steps: int, seed: int, folder: str, logging_steps: int = 0) -> transformers.TrainingArguments:
    """Return the Trainer's arguments, as small as they can be."""
    return transformers.TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=BATCH_SIZE,
        max_steps=steps,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        optim="sgd",
        seed=seed,
        max_grad_norm=0.0,  # Opacus clips each example; this would clip what Opacus then overwrites
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        remove_unused_columns=False,
        logging_strategy="steps" if logging_steps else "no",
        logging_steps=logging_steps or steps,
    )


def new_engine() -> PrivacyEngine:
    """Return an engine whose random numbers follow the seed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Secure RNG turned off")  # right: seeds must give the same models again
        return PrivacyEngine()


NOISE = NOISE_MULTIPLIER / 2 if FAULT == "noise" else NOISE_MULTIPLIER
OPTIONS = {"privacy": {"noise_multiplier": NOISE, "max_grad_norm": CLIP_NORM}, "micro_batch": 4}


def train(seed: int, canary: dict[str, torch.Tensor] | bool, steps: int = STEPS) -> dict[str, torch.Tensor]:
    """The training that is checked, stopped after so many steps. It returns the parameters that would be released."""
    torch.set_num_threads(1)
    fresh = copy.deepcopy(model)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing")  # of PyTorch, on how Opacus sees gradients
        given = arguments(max(steps, 1), seed, folder)
        trainer = CheckedTrainer(fresh, given, collate, examples, engine=new_engine(), **OPTIONS)
        trainer.canary = canary
        trainer.remove_callback(transformers.PrinterCallback)
        if steps:
            trainer.train()
    return {name: p for name, p in fresh.named_parameters() if p.requires_grad}


parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
parser.add_argument("--model", help="folder or hub name of a causal language model with q_proj and v_proj")
model, sequences = load(parser.parse_args().model if __name__ == "__main__" else os.environ.get("MODEL"))
model = with_adapters(model)
examples = [{"input_ids": sequence} for sequence in sequences]
optimizer = li.SGD(LEARNING_RATE / (EXAMPLES // BATCHES))  # Opacus divides sums by the expected batch size
run = li.DPSGD(STEPS, 1 / BATCHES, NOISE_MULTIPLIER, clip_norm=CLIP_NORM, optimizer=optimizer)
gc.freeze()  # the Trainer collects garbage before it trains, which would take longer than so small a training


if __name__ == "__main__":
    print(li.check(run, train))
