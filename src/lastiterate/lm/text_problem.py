"""The problem of a fine-tuning: a causal language model, the parameters that are trained, and the texts as tokens."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

import numpy as np
import torch
from torch import Tensor

from lastiterate.auditing.audit_target import Subject
from lastiterate.common.errors import MissingExtra
from lastiterate.common.types import IntArray
from lastiterate.common.validation import integer, one_of
from lastiterate.lm import hub
from lastiterate.lm.example_gradients import ExampleGradients, Tensors
from lastiterate.lm.texts import Texts, Unit, split_texts
from lastiterate.lm.tokens import Tokens, encode, pad, unseen_tokens
from lastiterate.optimizer import SGD
from lastiterate.run import DPSGD

if TYPE_CHECKING:
    from lastiterate.lm.tokens import CausalModel


# Trained parameters: all, the embeddings, or a LoRA adapter.

Trained: TypeAlias = Literal["all", "embeddings", "lora"]

LORA_RANK = 8


def choose_trained(model: CausalModel, trained: Trained) -> CausalModel:
    """Return the model with ``requires_grad`` on the trained parameters; "lora" wraps an adapter around it."""
    if trained == "lora":
        return _with_adapter(model)
    for parameter in model.parameters():
        parameter.requires_grad_(trained == "all")
    if trained == "embeddings":
        for module in (model.get_input_embeddings(), model.get_output_embeddings()):
            module.weight.requires_grad_()
    return model


def _with_adapter(model: CausalModel) -> CausalModel:
    try:
        import peft
    except ImportError as error:
        raise MissingExtra("trained='lora' needs peft, which is not installed: pip install peft") from error
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft warns about storing adapters, which are not stored here
        torch.manual_seed(0)  # the adapter's random start must be the same in every session
        config = peft.LoraConfig(
            r=LORA_RANK, lora_alpha=2 * LORA_RANK, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        return cast("CausalModel", peft.get_peft_model(model, config, autocast_adapter_dtype=False))


LONGEST = 128
HELD_OUT = 0.1


@dataclass(frozen=True, eq=False)
class TextProblem:
    """A language model in a folder or on the hub, and texts as tokens. ``TextProblem.of`` makes one from texts.

    Fields with compare=False do not change scores. Some of them change how fast scores are computed.

    Attributes:
        model: folder, or name on the Hugging Face hub.
        weights: digest of the model's files.
        tokens: the examples; each is the unit of privacy.
        held_out: examples on which perplexity is measured. None: perplexity is not measured.
        unseen: tokens of the tokenizer that occur in none of the texts.
        unit: the kind of an example, "dialogue" or "text".
        trained: "all" parameters, the "embeddings", or a "lora" adapter.
        dtype: precision of the model's computations and of its release. Sums, noise and updates are in float32.
        added_tokens: number of tokens that are added to the model's vocabulary and occur in no text.
        people: number of people whose examples these are. None: each example is the unit of privacy.
        of_a_person: the largest number of examples of one person. A run must have at least this ``group_size``.
    """

    model: str = field(compare=False)
    weights: str
    tokens: Tokens
    held_out: Tokens | None
    unseen: IntArray
    unit: Unit = "text"
    trained: Trained = "all"
    dtype: hub.Precision = "float32"
    added_tokens: int = 0
    trust_remote_code: bool = field(default=False, compare=False)
    microbatch: int | None = field(default=None, compare=False)
    checkpointing: bool = field(default=False, compare=False)
    device: str | None = field(default=None, compare=False)
    people: int | None = field(default=None, compare=False)
    of_a_person: int = field(default=1, compare=False)

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
    ) -> TextProblem:
        """Tokenise the texts with the model's tokenizer.

        Args:
            model: folder, or name on the Hugging Face hub.
            texts: the training texts; each is one example.
            held_out: texts for perplexity, a share of ``texts`` that is not trained on, or None.
            longest: largest number of tokens of an example; the rest is cut off.
            trained: "all" parameters, the "embeddings", or a "lora" adapter (needs peft).
            dtype: "float32" or "bfloat16".
            added_tokens: number of tokens to add to the vocabulary, for canaries if every token of the tokenizer
                occurs.
            trust_remote_code: whether Python code of the model may run.
            microbatch: number of examples that are computed at once. None: as many as fit in memory.
            checkpointing: save memory by computing activations twice.
            device: device of PyTorch. None: a GPU if there is one.
        """
        integer("longest", longest, 2)
        if not isinstance(texts, Texts):
            raise ValueError(f"texts must be lm.Texts, as lm.read_texts gives, got {type(texts).__name__}")
        if held_out is not None and not isinstance(held_out, (Texts, float)):
            raise ValueError(f"held_out must be lm.Texts, a share in (0, 1) or None, got {held_out!r}")
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
        )

    @property
    def size(self) -> int:
        """The number of examples."""
        return len(self.tokens)

    @property
    def words(self) -> str:
        """A description of the problem for reports."""
        count = sum(value.numel() for value in load(self).start.values())
        name = Path(self.model).name
        parts = {"all": "", "embeddings": ", embeddings only", "lora": ", a LoRA adapter"}[self.trained]
        long = f"{self.tokens.ids.shape[1]} tokens" if self.tokens.cut else "all tokens"
        whose = "" if self.people is None else f" of {self.people:,} people"
        return f"{name} ({count:,} parameters trained{parts}) on {self.size:,} {self.unit}s{whose}, {long} of each"

    def spell(self, tokens: Sequence[int]) -> list[str]:
        """Return tokens as the tokenizer writes them; added tokens have no text."""
        tokenizer = hub.load_tokenizer(self.model, trust_remote_code=self.trust_remote_code)
        rows = len(tokenizer)
        return [tokenizer.convert_ids_to_tokens(t) if t < rows else f"added token {t}" for t in map(int, tokens)]

    def unseen_tokens(self) -> list[str]:
        """Return the tokens that occur in none of the texts, from which canaries are made."""
        return self.spell(load(self).unseen.tolist())


Batch: TypeAlias = tuple[Tensor, Tensor]  # tokens and lengths


@dataclass(frozen=True, eq=False)
class Loaded:
    """A problem's model and examples in memory.

    Attributes:
        start: the trained parameters before training.
        unseen: numbers of tokens that occur in no example: the tokenizer's, or the added ones.
    """

    model: Any
    start: Tensors
    gradients: ExampleGradients
    examples: Batch
    held_out: Batch | None
    unseen: IntArray

    @property
    def embeddings(self) -> list[str]:
        """Names of the trained embedding tables: the input table, and the output table if it is not tied."""
        tables = [self.model.get_input_embeddings().weight, self.model.get_output_embeddings().weight]
        named = dict(self.model.named_parameters())
        return [name for name in self.start if any(named[name] is table for table in tables)]

    def perplexity(self, parameters: Tensors) -> float:
        """Compute the perplexity of the held-out texts: e to the mean loss of their tokens."""
        assert self.held_out is not None
        tokens, lengths = self.held_out
        counts = (lengths - 1).double()
        losses = self.gradients.losses(parameters, tokens, lengths).double()
        return math.exp(min(float((losses * counts).sum() / counts.sum()), 700.0))

    def copied(self) -> Loaded:
        """Return a copy for another thread: PyTorch replaces a model's parameters while it computes."""
        model = copy.deepcopy(self.model)
        return Loaded(model, self.start, self.gradients.with_model(model), self.examples, self.held_out, self.unseen)


