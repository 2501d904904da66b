"""The problem of fine-tuning: a causal language model, its trained parameters, and the texts as tokens."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias, cast, get_args

import numpy as np
import torch
from torch import Tensor

from lastiterate.auditing.audit_target import Subject
from lastiterate.common.errors import MissingExtra
from lastiterate.common.types import Foreign, IntArray
from lastiterate.common.validation import instance, integer, number, one_of, told
from lastiterate.lm import hub
from lastiterate.lm.example_gradients import ExampleGradients, Tensors
from lastiterate.lm.texts import Texts, Unit, split_texts
from lastiterate.lm.tokens import CausalModel, Tokens, encode, pad, unseen_tokens
from lastiterate.optimizer import SGD
from lastiterate.run import DPSGD

Trained: TypeAlias = Literal["all", "embeddings", "lora"]


@dataclass(frozen=True)
class Lora:
    """The adapter of ``trained="lora"``: its rank, its scale alpha (default: 2 rank), and the layers that have one.

    ``targets`` are names of linear layers as peft takes them, such as ("q_proj", "v_proj"). None means all of them.
    """

    rank: int = 8
    alpha: float | None = None
    targets: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        integer("lora_rank", self.rank)
        if self.alpha is not None:
            number("lora_alpha", self.alpha, 0.0, open_low=True)

    def config(self, peft: Foreign) -> Foreign:
        """Return peft's description of the adapter."""
        targets = "all-linear" if self.targets is None else list(self.targets)
        alpha = 2 * self.rank if self.alpha is None else self.alpha
        return peft.LoraConfig(r=self.rank, lora_alpha=alpha, target_modules=targets, task_type="CAUSAL_LM")


ALL_LINEAR = Lora()


def choose_trained(model: CausalModel, trained: Trained, lora: Lora = ALL_LINEAR) -> CausalModel:
    """Set ``requires_grad`` on the trained parameters. For "lora", return the model with an adapter."""
    if trained != "lora":
        for parameter in model.parameters():
            parameter.requires_grad_(trained == "all")
        if trained == "embeddings":
            for table in _tables(model):
                table.requires_grad_()
        return model
    try:
        import peft
    except ImportError as error:
        raise MissingExtra("trained='lora' needs peft, which is not installed: pip install peft") from error
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft warns about saving adapters, but none is saved here
        torch.manual_seed(0)  # the adapter's random start must be the same in every session
        try:
            adapted = peft.get_peft_model(model, lora.config(peft), autocast_adapter_dtype=False)
        except ValueError as error:
            raise ValueError(f"lora_targets must be names of the model's layers, got {lora.targets}: {error}") from None
        return cast("CausalModel", adapted)


def _tables(model: Foreign) -> list[Tensor]:
    return [model.get_input_embeddings().weight, model.get_output_embeddings().weight]


LONGEST = 128
HELD_OUT = 0.1


