"""Table 1: a language model at several batch sizes and one heuristic epsilon, after two epochs of PersonaChat.

The paper fine-tunes Gemma 2. It does not state the noise, delta or the number of dialogues. Our noise makes the
heuristic the same for every batch size, as the paper says of its own noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastiterate.common.types import Row, Track, number_in
from lastiterate.formatting import spell
from lastiterate.paper.reproduce import audited_figures as shared
from lastiterate.paper.reproduce.audited_figures import DELTA, Audits, Case, by_batch_size, measure

if TYPE_CHECKING:
    from altair import HConcatChart

    from lastiterate.auditing.audit_target import Subject
    from lastiterate.lm.hub import Precision
    from lastiterate.paper.reproduce import Scale
    from lastiterate.run import DPSGD

TITLE = f"Table 1: a language model, batch sizes at one heuristic epsilon, at delta {spell(DELTA)}"
TAKES = ("model", "text", "store", "models", "engine")
MODELS = 128  # per world, as in the paper
BATCHES = {"quick": (64, 32, 16), "full": (2048, 1024, 512)}
HEURISTIC = 6.0
GEMMA = "google/gemma-2-2b"
_EXAMPLES = {"quick": 256, "full": None}  # training dialogues; None: all
_LONGEST = {"quick": 32, "full": 512}  # tokens of each dialogue
_DTYPE: dict[str, Precision] = {"quick": "float32", "full": "bfloat16"}
_HELD_OUT = 100  # largest number of dialogues, from the end of the file
PAPER = ((2048, 6.0, 8.0), (1024, 6.1, 14.0), (512, 6.0, 26.0))  # batch size, heuristic and standard epsilon
SIZES = (14_000, 16_500, 16_500)  # ``consistent_size`` of the rows of PAPER at our delta; takes ten seconds


def rows(scale: Scale, track: Track = iter, audits: Audits = Audits()) -> list[Row]:  # noqa: B008 - it is frozen
    """Return a row for each batch size."""
    subject = subject_of(scale, audits)
    return measure("table1", subject, cases(scale, subject), track, audits, models=MODELS, quality="perplexity")


def subject_of(scale: Scale, audits: Audits) -> Subject:
    """Return the model and the dialogues. The last dialogues, at most a fifth, are held out."""
    from lastiterate.lm import TextProblem, Texts, read_texts
    from lastiterate.lm.text_problem import text_subject

    if audits.text is None or (audits.model is None and scale == "quick"):
        needed = "text" if audits.text is None else "model"
        raise ValueError(
            f"{needed} must be given for table1: dialogues and a language model, as in --text FILE --model PATH_OR_NAME"
        )
    given = read_texts(audits.text)
    kept = min(_HELD_OUT, len(given) // 5)
    if kept < 1:
        raise ValueError(f"text must hold at least 5 dialogues for table1, got {len(given)}")
    train = Texts(given.texts[:-kept][: _EXAMPLES[scale]], given.unit)
    problem = TextProblem.of(
        audits.model or GEMMA,
        train,
        Texts(given.texts[-kept:], given.unit),
        longest=_LONGEST[scale],
        dtype=_DTYPE[scale],
    )
    return text_subject(problem, lambda examples: _run(scale, examples, BATCHES[scale][0]))


def cases(scale: Scale, subject: Subject) -> list[Case]:
    """Return the audits of the table."""
    from lastiterate.lm import UnseenTokens

    size, longest = subject.problem.tokens.ids.shape
    return [
        Case(_run(scale, size, batch), UnseenTokens(), {"batch_size": batch, "examples": size, "longest": longest})
        for batch in BATCHES[scale]
    ]


def _run(scale: Scale, examples: int, batch: int) -> DPSGD:
    """Return the calibrated run of a batch size.

    All runs share one learning rate for the sum of gradients, so they go equally far, with about the same noise.
    """
    import lastiterate
    from lastiterate.lm.text_problem import EPOCHS, usual_optimizer

    optimizer = usual_optimizer(BATCHES[scale][0])
    run = lastiterate.DPSGD.from_batches(examples, batch, EPOCHS, 1.0, optimizer=optimizer)
    return lastiterate.calibrate(run, epsilon=HEURISTIC, delta=DELTA, analysis=lastiterate.last_iterate)


def chart(rows: list[Row]) -> HConcatChart:
    """Return epsilon and perplexity over batch sizes."""
    return by_batch_size("A language model at one heuristic epsilon (Table 1)", rows, DELTA, "perplexity")


def notes(rows: list[Row]) -> list[str]:
    """Return sentences on the basis of the numbers, and on what the paper does not state."""
    before = number_in(rows[0], "perplexity_before")
    trained = f"{rows[0]['examples']:,} dialogues, {rows[0]['longest']} tokens of each"
    return [
        *shared.notes(rows),
        f"Trained on {trained}; perplexity on held-out dialogues, {spell(before)} before training.",
        f"The paper's standard epsilons ({_listed(2)} for batches of {_listed(0)}) leave out the size of the data: at "
        f"two epochs and delta {spell(DELTA)} they are ours for about {', '.join(f'{n:,}' for n in SIZES)} dialogues.",
    ]


def _listed(column: int) -> str:
    return ", ".join(f"{row[column]:,.0f}" for row in PAPER)


def consistent_size(batch: int, heuristic: float, standard: float, delta: float) -> int:
    """Return the number of examples that gives both epsilons at this batch size, with the paper's two epochs."""
    import lastiterate
    from lastiterate.lm.text_problem import EPOCHS

    def by_composition(size: int) -> float:
        run = lastiterate.DPSGD.from_batches(size, batch, EPOCHS, 1.0)
        run = lastiterate.calibrate(run, epsilon=heuristic, delta=delta, analysis=lastiterate.last_iterate)
        return float(lastiterate.composition(run).epsilon(delta))

    low, high = 2 * batch, 64 * batch
    while high - low > batch // 16:  # one step is half a batch of examples
        middle = (low + high) // 2
        low, high = (middle, high) if by_composition(middle) < standard else (low, middle)
    return high
