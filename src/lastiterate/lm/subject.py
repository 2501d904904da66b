"""What is audited from the command line: a language model, texts, and how it is usually fine-tuned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lastiterate.auditing.subject import Subject
from lastiterate.lm.problem import TextProblem
from lastiterate.optimizer import SGD
from lastiterate.run import DPSGD

EPOCHS = 2.0  # the paper's


def usual_optimizer(batch: float) -> SGD:
    """Plain SGD; of gradients clipped to 1 and summed over a batch."""
    return SGD(0.2 / batch)


def text_subject(problem: TextProblem, run: Callable[[int], DPSGD]) -> Subject:
    """The subject of an audit; ``run`` is given how many examples there are."""
    return Subject(run(problem.size), problem, problem.words, Path(problem.model).name.lower())