@lru_cache(maxsize=1)
def load(problem: TextProblem) -> Loaded:
    """Load the model and move everything to its device. The last problem stays in memory."""
    device = _find_device(problem.device)
    folder = hub.model_folder(problem.model, trust_remote_code=problem.trust_remote_code)
    if hub.weights_digest(folder) != problem.weights:
        raise ValueError(f"model must be the one whose texts were tokenised, but {problem.model!r} has changed since")
    model = hub.load_model(folder, dtype=problem.dtype, trust_remote_code=problem.trust_remote_code)
    rows = model.get_input_embeddings().weight.shape[0]
    largest = max(int(given.ids.max()) for given in (problem.tokens, problem.held_out) if given is not None)
    if largest >= rows:
        raise ValueError(f"the model must have a row for each of its tokenizer's tokens, got {rows} for {largest}")
    width, positions = problem.tokens.ids.shape[1], getattr(model.config, "max_position_embeddings", None)
    if positions is not None and width > positions:
        raise ValueError(f"longest must be at most {positions}, the positions that the model has, got {width}")
    unseen = problem.unseen[problem.unseen < rows]
    if problem.added_tokens:
        _add_rows(model, problem.added_tokens)
        unseen = np.arange(rows, rows + problem.added_tokens)
    model = choose_trained(model, problem.trained).to(device)
    start = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    gradients = ExampleGradients(
        model,
        start,
        problem.tokens.ids.shape[1],
        microbatch=problem.microbatch,
        checkpointing=problem.checkpointing,
    )
    held_out = None if problem.held_out is None else _batch(problem.held_out, device)
    return Loaded(model, start, gradients, _batch(problem.tokens, device), held_out, unseen)


def _find_device(device: str | None) -> str:
    """Return the requested device, or a GPU if there is one. Raise if PyTorch cannot use it."""
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        usable = isinstance(device, str) and not torch.empty(1, device=device).is_meta
    except (RuntimeError, AssertionError):  # AssertionError: PyTorch was built without the device
        usable = False
    if not usable:
        raise ValueError(f"device must be one that PyTorch can use here, such as cpu, got {device!r}")
    return device


def _batch(tokens: Tokens, device: str) -> Batch:
    return torch.as_tensor(tokens.ids, device=device), torch.as_tensor(tokens.lengths, device=device)


def _add_rows(model: Any, count: int) -> None:
    """Add rows for new tokens. Each is the mean of all others: random rows would differ between sessions."""
    rows = model.get_input_embeddings().weight.shape[0]
    model.resize_token_embeddings(rows + count, mean_resizing=False)
    with torch.no_grad():
        for table in {model.get_input_embeddings().weight, model.get_output_embeddings().weight}:
            table[rows:] = table[:rows].mean(0)


# Command line: the subject of an audit, and the default fine-tuning.

EPOCHS = 2.0  # the paper's


def usual_optimizer(batch: float) -> SGD:
    """Return the default optimizer: plain SGD, for gradients clipped to 1 and summed over a batch."""
    return SGD(0.2 / batch)


def text_subject(problem: TextProblem, run: Callable[[int], DPSGD]) -> Subject:
    """Return the subject of an audit; ``run`` gets the number of examples."""
    return Subject(run(problem.size), problem, problem.words, Path(problem.model).name.lower())
