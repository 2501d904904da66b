"""Numbers, runs and tables as readable text."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.common.types import FloatArray
from lastiterate.mechanism import SAMPLINGS
from lastiterate.optimizer import APPROXIMATION, Adam, Optimizer, is_adam

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from lastiterate.run import DPSGD

CAVEAT = "The heuristic predicts, it does not guarantee."
ADAM_CAVEAT = (
    f"With Adam the prediction is an {APPROXIMATION}: Adam's divisor is taken as fixed, as if noise alone made up its "
    "second moment. It does not guarantee anything."
)

# Line and paragraph separators become blanks. Control characters, surrogates and the two code points that XML forbids
# become the replacement character.
_SHOWN = {"Zl": " ", "Zp": " ", "Cc": "\ufffd", "Cs": "\ufffd"}
_BLANKS = str.maketrans("\t\n\r\v\f\x85\ufffe\uffff", "      \ufffd\ufffd")

ONE_TRAINING = "These numbers are for one training: choosing hyperparameters on the same data costs extra privacy."
_EXACT_DIGITS = 6  # most digits of a number that is shown exactly
_MOST_DENOMINATOR = 10**6  # largest denominator of a sample rate that is shown as a fraction
_SHOWN_COEFFICIENTS = 4  # number of coefficients of a noise filter that are shown


def printable(text: str) -> str:
    """Return text on one line, without characters that control a terminal or that files cannot contain."""
    if text.isprintable():
        return text
    return "".join(_SHOWN.get(unicodedata.category(each), each) for each in text.translate(_BLANKS))


def per_cent(fraction: float) -> str:
    """Format a confidence or an accuracy as a percentage, without trailing zeros."""
    return f"{100.0 * fraction:.6g}%"


def caveat_of(*runs: DPSGD) -> str:
    """Return the caveat to print beside the predictions for these runs."""
    adam = [run.prediction == APPROXIMATION for run in runs]
    return " ".join([*([] if adam and all(adam) else [CAVEAT]), *([ADAM_CAVEAT] if any(adam) else [])])


def notes_on(run: DPSGD) -> list[str]:
    """Return the notes for a table that already says that the heuristic is not a guarantee."""
    return [ADAM_CAVEAT] if run.prediction == APPROXIMATION else []


def describe(run: DPSGD, *, noise: bool = True, quoted: bool = False) -> str:
    """Describe the run in one line, with or without its noise. Rounded numbers begin with "about".

    If ``quoted`` is True, every number is exact, and the releases and the neighbours are left out.
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
    """Describe the sampling, the batches per epoch (optional), the weights, the optimizer and correlated noise."""
    parts = [SAMPLINGS[run.sampling].words]
    if epochs and run.batches_per_epoch is not None:
        parts.append(f"{run.batches_per_epoch:,} batch{'es' if run.batches_per_epoch > 1 else ''} per epoch")
    if run.max_batch_size is not None:
        parts.append(f"batches of at most {run.max_batch_size:,} of {run.dataset_size:,} examples")
    if run.weights is not None:
        parts.append(f"weights {exact(run.weights, rounded)}")
    if run.optimizer is not None:
        parts += _optimizer(run.optimizer, rounded)
    return parts + noise_words(run, rounded)


def noise_words(run: DPSGD, rounded: bool = True) -> list[str]:
    """Describe correlated noise and the minimum separation of an example's batches. Empty for independent noise."""
    if run.noise_filter is None:
        return []
    first = ", ".join(exact(each, rounded) for each in run.noise_filter[:_SHOWN_COEFFICIENTS])
    more = f", ... ({len(run.noise_filter):,} in all)" if len(run.noise_filter) > _SHOWN_COEFFICIENTS else ""
    apart = [f"batches of an example at least {run.min_separation:,} steps apart"] if run.min_separation > 1 else []
    return [f"correlated noise (filter {first}{more})", *apart]


