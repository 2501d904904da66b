"""The command ``lastiterate audit-lm``: audit the private fine-tuning of a language model with a canary."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lastiterate.cli.app import OptionError
from lastiterate.cli.audit import check_audit, described_run, perform, plan_audit
from lastiterate.cli.audit_options import AuditOptions, EngineOptions, QuestionOptions, parse_models
from lastiterate.cli.options import Json, MethodOptions, Option, SizeOptions, unfold
from lastiterate.cli.output import check_page, given_files, talk_on_stderr
from lastiterate.common.validation import integer, written_number
from lastiterate.run import DPSGD

if TYPE_CHECKING:
    from lastiterate.lm import TextProblem, Texts

MODELS = 128


@dataclass(frozen=True)
class TextOptions:
    """Options for the language model, the texts, and the trained parameters."""

    model: Annotated[str | None, Option("A causal language model: a folder, or a name on the hub.", "PATH_OR_NAME")] = (
        None
    )
    text: Annotated[
        Path | None, Option("ConvAI2 text, JSONL, or plain text; one dialogue or text is one example.", "FILE")
    ] = None
    held_out: Annotated[
        str | None, Option("Text for perplexity, or a share of --text (default: 0.1).", "FILE|SHARE")
    ] = None
    examples: Annotated[int | None, "Use only this many texts, including a held-out share."] = None
    longest: Annotated[int, "Tokens of an example that are used (default: 128)."] = 128
    persona: Annotated[bool, "Put personas before the dialogues."] = False
    unit: Annotated[
        Literal["example", "person"], "The unit of privacy: an example (default), or all examples of a person."
    ] = "example"
    by: Annotated[
        str | None, Option("With --unit person: the field of the JSON lines that names the person.", "FIELD")
    ] = None
    trained: Annotated[Literal["all", "embeddings", "lora"], "Parameters that are trained (default: all)."] = "all"
    lora_rank: Annotated[int | None, "Rank of the LoRA adapter (default: 8)."] = None
    lora_alpha: Annotated[float | None, "Scale of the LoRA adapter (default: twice the rank)."] = None
    lora_targets: Annotated[
        str | None, Option("Layers with a LoRA adapter, separated by commas (default: all linear).", "NAMES")
    ] = None
    dtype: Annotated[
        Literal["float32", "bfloat16"], "Type in which the model computes and is released (default: float32)."
    ] = "float32"
    added_tokens: Annotated[int, "Add tokens for canaries (default: 0)."] = 0
    microbatch: Annotated[int | None, "Examples that are computed at once (default: as many as fit)."] = None
    checkpointing: Annotated[bool, "Save memory by computing activations twice."] = False
    device: Annotated[str | None, Option("Device of PyTorch (default: a GPU if there is one).", "DEVICE")] = None
    trust_remote_code: Annotated[bool, "Run Python code that comes with the model."] = False

    def check(self) -> None:
        """Raise an error for options that are missing or contradict each other, before any file is read."""
        if self.model is None or self.text is None:
            raise OptionError("--model and --text must be given: a language model, and what to fine-tune it on")
        if (self.unit == "person") != (self.by is not None):
            got = "without --by" if self.by is None else f"--by {self.by} with --unit {self.unit}"
            raise OptionError(f"--unit person and --by FIELD must be given together, got {got}")

        given = {"rank": self.lora_rank, "alpha": self.lora_alpha, "targets": self.lora_targets}
        named = [f"--lora-{name}" for name, value in given.items() if value is not None]
        if named and self.trained != "lora":
            raise OptionError(f"--trained must be lora with {named[0]}, got {self.trained}")

    def problem(self, group_size: int | None) -> TextProblem:
        """Return the problem that the options describe, with at most ``group_size`` texts per person."""
        self.check()
        assert self.model is not None
        assert self.text is not None
        from lastiterate.lm import TextProblem, read_texts
        from lastiterate.lm.text_problem import Lora

        targets = None if self.lora_targets is None else tuple(self.lora_targets.split(","))
        given = read_texts(self.text, persona=self.persona, by=self.by)
        if self.examples is not None:
            given = given.at(range(integer("examples", self.examples, 1, len(given))))
        if self.by is not None and group_size is not None:
            before, given = len(given), given.at_most(group_size)
            if len(given) < before:
                print(
                    f"{before - len(given):,} of {before:,} {given.unit}s are left out, so that nobody has more than "
                    f"{group_size:,}",
                    file=sys.stderr,
                )
        return TextProblem.of(
            self.model,
            given,
            self._held_out(),
            longest=self.longest,
            trained=self.trained,
            dtype=self.dtype,
            added_tokens=self.added_tokens,
            trust_remote_code=self.trust_remote_code,
            microbatch=self.microbatch,
            checkpointing=self.checkpointing,
            device=self.device,
            lora=Lora(Lora.rank if self.lora_rank is None else self.lora_rank, self.lora_alpha, targets),
        )

    def _held_out(self) -> float | Texts:
        from lastiterate.lm import read_texts
        from lastiterate.lm.text_problem import HELD_OUT

        if self.held_out is None:
            return HELD_OUT
        share = written_number(self.held_out)
        return read_texts(self.held_out, persona=self.persona) if share is None else share


@unfold
def audit_lm(
    texts: TextOptions,
    size: SizeOptions,
    method_: MethodOptions,
    question: QuestionOptions,
    engine: EngineOptions,
    options: AuditOptions,
    score: Annotated[
        Literal["gradient", "rows", "loss"],
        "What the attack sees: all parameters (default), the embeddings of the canary's tokens, or its loss.",
    ] = "gradient",
    canary_length: Annotated[int, "Tokens of the canary (default: 16)."] = 16,
    one_run: Annotated[bool, "Train once, with many canaries. --models is their number (default: auto)."] = False,
    canary: Annotated[
        Literal["tokens", "sampled"], "With --one-run: unseen tokens (default), or texts that the model writes."
    ] = "tokens",
    models: Annotated[
        int | str | None,
        Option(
            (f"Models per world (default: {MODELS}; auto: enough to detect training with half of the noise)."),
            "INTEGER|auto",
            parse_models,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Attack the fine-tuning of a language model, and see what leaks.

    The canary is a sequence of tokens that never occur in the texts. Models are fine-tuned by DP-SGD with and without
    the canary, and the attack measures how far the canary moved them. The unit of privacy is one dialogue (or text), or
    with --unit person all examples of a person. A stopped audit resumes with the same command. A model in a folder is
    read without the network. Pickles are never read.

    \b
    Exit status 1: the claim is refuted. 4: the verdict is inconclusive (with a claim, or --strict).

    \b
    Example:
      lastiterate audit-lm --model stories260k --text personachat.jsonl --longest 64
      lastiterate audit-lm --model google/gemma-2-2b --text train.txt --held-out valid.txt --dtype bfloat16
      lastiterate audit-lm --model stories260k --text dialogues.jsonl --unit person --by user
    """
    texts.check()
    if isinstance(models, int):
        integer("models", models)
    asked = question.question()
    check_page(options.output)
    if one_run and score == "loss":
        raise OptionError("--score must be gradient or rows with --one-run, got 'loss'")
    if canary != "tokens" and not one_run:
        raise OptionError(f"--canary must be given with --one-run, got {canary!r} without it")
    if canary_length < 2:
        raise OptionError(f"--canary-length must be at least 2, got {canary_length}")
    inputs = {"--text": given_files(texts.text), "--held-out": given_files(texts.held_out)}
    inputs["--model"] = given_files(texts.model)
    if options.store is not None:
        check_audit(options.store, options, inputs, json)
    computer = engine.find()
    from lastiterate.lm import OneRunTokens, UnseenTokens
    from lastiterate.lm.text_problem import EPOCHS, text_subject, usual_optimizer

    def described(n: int) -> DPSGD:
        # The default: the paper's epochs, in batches of one eighth of the examples.
        length = size if any(vars(size).values()) else SizeOptions(batch_size=max(1, n // 8), epochs=EPOCHS)
        method = replace(method_, group_size=method_.group_size or problem.of_a_person)
        run = described_run(length, method, options.noise_multiplier, options.clip_norm, n, usual_optimizer)
        assert run is not None  # None only if no size is given
        return run

    attack: UnseenTokens | OneRunTokens = UnseenTokens(score, canary_length)
    if one_run and score != "loss":  # checked above
        attack = OneRunTokens(score, canary_length, canary=canary)
    with talk_on_stderr():
        problem = texts.problem(method_.group_size)
        subject = text_subject(problem, described)
        planned = plan_audit(subject, attack, models, MODELS, asked, is_one_run=one_run)
    unseen = subject.problem.unseen_tokens
    raise typer.Exit(perform(subject, attack, planned, options, computer, asked, inputs, json, unseen))
