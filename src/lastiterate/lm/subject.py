"""What is audited from the command line: a language model, texts, and how it is usually fine-tuned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lastiterate.auditing.subject import Subject, with_defaults
from lastiterate.lm.problem import TextProblem
from lastiterate.optimizer import SGD
from lastiterate.run import DPSGD

EPOCHS = 2.0  # the paper's
_BATCHES_AN_EPOCH = 8


def usual_optimizer(batch: float) -> SGD:
    """Plain SGD; of gradients clipped to 1 and summed over a batch."""
    return SGD(0.2 / batch)


def text_subject(problem: TextProblem, run: Callable[[int], DPSGD | None]) -> Subject:
    """The subject of an audit. ``run(examples)`` is the run that was described, if one was."""
    name = Path(problem.model).name.lower()
    return Subject(run(problem.size) or usual_run(problem.size), problem, problem.words, name)


def usual_run(examples: int) -> DPSGD:
    """Two epochs in batches of an eighth of the examples, with noise for epsilon 8 by composition."""
    batch = max(1, examples // _BATCHES_AN_EPOCH)
    run = DPSGD.from_batches(examples, batch, EPOCHS, noise_multiplier=1.0)
    return with_defaults(run, calibrated=False, examples=examples, usual=usual_optimizer)