def _optimizer(optimizer: Optimizer, rounded: bool) -> list[str]:
    """Describe the learning rate and the hyperparameters that differ from the defaults."""
    parts, rate = [], optimizer.learning_rate
    if is_adam(optimizer):
        betas = f"{exact(optimizer.beta1, rounded)}, {exact(optimizer.beta2, rounded)}"
        parts.append(f"Adam{'W' if optimizer.decoupled else ''} {betas}")
        if optimizer.eps != Adam.eps:
            parts.append(f"eps {exact(optimizer.eps, rounded)}")
    parts.append(f"learning rate {exact(rate, rounded)}")
    if optimizer.momentum and not optimizer.is_adaptive:
        parts.append(f"{'Nesterov ' if optimizer.nesterov else ''}momentum {exact(optimizer.momentum, rounded)}")
    if optimizer.dampening:
        parts.append(f"dampening {exact(optimizer.dampening, rounded)}")
    if optimizer.weight_decay or (optimizer.decoupled and not optimizer.is_adaptive):
        kind = "decoupled weight decay" if optimizer.decoupled else "weight decay"
        parts.append(f"{kind} {exact(optimizer.weight_decay, rounded)}")
    if optimizer.averaging is not None:
        uniform = optimizer.averaging == "uniform"
        parts.append("uniform averaging" if uniform else f"EMA {exact(float(optimizer.averaging), rounded)}")
    return parts


def released(run: DPSGD) -> list[str]:
    """Describe the releases, the group size and the neighbours, if they are not the defaults."""
    parts = [f"{run.release_count:,} iterates released"] if run.release_count > 1 else []
    if run.group_size > 1:
        parts.append(f"{run.group_size:,} examples a person")
    one, others = ("one example", "another") if run.group_size == 1 else ("all of them", "others")
    if run.is_mirrored:
        parts.append(f"{one} replaced by {others}")
    if run.neighbours == "zero-out":
        parts.append(f"{one} replaced by {'one' if run.group_size == 1 else 'ones'} without gradient (zero-out)")
    return parts


def neighbours_of(run: DPSGD) -> str:
    """Return the neighbouring relation of a guarantee, in words."""
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
    """Format a number with all its digits, such as an epsilon or delta that the user gave."""
    return exact(value, rounded=False)


def spell_up(value: float, digits: int = 5) -> str:
    """Format a number rounded up. Use it for noise, guarantees and predictions, which must not be understated."""
    return _rounded(value, digits, ROUND_CEILING)


def spell_down(value: float, digits: int = 5) -> str:
    """Format a number rounded down. Use it for lower bounds."""
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, way: str) -> str:
    if not math.isfinite(value):
        return spell(value)
    exact = Decimal(repr(float(value)))
    unit = Decimal(1).scaleb(exact.adjusted() + 1 - digits)
    return spell(float(exact.quantize(unit, way)), digits)


def exact(value: ArrayLike, rounded: bool = True, *, as_fraction: bool = False) -> str:
    """Format a number without loss. If ``rounded`` is True, a long number is rounded and begins with "about"."""
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
    """Format a number, or a schedule by its first and last values. Its range is added if it is wider."""
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
    """Remove leading zeros from a number's exponent."""
    mantissa, _, exponent = number.partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


# Tables: text as wide as the terminal, rendered with rich.

_EDGES = 2  # padding at a table's edges that rich does not measure


@dataclass(frozen=True)
class Table:
    """A title, columns and notes, without a fixed width. Columns in ``numeric`` are aligned to the right."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Collection[int]
    notes: Sequence[str | Text] = ()

    def __str__(self) -> str:
        """Return the table as text without colours."""
        return text_of(*self.parts(), colours=False)

    def parts(self) -> list[RenderableType]:
        """Return the title, the table and the notes as rich renderables."""
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
    """Return text of several lines, without characters that control a terminal."""
    return "\n".join(map(printable, text.split("\n")))


def text_of(*parts: RenderableType, colours: bool = True) -> str:
    """Render these parts with rich, without trailing blanks. Use colours only for terminals."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(highlight=False) if colours else Console(highlight=False, color_system=None, force_jupyter=False)
    # A table may be wider than the terminal, so that no digits are cut off.
    unbounded = console.options.update(max_width=1000)
    widest = max(Measurement.get(console, unbounded, part).minimum for part in parts)
    console.width = max(console.width, widest + _EDGES)
    with console.capture() as text:
        console.print(*parts, sep="\n")
    return "\n".join(line.rstrip() for line in text.get().splitlines())
