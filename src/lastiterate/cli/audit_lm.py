"""``lastiterate audit-lm``: fine-tune a language model privately, with and without a canary, and tell them apart."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lastiterate.cli import values
from lastiterate.cli.audit_actions import check_output, described_run, ending_at_once, perform, rehearse
from lastiterate.cli.audit_options import AuditOptions, QuestionOptions
from lastiterate.cli.errors import OptionError
from lastiterate.cli.options import Json, MethodOptions, SizeOptions, option
from lastiterate.cli.training_options import EngineOptions
from lastiterate.cli.unfold import unfold
from lastiterate.values import integer

if TYPE_CHECKING:
    from lastiterate.lm import TextProblem, Texts
    from lastiterate.run import DPSGD

MODELS = 128


@dataclass(frozen=True)
class TextOptions:
    """The model, the texts, and what is trained."""

    model: Annotated[
        str | None, option("--model", None, "PATH_OR_NAME", "A causal language model: folder, or name on the hub.")
    ] = None
    text: Annotated[
        Path | None,
        option("--text", None, "FILE", "ConvAI2 text, JSONL, or plain text; one dialogue or text is one example."),
    ] = None
    held_out: Annotated[
        str | None,
        option("--held-out", None, "FILE|SHARE", "Text for perplexity, or a share of --text (default: 0.1)."),
    ] = None
    examples: Annotated[
        int | None, option("--examples", values.integer, "INTEGER", "Use only so many texts, with a held-out share.")
    ] = None
    longest: Annotated[
        int, option("--longest", values.integer, "INTEGER", "Tokens of an example that are used (default: 128).")
    ] = 128
    persona: Annotated[bool, option("--persona", None, None, "Put personas before the dialogues.")] = False
    trained: Annotated[
        Literal["all", "embeddings", "lora"],
        option(
            "--trained",
            values.one_of("all", "embeddings", "lora"),
            "all|embeddings|lora",
            "Which parameters are trained (default: all).",
        ),
    ] = "all"
    dtype: Annotated[
        Literal["float32", "bfloat16"],
        option(
            "--dtype",
            values.one_of("float32", "bfloat16"),
            "float32|bfloat16",
            "In which the model computes and is released (default: float32).",
        ),
    ] = "float32"
    added_tokens: Annotated[
        int, option("--added-tokens", values.integer, "INTEGER", "Add tokens for canaries (default: 0).")
    ] = 0
    microbatch: Annotated[
        int | None, option("--microbatch", values.integer, "INTEGER", "Examples at once (default: as many as fit).")
    ] = None
    checkpointing: Annotated[
        bool, option("--checkpointing", None, None, "Save memory by computing activations twice.")
    ] = False
    device: Annotated[
        str | None, option("--device", None, "DEVICE", "Of PyTorch (default: a GPU if there is one).")
    ] = None
    trust_remote_code: Annotated[
        bool, option("--trust-remote-code", None, None, "Let Python code that comes with the model run.")
    ] = False

    def problem(self) -> "TextProblem":
        """The problem that the options describe."""
        if self.model is None or self.text is None:
            raise OptionError("--model and --text must be given: a language model, and what to fine-tune it on")
        from lastiterate.lm import TextProblem, Texts, read_texts

        given = read_texts(self.text, persona=self.persona)
        if self.examples is not None:
            integer("examples", self.examples, 1, len(given))
        return TextProblem.of(
            self.model,
            Texts(given.texts[: self.examples], given.unit),
            self._held_out(),
            longest=self.longest,
            trained=self.trained,
            dtype=self.dtype,
            added_tokens=self.added_tokens,
            trust_remote_code=self.trust_remote_code,
            microbatch=self.microbatch,
            checkpointing=self.checkpointing,
            device=self.device,
        )

    def _held_out(self) -> "float | Texts":
        from lastiterate.lm import read_texts
        from lastiterate.lm.problem import HELD_OUT

        if self.held_out is None:
            return HELD_OUT
        try:
            return float(self.held_out)
        except ValueError:
            return read_texts(self.held_out, persona=self.persona)


Score = Annotated[
    Literal["gradient", "rows", "loss"],
    option(
        "--score",
        values.one_of("gradient", "rows", "loss"),
        "gradient|rows|loss",
        "What the attack looks at: all that moved (default), the canary tokens' embeddings, or its loss.",
    ),
]
Length = Annotated[int, option("--canary-length", values.integer, "INTEGER", "Tokens of the canary (default: 16).")]
OneRun = Annotated[
    bool, option("--one-run", None, None, "Train once, with many canaries: --models of them (default: 64).")
]
Models = Annotated[int | None, option("--models", values.integer, "INTEGER", f"Models a world (default: {MODELS}).")]


def usual_size(examples: int) -> SizeOptions:
    """The paper's epochs, in batches of an eighth of the examples."""
    from lastiterate.lm.subject import EPOCHS

    return SizeOptions(batch_size=max(1, examples // 8), epochs=EPOCHS)


@unfold
def audit_lm(
    texts: TextOptions,
    size: SizeOptions,
    method_: MethodOptions,
    question: QuestionOptions,
    engine: EngineOptions,
    options: AuditOptions,
    score: Score = "gradient",
    canary_length: Length = 16,
    one_run: OneRun = False,
    models: Models = None,
    json: Json = False,
) -> None:
    """Attack the fine-tuning of a language model, and see what leaks.

    The canary is a sequence of tokens that never occur in the texts. Models are fine-tuned by DP-SGD with and without
    it, and the attack looks at how it moved them. One dialogue (or text) is one example: it is what privacy protects.
    The same command again resumes where it was stopped. A folder is read without the network; pickles never are.

    \b
    Exit status 1: the claim about the training is refuted. 4: the scores cannot tell (with a claim, or --strict).

    \b
    Example:
      lastiterate audit-lm --model stories260k --text personachat.jsonl --longest 64
      lastiterate audit-lm --model google/gemma-2-2b --text train.txt --held-out valid.txt --dtype bfloat16
    """
    asked = question.question()
    check_output(options)
    if one_run and score == "loss":
        raise OptionError("--score must be gradient or rows with --one-run, got 'loss'")
    if canary_length < 2:
        raise OptionError(f"--canary-length must be at least 2, got {canary_length}")
    computer = engine.find()
    with ending_at_once():
        from lastiterate.lm import OneRunTokens, UnseenTokens
        from lastiterate.lm.subject import text_subject, usual_optimizer

        def described(n: int) -> "DPSGD":
            how_long = size if any(vars(size).values()) else usual_size(n)
            run = described_run(how_long, method_, options, n, usual_optimizer)
            assert run is not None  # since its size is given
            return run

        attack: UnseenTokens | OneRunTokens = UnseenTokens(score, canary_length)
        if one_run and score != "loss":
            attack = OneRunTokens(score, canary_length)
        subject = text_subject(texts.problem(), described)
        count = models if models is not None else (64 if one_run else MODELS)
    if options.dry_run:
        rehearse(subject, attack, count, json, subject.problem.unseen_tokens())
        return
    raise typer.Exit(perform(subject, attack, count, options, computer, asked, json))