@dataclass(frozen=True, eq=False)
class TextProblem:
    """A language model and texts as tokens. Make it with ``TextProblem.of``.

    Fields with compare=False do not change scores.
    """

    model: str = field(compare=False)
    weights: str  # digest of the model's files
    tokens: Tokens  # the examples
    held_out: Tokens | None  # examples on which perplexity is measured
    unseen: IntArray  # tokens of the tokenizer that occur in none of the texts
    unit: Unit = "text"
    trained: Trained = "all"
    dtype: hub.Precision = "float32"  # precision of the model and of releases; sums, noise and updates are in float32
    added_tokens: int = 0
    trust_remote_code: bool = field(default=False, compare=False)
    microbatch: int | None = field(default=None, compare=False)
    checkpointing: bool = field(default=False, compare=False)
    device: str | None = field(default=None, compare=False)
    people: int | None = field(default=None, compare=False)  # number of people; None if each example is a unit
    of_a_person: int = field(default=1, compare=False)  # largest number of examples of one person
    lora: Lora = ALL_LINEAR

    def __post_init__(self) -> None:
        one_of("trained", self.trained, get_args(Trained))
        if self.microbatch is not None:
            integer("microbatch", self.microbatch)
        one_of("dtype", self.dtype, get_args(hub.Precision))
        integer("added_tokens", self.added_tokens, 0)
        _find_device(self.device)

    @classmethod
    def of(
        cls,
        model: str | Path,
        texts: Texts,
        held_out: Texts | float | None = HELD_OUT,
        *,
        longest: int = LONGEST,
        trained: Trained = "all",
        dtype: hub.Precision = "float32",
        added_tokens: int = 0,
        trust_remote_code: bool = False,
        microbatch: int | None = None,
        checkpointing: bool = False,
        device: str | None = None,
        lora: Lora = ALL_LINEAR,
    ) -> TextProblem:
        """Tokenise the texts with the model's tokenizer.

        Args:
            model: folder, or name on the Hugging Face hub.
            texts: the training texts; each is one example.
            held_out: texts for perplexity, or the share of ``texts`` to set aside for it, or None.
            longest: largest number of tokens of an example. Longer examples are cut.
            trained: the parameters to train: "all", "embeddings", or "lora" (an adapter, which needs peft).
            dtype: "float32" or "bfloat16".
            added_tokens: number of tokens to add to the vocabulary. Canaries need them if the texts contain all tokens.
            trust_remote_code: whether Python code of the model may run.
            microbatch: number of examples that are computed at once. By default, as many as fit in memory.
            checkpointing: save memory by computing activations twice.
            device: PyTorch's device. By default, a GPU if there is one.
            lora: the adapter that ``trained="lora"`` trains. By default, rank 8 in all linear layers.
        """
        integer("longest", longest, 2)
        instance("texts", texts, Texts, "lm.Texts, the result of lm.read_texts")
        instance("held_out", held_out, (Texts, float, type(None)), "lm.Texts, a share in (0, 1) or None")
        _find_device(device)
        folder = hub.model_folder(model, trust_remote_code=trust_remote_code)
        tokenizer = hub.load_tokenizer(folder, trust_remote_code=trust_remote_code)
        trained_on, kept = split_texts(texts, held_out, 0) if isinstance(held_out, float) else (texts, held_out)
        encoded = encode(tokenizer, trained_on.texts)
        others = encode(tokenizer, kept.texts) if kept else []
        return cls(
            str(model),
            hub.weights_digest(folder),
            pad(encoded, longest),
            pad(others, longest) if others else None,
            unseen_tokens(tokenizer, [*encoded, *others]),
            texts.unit,
            trained,
            dtype,
            added_tokens,
            trust_remote_code,
            microbatch,
            checkpointing,
            device,
            None if trained_on.people is None else len(set(trained_on.people)),
            trained_on.most_of_a_person,
            instance("lora", lora, Lora, "a lm.text_problem.Lora"),
        )

    @property
    def size(self) -> int:
        return len(self.tokens)

    @property
    def words(self) -> str:
        count = sum(value.numel() for value in load(self).start.values())
        name = Path(self.model).name
        parts = {"all": "", "embeddings": ", embeddings only", "lora": f", a LoRA adapter of rank {self.lora.rank}"}[
            self.trained
        ]
        long = f"{self.tokens.ids.shape[1]} tokens" if self.tokens.cut else "all tokens"
        whose = "" if self.people is None else f" of {self.people:,} people"
        return f"{name} ({count:,} parameters trained{parts}) on {self.size:,} {self.unit}s{whose}, {long} of each"

    def spell(self, tokens: Sequence[int]) -> list[str]:
        tokenizer = hub.load_tokenizer(self.model, trust_remote_code=self.trust_remote_code)
        rows = len(tokenizer)
        return [tokenizer.convert_ids_to_tokens(t) if t < rows else f"added token {t}" for t in map(int, tokens)]

    def unseen_tokens(self) -> list[str]:
        """Return the tokens that occur in none of the texts, from which canaries are made."""
        return self.spell(load(self).unseen.tolist())


Batch: TypeAlias = tuple[Tensor, Tensor]  # tokens and lengths


