"""What an audit can see, as ``lastiterate.power`` says it: values, and the table and the picture that people read."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lastiterate.extras import MissingExtra
from lastiterate.run import DPSGD
from lastiterate.tables import Table
from lastiterate.vocabulary import METHODS
from lastiterate.wording import describe, per_cent, spell, spell_down, spell_exact

if TYPE_CHECKING:
    from altair import LayerChart


@dataclass(frozen=True)
class Detectable:
    """What one method will find, if a training is exactly as described.

    Attributes:
        method: of estimation.
        detectable: the epsilon that its bound reaches with probability 80%: the bound's 20% quantile.
        median: what half of the audits find at least.
    """

    method: str
    detectable: float
    median: float


@dataclass(frozen=True)
class Power:
    """What an audit can see. It prints as the table of the command line.

    Attributes:
        run: what is trained.
        models: a world, or canaries of the one run.
        one_run: whether there is one training with many canaries.
        delta: of (epsilon, delta)-DP.
        confidence: of every bound, and of the verdict.
        validity: "fixed" or "anytime".
        signal: the share of the canary that the attack sees.
        spread: the standard deviation of its scores, in that of the noise.
        rows: what each method will find.
        claim: what is to be refuted, for people.
        leak: the training that is to be found out, for people.
        noise_multiplier: that training's largest.
        chance: the probability with which so many ``models`` refute the claim.
        needed: how many refute it with probability 80%; None: more than anybody trains.
        chances: (models, probability to refute) for several numbers of models.
        notes: what a reader must know, in sentences.
    """

    run: DPSGD
    models: int
    one_run: bool
    delta: float
    confidence: float
    validity: str
    signal: float
    spread: float
    rows: tuple[Detectable, ...]
    claim: str
    leak: str
    noise_multiplier: float
    chance: float
    needed: int | None
    chances: tuple[tuple[int, float], ...]
    notes: tuple[str, ...]

    def table(self) -> Table:
        """What each method finds, and below it what that means and how many models it takes."""
        held = " at every moment" if self.validity == "anytime" else ""
        attack = "a perfect attack"
        if (self.signal, self.spread) != (1.0, 1.0):
            attack = f"an attack of signal {spell(self.signal)} and spread {spell(self.spread)}"
        title = (
            f"{describe(self.run)}; delta {spell_exact(self.delta)}\n"
            f"{self.counted()}, {attack}, {per_cent(self.confidence)} confidence{held}"
        )
        rows = [
            (
                METHODS[each.method].label,
                spell_down(each.detectable),
                spell_down(each.median),
                METHODS[each.method].assumes,
            )
            for each in self.rows
        ]
        header = ("", "detectable", "median", "what it assumes")
        return Table(title, header, rows, {1, 2}, [_MEANING, *self.sentences(), *self.notes])

    def counted(self) -> str:
        """How many models there are, or canaries."""
        return f"{self.models:,} {'canaries of one run' if self.one_run else 'models a world'}"

    def sentences(self) -> list[str]:
        """The claim, and how many models it takes to refute it."""
        what = "canaries" if self.one_run else "models a world"
        takes = f"more than {self.chances[-1][0]:,}" if self.needed is None else f"{self.needed:,}"
        return [
            f"To be refuted: {self.claim}. In truth: {self.leak}.",
            f"{self.counted()} refute it with probability {_rounded(self.chance)}; for 80% it takes {takes} {what}.",
        ]

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        return f"<pre>{html.escape(str(self))}</pre>"

    def plot(self) -> LayerChart:
        """The probability to refute over the number of models: an altair chart, which notebooks show."""
        from lastiterate.plot.file import missing_libraries
        from lastiterate.plot.power import power_chart

        if sentence := missing_libraries():
            raise MissingExtra(sentence)
        return power_chart(self)


_MEANING = "Detectable: if training is correct, 80% of such audits find at least this epsilon. Median: 50% of them do."


def _rounded(chance: float) -> str:
    """A probability, which is never said to be certain."""
    if chance < 0.0005:
        return "below 0.1%"
    return "above 99.9%" if chance > 0.9995 else per_cent(round(chance, 3))
