"""Numbers and runs as people read them, in tables, titles and sentences alike."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.common.types import FloatArray
from lastiterate.optimizer import Adam, is_adam, is_sgd
from lastiterate.registry import APPROXIMATION

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import ArrayLike
    from rich.console import RenderableType
    from rich.text import Text

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

ONE_TRAINING = "These numbers are for one training: choosing hyperparameters on the same data costs extra privacy."
_EXACT_DIGITS = 6  # of a number that is shown as it is
_MOST_DENOMINATOR = 10**6  # of a sample rate that is shown as a fraction
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
    adam = [is_adam(run.optimizer) for run in runs]
    return " ".join([*([] if adam and all(adam) else [CAVEAT]), *([ADAM_CAVEAT] if any(adam) else [])])


def notes_on(run: DPSGD) -> list[str]:
    """What must be said beside a table that says already that the heuristic does not guarantee."""
    return [ADAM_CAVEAT] if is_adam(run.optimizer) else []


def describe(run: DPSGD, *, noise: bool = True, quoted: bool = False) -> str:
    """The run in one line, with its noise or without; a number that is rounded is called "about".

    To be quoted every number is exact, and what is released and which neighbours are told apart is left to the words
    around it.
    """
    rounded = not quoted
    parts = [
        f"{run.steps:,} step{'s' if run.steps > 1 else ''}",
        f"sample rate {exact(run.sample_rate, rounded, as_fraction=True)}",
        *([f"noise multiplier {exact(run.noise_multiplier, rounded)}"] if noise else []),
        *([f"clipping norm {exact(run.clip_norm, rounded)}"] if run.clip_norm != 1.0 else []),
        *training(run, rounded),
        *([] if quoted else released(run)),
    ]
    return ", ".join(parts)


def training(run: DPSGD, rounded: bool = True, epochs: bool = True) -> list[str]:
    """How the run samples, with the batches per epoch or without, and what makes its steps count differently."""
    parts = [_SAMPLING[run.sampling]]
    if epochs and run.batches_per_epoch is not None:
        parts.append(f"{run.batches_per_epoch:,} batch{'es' if run.batches_per_epoch > 1 else ''} per epoch")
    if run.weights is not None:
        parts.append(f"weights {exact(run.weights, rounded)}")
    if run.optimizer is not None:
        parts += _optimizer(run.optimizer, rounded)
    return parts + noise_words(run, rounded)


def noise_words(run: DPSGD, rounded: bool = True) -> list[str]:
    """That noise is correlated, and how far apart the batches of an example are, where that is so."""
    if run.noise_filter is None:
        return []
    first = ", ".join(exact(each, rounded) for each in run.noise_filter[:_SHOWN_COEFFICIENTS])
    more = f", ... ({len(run.noise_filter):,} in all)" if len(run.noise_filter) > _SHOWN_COEFFICIENTS else ""
    apart = [f"batches of an example at least {run.min_separation:,} steps apart"] if run.min_separation > 1 else []
    return [f"correlated noise (filter {first}{more})", *apart]


def _optimizer(optimizer: Optimizer, rounded: bool) -> list[str]:
    """The optimizer's hyperparameters that are not as usual, and its learning rate."""
    parts, rate = [], optimizer.learning_rate
    if is_adam(optimizer):
        betas = f"{exact(optimizer.beta1, rounded)}, {exact(optimizer.beta2, rounded)}"
        parts.append(f"Adam{'W' if optimizer.decoupled else ''} {betas}")
        if optimizer.eps != Adam.eps:
            parts.append(f"eps {exact(optimizer.eps, rounded)}")
    parts.append(f"learning rate {exact(rate, rounded)}")
    if is_sgd(optimizer) and optimizer.momentum:
        parts.append(f"{'Nesterov ' if optimizer.nesterov else ''}momentum {exact(optimizer.momentum, rounded)}")
    if is_sgd(optimizer) and optimizer.dampening:
        parts.append(f"dampening {exact(optimizer.dampening, rounded)}")
    if optimizer.weight_decay or (is_sgd(optimizer) and optimizer.decoupled):
        kind = "decoupled weight decay" if optimizer.decoupled else "weight decay"
        parts.append(f"{kind} {exact(optimizer.weight_decay, rounded)}")
    if optimizer.averaging is not None:
        uniform = optimizer.averaging == "uniform"
        parts.append("uniform averaging" if uniform else f"EMA {exact(float(optimizer.averaging), rounded)}")
    return parts


def released(run: DPSGD) -> list[str]:
    """What is released, and which neighbours are told apart, where that is not one example's presence in the model."""
    parts = [f"{run.release_count:,} iterates released"] if run.release_count > 1 else []
    if run.group_size > 1:
        parts.append(f"{run.group_size:,} examples a person")
    one, others = ("one example", "another") if run.group_size == 1 else ("all of them", "others")
    if run.neighbours == "replace":
        parts.append(f"{one} replaced by {others}")
    if run.neighbours == "zero-out":
        parts.append(f"{one} replaced by {'one' if run.group_size == 1 else 'ones'} without gradient (zero-out)")
    return parts