@dataclass(frozen=True, eq=False)
class Loaded:
    """A problem's model and examples in memory."""

    model: Foreign
    start: Tensors  # the trained parameters before training
    gradients: ExampleGradients
    examples: Batch
    held_out: Batch | None
    unseen: IntArray  # tokens of the tokenizer, or added tokens, that occur in no example

    @property
    def embeddings(self) -> list[str]:
        """Names of the trained embedding tables. There is one table if input and output embeddings are tied."""
        named = dict(self.model.named_parameters())
        return [name for name in self.start if any(named[name] is table for table in _tables(self.model))]

    def perplexity(self, parameters: Tensors) -> float:
        """Return the perplexity of the held-out texts, or NaN if there are none."""
        if self.held_out is None:
            return math.nan
        tokens, lengths = self.held_out
        counts = (lengths - 1).double()
        losses = self.gradients.losses(parameters, tokens, lengths).double()
        return math.exp(min(float((losses * counts).sum() / counts.sum()), 700.0))

    def copied(self) -> Loaded:
        """Return a copy for another thread. Threads cannot share a model, because PyTorch replaces its parameters."""
        model = copy.deepcopy(self.model)
        return replace(self, model=model, gradients=self.gradients.with_model(model))


@lru_cache(maxsize=1)
def load(problem: TextProblem) -> Loaded:
    """Load the model and the examples to the problem's device. The last loaded problem is cached."""
    device = _find_device(problem.device)
    folder = hub.model_folder(problem.model, trust_remote_code=problem.trust_remote_code)
    if hub.weights_digest(folder) != problem.weights:
        raise ValueError(f"model must be unchanged since the texts were tokenised, but {problem.model!r} has changed")
    model: Foreign = hub.load_model(folder, dtype=problem.dtype, trust_remote_code=problem.trust_remote_code)
    rows = model.get_input_embeddings().weight.shape[0]
    largest = max(int(given.ids.max()) for given in (problem.tokens, problem.held_out) if given is not None)
    if largest >= rows:
        raise ValueError(f"the model must have a row for each of its tokenizer's tokens, got {rows} for {largest}")
    width, positions = problem.tokens.ids.shape[1], getattr(model.config, "max_position_embeddings", None)
    if positions is not None and width > positions:
        raise ValueError(f"longest must be at most {positions}, the number of positions of the model, got {width}")
    unseen = problem.unseen[problem.unseen < rows]
    if problem.added_tokens:
        model.resize_token_embeddings(rows + problem.added_tokens, mean_resizing=False)
        with torch.no_grad():
            for table in set(_tables(model)):
                table[rows:] = table[:rows].mean(0)  # not random, so that all sessions have the same rows
        unseen = np.arange(rows, rows + problem.added_tokens)
    model = choose_trained(model, problem.trained, problem.lora).to(device)
    start = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    saving: Foreign = {"microbatch": problem.microbatch, "checkpointing": problem.checkpointing}
    gradients = ExampleGradients(model, start, width, **saving)
    held_out = None if problem.held_out is None else _batch(problem.held_out, device)
    return Loaded(model, start, gradients, _batch(problem.tokens, device), held_out, unseen)


def _find_device(device: str | None) -> str:
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        usable = isinstance(device, str) and not torch.empty(1, device=device).is_meta
    except (RuntimeError, AssertionError):  # AssertionError means that PyTorch does not support the device
        usable = False
    if not usable:
        raise ValueError(f"device must be one that PyTorch can use here, such as cpu, got {told(device)}")
    return device


def _batch(tokens: Tokens, device: str) -> Batch:
    return torch.as_tensor(tokens.ids, device=device), torch.as_tensor(tokens.lengths, device=device)


EPOCHS = 2.0  # as in the paper


def usual_optimizer(batch: float) -> SGD:
    """Return the default optimizer: plain SGD, for sums of gradients clipped to norm 1."""
    return SGD(0.2 / batch)


def text_subject(problem: TextProblem, run: Callable[[int], DPSGD]) -> Subject:
    """Return the subject of an audit. ``run`` is called with the number of examples."""
    return Subject(run(problem.size), problem, problem.words, Path(problem.model).name.lower())
