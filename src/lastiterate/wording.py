"""Numbers and runs as people read them, in tables, titles and sentences alike."""

from __future__ import annotations

import unicodedata
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.optimizer import SGD, Adam
from lastiterate.vocabulary import APPROXIMATION

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from lastiterate.optimizer import Optimizer
    from lastiterate.run import DPSGD

CAVEAT = "The heuristic predicts, it does not guarantee."
ADAM_CAVEAT = (
    f"With Adam the prediction is an {APPROXIMATION}: Adam's divisor is taken as fixed, as if noise alone made up its "
    "second moment. It does not guarantee anything."
)

# By Unicode's categories: separators of lines and paragraphs become blanks; control characters and halves of pairs,
# like the two code points that XML does not know, become the character that stands for what cannot be shown.
_SHOWN = {"Zl": " ", "Zp": " ", "Cc": "\ufffd", "Cs": "\ufffd"}
_BLANKS = str.maketrans("\t\n\r\v\f\x85\ufffe\uffff", "      \ufffd\ufffd")

_SHOWN_COEFFICIENTS = 4  # of a noise filter
_SAMPLING = {
    "poisson": "Poisson sampling",
    "fixed": "batches of fixed size",
    "shuffled": "shuffled batches",
    "full": "full batches",
}


def printable(text: str) -> str:
    """A text of somebody else's on one line, without characters that command a terminal or that no file can hold."""
    if text.isprintable():
        return text
    return "".join(_SHOWN.get(unicodedata.category(each), each) for each in text.translate(_BLANKS))


def per_cent(fraction: float) -> str:
    """A confidence or an accuracy, without zeros that say nothing."""
    return f"{100.0 * fraction:.6g}%"


def caveat_of(*runs: DPSGD) -> str:
    """What must be said where a person reads the prediction for these runs."""
    adam = [isinstance(run.optimizer, Adam) for run in runs]
    return " ".join([*([] if adam and all(adam) else [CAVEAT]), *([ADAM_CAVEAT] if any(adam) else [])])


def notes_on(run: DPSGD) -> list[str]:
    """What must be said beside a table that says already that the heuristic does not guarantee."""
    return [ADAM_CAVEAT] if isinstance(run.optimizer, Adam) else []


def describe(run: DPSGD, *, noise: bool = True) -> str:
    """The run in one line, with its noise or without."""
    parts = [
        f"{run.steps:,} step{'s' if run.steps > 1 else ''}",
        f"sample rate {spell(run.sample_rate)}",
        *([f"noise multiplier {spell(run.noise_multiplier)}"] if noise else []),
        *training(run),
    ]
    return ", ".join(parts)


def training(run: DPSGD) -> list[str]:
    """How the run samples and what makes its steps count differently."""
    parts = [_SAMPLING[run.sampling]]
    if run.weights is not None:
        parts.append(f"weights {spell(run.weights)}")
    if run.optimizer is not None:
        parts += _optimizer(run.optimizer)
    return parts + noise_words(run) + released(run)


def noise_words(run: DPSGD) -> list[str]:
    """That noise is correlated, and how far apart the batches of an example are, where that is so."""
    if run.noise_filter is None:
        return []
    first = ", ".join(spell(each) for each in run.noise_filter[:_SHOWN_COEFFICIENTS])
    more = f", ... ({len(run.noise_filter):,} in all)" if len(run.noise_filter) > _SHOWN_COEFFICIENTS else ""
    apart = [f"batches of an example at least {run.min_separation:,} steps apart"] if run.min_separation > 1 else []
    return [f"correlated noise (filter {first}{more})", *apart]


def _optimizer(optimizer: Optimizer) -> list[str]:
    """What makes its steps count differently."""
    parts, rate = [], optimizer.learning_rate
    if isinstance(optimizer, Adam):
        parts.append(f"Adam{'W' if optimizer.decoupled else ''} {spell(optimizer.beta1)}, {spell(optimizer.beta2)}")
    if np.ndim(rate):
        rates = np.asarray(rate)
        peak = f" (at most {spell(rates.max())})" if rates.max() > max(rates[0], rates[-1]) else ""
        parts.append(f"learning rate {spell(rates)}{peak}")
    if isinstance(optimizer, SGD) and optimizer.momentum:
        parts.append(f"{'Nesterov ' if optimizer.nesterov else ''}momentum {spell(optimizer.momentum)}")
    if optimizer.weight_decay:
        at = "" if np.ndim(rate) else f" at learning rate {spell(rate)}"
        parts.append(f"{'decoupled ' if optimizer.decoupled else ''}weight decay {spell(optimizer.weight_decay)}{at}")
    if optimizer.averaging is not None:
        parts.append("uniform averaging" if optimizer.averaging == "uniform" else f"EMA {spell(optimizer.averaging)}")
    return parts


def released(run: DPSGD) -> list[str]:
    """What is released, and what is told apart by it, where that is not whether one example is in the last iterate."""
    parts = [f"{run.release_count:,} iterates released"] if run.release_count > 1 else []
    if run.group_size > 1:
        parts.append(f"{run.group_size:,} examples a person")
    if run.neighbours == "replace":
        parts.append("one example replaced by another" if run.group_size == 1 else "all of them replaced by others")
    return parts


def spell_up(value: float, digits: int = 5) -> str:
    """A number rounded up: of noise, too much is safe and too little is not."""
    return _rounded(value, digits, ROUND_CEILING)


def spell_down(value: float, digits: int = 5) -> str:
    """A number rounded down, as befits a lower bound."""
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, way: str) -> str:
    exact = Decimal(repr(float(value)))
    unit = Decimal(1).scaleb(exact.adjusted() + 1 - digits)
    return spell(float(exact.quantize(unit, way)), digits)


def spell(value: ArrayLike, digits: int = 4) -> str:
    """A number, or a schedule by its first and last."""
    numbers = np.asarray(value, np.float64)
    if numbers.ndim:
        ends = [spell(end, digits) for end in (numbers[0], numbers[-1])]
        return " to ".join(ends if numbers.size > 1 else ends[:1])
    mantissa, _, exponent = f"{float(numbers):.{digits}g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa
