"""What an audit found, beside what was predicted."""

from __future__ import annotations

import html
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from lastiterate.answers import Answer
from lastiterate.arrays import FloatArray
from lastiterate.auditing.evidence.estimate import Estimate
from lastiterate.auditing.evidence.outlook import OneRunOutlook, Outlook
from lastiterate.auditing.evidence.strength import Strength
from lastiterate.auditing.evidence.table import result_table
from lastiterate.auditing.evidence.waterfall import Step, waterfall_of
from lastiterate.extras import MissingExtra
from lastiterate.run import DPSGD
from lastiterate.second_moment import SecondMoment
from lastiterate.values import told

if TYPE_CHECKING:
    from altair import VConcatChart


@dataclass(frozen=True, eq=False)
class AuditResult:
    """An audit, done or as far as it came. Epsilons are at ``delta``. It prints as the table of the command line.

    Attributes:
        run: what was trained, or is claimed to have been.
        attack: how it was attacked, in one line of plain words.
        data: what was trained on what, in one line of plain words.
        caveats: what a reader must know about these numbers, in sentences.
        delta: of (epsilon, delta)-DP.
        confidence: of every empirical epsilon.
        predictions: what each analysis says of the run, by its name.
        estimates: empirical epsilons, by method.
        scores_in: of the models with the canary; a larger score speaks for the canary.
        scores_out: of those without.
        score_unit: what a score counts, such as "standard deviations of the noise".
        score_density: points (score, density without the canary, density with it) that the linear analysis predicts,
            an array [points, 3]; None where it does not predict scores.
        signal: d', the distance of the two means in standard deviations.
        ideal_signal: the same if the losses were linear and nothing but noise moved the score; None: not known.
        accuracy: the mean test accuracy of the models; None: not measured.
        models: planned a world.
        store: where the scores are.
        seconds: that training and scoring took, over all sessions.
        verdict: "violation", "above heuristic", "inconclusive" or "consistent".
        reason: why, in a sentence or two; of an inconclusive verdict, also what it would take.
        strength: what the verdict would have caught.
        perplexity: of language models on held-out text, the geometric mean over the models; None: not measured.
        perplexity_before: that of the model with which training began.
        second_moment: Adam's, on models that are not counted; None: not Adam, or not measured.
        outlook: how an audit of so many models was expected to turn out, if training is exactly as described.
    """

    run: DPSGD
    attack: str
    data: str
    caveats: tuple[str, ...]
    delta: float
    confidence: float
    predictions: dict[str, Answer]
    estimates: dict[str, Estimate]
    scores_in: FloatArray
    scores_out: FloatArray
    score_unit: str
    score_density: FloatArray | None
    signal: float
    ideal_signal: float | None
    accuracy: float | None
    models: int
    store: Path | None
    seconds: float
    verdict: str
    reason: str
    strength: Strength
    perplexity: float | None = None
    perplexity_before: float | None = None
    outlook: Outlook | OneRunOutlook | None = None
    second_moment: SecondMoment | None = None

    @cached_property
    def detectable(self) -> dict[str, float]:
        """The epsilon that each method finds with probability 80%, if training and attack are as expected."""
        return {} if self.outlook is None else {method: self.outlook.reached(method) for method in self.estimates}

    @cached_property
    def waterfall(self) -> tuple[Step, ...]:
        """Why the number found is below the guarantee, level by level."""
        if self.outlook is None or not self.estimates:
            return ()
        return waterfall_of(self.outlook, self.predictions, self.estimates)

    @property
    def last_iterate(self) -> float | None:
        """Epsilon by the heuristic."""
        return self.predictions["last_iterate"].value

    @property
    def composition(self) -> float | None:
        """Epsilon by the standard analysis."""
        return self.predictions["composition"].value

    @property
    def full_batch(self) -> float | None:
        """Epsilon of the full-batch baseline."""
        return self.predictions["full_batch"].value

    @property
    def empirical(self) -> dict[str, float]:
        """The empirical epsilon of each method."""
        return {method: estimate.epsilon for method, estimate in self.estimates.items()}

    def __str__(self) -> str:
        return str(result_table(self))

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        return f"<pre>{html.escape(str(self))}</pre>"

    def plot(self) -> VConcatChart:
        """Scores, errors and epsilons in one picture: an altair chart, which notebooks show and ``save`` writes."""
        from lastiterate.plot.audit_charts import audit_chart
        from lastiterate.plot.file import missing_libraries

        if sentence := missing_libraries():
            raise MissingExtra(sentence)
        return audit_chart(self)

    def page(self, path: str | Path) -> None:
        """Write all of it as one web page, which needs no network. The file's name must end in .html."""
        from lastiterate.plot.page import write_page

        if not isinstance(path, (str, Path)):
            raise ValueError(f"path must be that of a file, got {told(path)}")
        write_page(self, Path(path))
