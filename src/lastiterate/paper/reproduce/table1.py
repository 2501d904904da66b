"""Table 1: a language model after two epochs of PersonaChat, for several batch sizes with the same heuristic epsilon.

The paper fine-tunes Gemma 2. It does not state the noise, delta or the number of dialogues. As in the paper, the noise
is chosen so that the heuristic epsilon is the same for every batch size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lastiterate as li
from lastiterate.common.types import Row, Track, number_in
from lastiterate.formatting import spell
from lastiterate.paper.reproduce import Scale
from lastiterate.paper.reproduce import audited_figures as shared
from lastiterate.paper.reproduce.audited_figures import DELTA, Audits, Case
from lastiterate.plot.style import alt

if TYPE_CHECKING:
    from lastiterate.auditing.audit_target import Subject
    from lastiterate.lm.hub import Precision

TITLE = f"Table 1: a language model, batch sizes at one heuristic epsilon, at delta {spell(DELTA)}"
TAKES = ("model", "text", "store", "models", "engine")
MODELS = 128  # per world, as in the paper
BATCHES = {"quick": (64, 32, 16), "full": (2048, 1024, 512)}
HEURISTIC = 6.0
GEMMA = "google/gemma-2-2b"
_EXAMPLES = {"quick": 256, "full": None}  # number of training dialogues; None means all
_LONGEST = {"quick": 32, "full": 512}  # maximum number of tokens per dialogue
_DTYPE: dict[str, Precision] = {"quick": "float32", "full": "bfloat16"}
_HELD_OUT = 100  # maximum number of held-out dialogues
PAPER = ((2048, 6.0, 8.0), (1024, 6.1, 14.0), (512, 6.0, 26.0))  # batch size, heuristic and standard epsilon
SIZES = (14_000, 16_500, 16_500)  # numbers of dialogues at which our standard epsilons equal those in PAPER


def rows(scale: Scale, track: Track = iter, audits: Audits = Audits()) -> list[Row]:  # noqa: B008 - it is frozen
    """Return a row for each batch size."""
    subject = subject_of(scale, audits)
    return shared.measure("table1", subject, cases(scale, subject), track, audits, models=MODELS, quality="perplexity")


def subject_of(scale: Scale, audits: Audits) -> Subject:
    """Return the model and the dialogues. The last dialogues of the file, at most a fifth, are held out."""
    from lastiterate.lm import TextProblem, Texts, read_texts
    from lastiterate.lm.text_problem import text_subject

    if audits.text is None or (audits.model is None and scale == "quick"):
        needed = "text" if audits.text is None else "model"
        raise ValueError(
            f"{needed} must be given for table1, which needs dialogues and a language model: use --text FILE --model "
            "PATH_OR_NAME"
        )
    given = read_texts(audits.text)
    kept = min(_HELD_OUT, len(given) // 5)
    if kept < 1:
        raise ValueError(f"text must hold at least 5 dialogues for table1, got {len(given)}")
    train = Texts(given.texts[:-kept][: _EXAMPLES[scale]], given.unit)
    held_out, model = Texts(given.texts[-kept:], given.unit), audits.model or GEMMA
    problem = TextProblem.of(model, train, held_out, longest=_LONGEST[scale], dtype=_DTYPE[scale])
    return text_subject(problem, lambda examples: _run(scale, examples, BATCHES[scale][0]))


def cases(scale: Scale, subject: Subject) -> list[Case]:
    """Return the audits of the table."""
    from lastiterate.lm import UnseenTokens

    size, longest = subject.problem.tokens.ids.shape
    return [
        Case(_run(scale, size, batch), UnseenTokens(), {"batch_size": batch, "examples": size, "longest": longest})
        for batch in BATCHES[scale]
    ]


def _run(scale: Scale, examples: int, batch: int) -> li.DPSGD:
    from lastiterate.lm.text_problem import EPOCHS, usual_optimizer

    optimizer = usual_optimizer(BATCHES[scale][0])  # all runs have the same learning rate for summed gradients
    run = li.DPSGD.from_batches(examples, batch, EPOCHS, 1.0, optimizer=optimizer)
    return li.calibrate(run, epsilon=HEURISTIC, delta=DELTA, analysis=li.last_iterate)


def chart(rows: list[Row]) -> alt.HConcatChart:
    """Return a chart of epsilon and perplexity over batch sizes."""
    return shared.by_batch_size("A language model at one heuristic epsilon (Table 1)", rows, "perplexity")


def notes(rows: list[Row]) -> list[str]:
    """Return notes on how the numbers were computed, and on what the paper does not state."""
    before = number_in(rows[0], "perplexity_before")
    trained = f"{rows[0]['examples']:,} dialogues of at most {rows[0]['longest']} tokens"
    return [
        *shared.notes(rows),
        f"Trained on {trained}. Perplexity is on held-out dialogues; it was {spell(before)} before training.",
        f"The paper states standard epsilons of {_listed(2)} for batches of {_listed(0)}, but not the number of "
        f"dialogues. Two epochs at delta {spell(DELTA)} give these epsilons for about "
        f"{', '.join(f'{n:,}' for n in SIZES)} dialogues.",
    ]


def _listed(column: int) -> str:
    return ", ".join(f"{row[column]:,.0f}" for row in PAPER)