def neighbours_of(run: DPSGD) -> str:
    """Which data sets a guarantee makes hard to tell apart, in words."""
    one, other, empty, apart = "one example", "another", "one", ""
    if run.group_size > 1:
        one, other, empty = f"up to {run.group_size:,} examples of one person", "others", "ones"
        apart = ", each of which is sampled and clipped by itself"
    words = {
        "add-remove": f"adding or removing {one}",
        "zero-out": f"replacing {one} by {empty} without gradient (zero-out)",
        "replace": f"replacing {one} by {other}",
    }
    return words[run.neighbours] + apart


def spell_exact(value: float) -> str:
    """A number with all its digits: the epsilon or delta for which others are told."""
    return exact(value, rounded=False)


def spell_up(value: float, digits: int = 5) -> str:
    """A number rounded up: noise, a guarantee or a prediction, of which too little would be too kind."""
    return _rounded(value, digits, ROUND_CEILING)


def spell_down(value: float, digits: int = 5) -> str:
    """A number rounded down, as befits a lower bound."""
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, way: str) -> str:
    if not math.isfinite(value):
        return spell(value)
    exact = Decimal(repr(float(value)))
    unit = Decimal(1).scaleb(exact.adjusted() + 1 - digits)
    return spell(float(exact.quantize(unit, way)), digits)


def exact(value: ArrayLike, rounded: bool = True, *, as_fraction: bool = False) -> str:
    """A number in a form that reads back as the same number, or, if it is long and may be rounded, "about" so much."""
    numbers = np.asarray(value, np.float64)
    if numbers.ndim:
        return _schedule(numbers, lambda each: exact(each, rounded, as_fraction=as_fraction))
    number = float(numbers)
    short = spell(number, _EXACT_DIGITS)
    if float(short) == number:
        return short
    ratio = Fraction(number).limit_denominator(_MOST_DENOMINATOR)
    if as_fraction and float(ratio) == number:
        return f"{ratio.numerator}/{ratio.denominator}"
    return f"about {spell(number)}" if rounded else _tidy(repr(number))


def spell(value: ArrayLike, digits: int = 4) -> str:
    """A number, or a schedule by its first and last values and, if these are not its range, its range."""
    numbers = np.asarray(value, np.float64)
    if numbers.ndim:
        return _schedule(numbers, lambda each: spell(each, digits))
    return _tidy(f"{float(numbers):.{digits}g}")


def _schedule(numbers: FloatArray, write: Callable[[float], str]) -> str:
    first, last, low, high = (float(each) for each in (numbers[0], numbers[-1], numbers.min(), numbers.max()))
    if low == high:
        return write(first)
    ends = f"{write(first)} to {write(last)}"
    return ends if {first, last} == {low, high} else f"{ends}, between {write(low)} and {write(high)}"


def _tidy(number: str) -> str:
    """A number's text without zeros in its exponent."""
    mantissa, _, exponent = number.partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


# Tables as text: a title, columns and notes, as wide as the reader's terminal, and with rich's help.

_EDGES = 2  # what rich forgets, when it measures a table, of the padding at its edges


@dataclass(frozen=True)
class Table:
    """What a table says, before anybody knows how wide it is; columns in ``numeric`` are aligned to the right."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Collection[int]
    notes: Sequence[str | Text] = ()

    def __str__(self) -> str:
        """Without colours."""
        return text_of(*self.parts(), colours=False)

    def parts(self) -> list[RenderableType]:
        """What rich is to draw, one below the other."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for index, column in enumerate(self.header):
            if index in self.numeric:
                table.add_column(column.replace(" ", "\n"), justify="right", no_wrap=True)
            else:
                table.add_column(column, overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(shown(cell)) for cell in row))
        below = [Text(shown(note)) if isinstance(note, str) else note for note in ["", *self.notes]]
        return [Text(shown(self.title) + "\n"), table, *(below if self.notes else [])]


def shown(text: str) -> str:
    """A text of several lines, without characters that command a terminal."""
    return "\n".join(map(printable, text.split("\n")))


def text_of(*parts: RenderableType, colours: bool = True) -> str:
    """What rich makes of these, without the blanks with which it fills lines up; colours are for terminals."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(highlight=False) if colours else Console(highlight=False, color_system=None, force_jupyter=False)
    # Rather than cut digits off, let a table be wider than the terminal.
    unbounded = console.options.update(max_width=1000)
    widest = max(Measurement.get(console, unbounded, part).minimum for part in parts)
    console.width = max(console.width, widest + _EDGES)
    with console.capture() as text:
        console.print(*parts, sep="\n")
    return "\n".join(line.rstrip() for line in text.get().splitlines())
