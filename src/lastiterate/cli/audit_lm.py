"""The command ``lastiterate audit-lm``: audit the private fine-tuning of a language model with a canary."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from lastiterate.cli import option_values as values
from lastiterate.cli.audit import check_audit, described_run, perform, planned_canaries, planned_models, rehearse
from lastiterate.cli.audit_options import AuditOptions, EngineOptions, QuestionOptions
from lastiterate.cli.exit_status import OptionError
from lastiterate.cli.option_values import unfold
from lastiterate.cli.options import Json, MethodOptions, SizeOptions, choice, flag, integer_option, option
from lastiterate.cli.output import check_page, given_files, talk_on_stderr
from lastiterate.common.validation import integer, written_number

if TYPE_CHECKING:
    from lastiterate.lm import TextProblem, Texts
    from lastiterate.run import DPSGD

MODELS = 128
TrainedPart = Literal["all", "embeddings", "lora"]
Precision = Literal["float32", "bfloat16"]
ScoreName = Literal["gradient", "rows", "loss"]
UnitName = Literal["example", "person"]


@dataclass(frozen=True)
class TextOptions:
    """Options for the language model, the texts, and the trained parameters."""

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
    examples: Annotated[int | None, integer_option("--examples", "Use only so many texts, with a held-out share.")] = (
        None
    )
    longest: Annotated[int, integer_option("--longest", "Tokens of an example that are used (default: 128).")] = 128
    persona: Annotated[bool, flag("--persona", "Put personas before the dialogues.")] = False
    unit: Annotated[
        UnitName,
        choice("--unit", get_args(UnitName), "What is protected: each example (default), or all that a person has."),
    ] = "example"
    by: Annotated[
        str | None, option("--by", None, "FIELD", "With --unit person: the field of JSON lines that says whose.")
    ] = None
    trained: Annotated[
        TrainedPart,
        choice("--trained", get_args(TrainedPart), "Which parameters are trained (default: all)."),
    ] = "all"
    dtype: Annotated[
        Precision,
        choice("--dtype", get_args(Precision), "In which the model computes and is released (default: float32)."),
    ] = "float32"
    added_tokens: Annotated[int, integer_option("--added-tokens", "Add tokens for canaries (default: 0).")] = 0
    microbatch: Annotated[int | None, integer_option("--microbatch", "Examples at once (default: as many as fit).")] = (
        None
    )
    checkpointing: Annotated[bool, flag("--checkpointing", "Save memory by computing activations twice.")] = False
    device: Annotated[
        str | None, option("--device", None, "DEVICE", "Of PyTorch (default: a GPU if there is one).")
    ] = None
    trust_remote_code: Annotated[
        bool, flag("--trust-remote-code", "Let Python code that comes with the model run.")
    ] = False

    def check(self) -> None:
        """Raise an error for options that are missing or contradict each other, before any file is read."""
        if self.model is None or self.text is None:
            raise OptionError("--model and --text must be given: a language model, and what to fine-tune it on")
        if (self.unit == "person") != (self.by is not None):
            got = "without --by" if self.by is None else f"--by {self.by} with --unit {self.unit}"
            raise OptionError(f"--unit person and --by FIELD must be given together, got {got}")

    def problem(self, group_size: int | None) -> "TextProblem":
        """Return the problem that the options describe, with at most ``group_size`` texts per person."""
        self.check()
        assert self.model is not None
        assert self.text is not None
        from lastiterate.lm import TextProblem, read_texts

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
        )

    def _held_out(self) -> "float | Texts":
        from lastiterate.lm import read_texts
        from lastiterate.lm.text_problem import HELD_OUT

        if self.held_out is None:
            return HELD_OUT
        share = written_number(self.held_out)
        return read_texts(self.held_out, persona=self.persona) if share is None else share


Score = Annotated[
    ScoreName,
    choice(
        "--score",
        get_args(ScoreName),
        "What the attack looks at: all that moved (default), the canary tokens' embeddings, or its loss.",
    ),
]
Length = Annotated[int, integer_option("--canary-length", "Tokens of the canary (default: 16).")]
OneRun = Annotated[bool, flag("--one-run", "Train once, with many canaries: --models of them (default: planned).")]
Models = Annotated[
    int | str | None,
    option("--models", values.models, "INTEGER|auto", f"Models a world (default: {MODELS}; auto: planned)."),
]


def usual_size(examples: int) -> SizeOptions:
    """Return the default size: the paper's epochs, in batches of one eighth of the examples."""
    from lastiterate.lm.text_problem import EPOCHS

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
    it, and the attack looks at how it moved them. One dialogue (or text) is one example: it is what privacy protects,
    or with --unit person all that a person has.
    The same command again resumes where it was stopped. A folder is read without the network; pickles never are.

    \b
    Exit status 1: the claim about the training is refuted. 4: the scores cannot tell (with a claim, or --strict).

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
    if canary_length < 2:
        raise OptionError(f"--canary-length must be at least 2, got {canary_length}")
    inputs = {"--text": given_files(texts.text), "--held-out": given_files(texts.held_out)}
    inputs["--model"] = given_files(texts.model)
    if options.store is not None:
        check_audit(options.store, options, inputs, json)
    computer = engine.find()
    from lastiterate.lm import OneRunTokens, UnseenTokens
    from lastiterate.lm.text_problem import text_subject, usual_optimizer

    def described(n: int) -> "DPSGD":
        how_long = size if any(vars(size).values()) else usual_size(n)
        of_a_person = method_.group_size or problem.of_a_person
        run = described_run(how_long, replace(method_, group_size=of_a_person), options, n, usual_optimizer)
        assert run is not None  # None only without a size
        return run

    attack: UnseenTokens | OneRunTokens = UnseenTokens(score, canary_length)
    if one_run and score != "loss":
        attack = OneRunTokens(score, canary_length)
    with talk_on_stderr():
        problem = texts.problem(method_.group_size)
        subject = text_subject(problem, described)
        if one_run:
            planned = planned_canaries(subject, attack, models, asked)
        else:
            planned = planned_models(subject, attack, MODELS if models is None else models, asked)
    if options.dry_run:
        rehearse(subject, attack, planned, json, asked, subject.problem.unseen_tokens())
        return
    raise typer.Exit(perform(subject, attack, planned, options, computer, asked, inputs, json))
