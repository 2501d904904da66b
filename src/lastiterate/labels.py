"""Registry of analyses, estimation methods, threshold choices and verdicts.

Names are the same in Python, JSON and stores. Tables, charts and web pages show the labels and meanings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Literal, cast

from lastiterate.optimizer import APPROXIMATION

if TYPE_CHECKING:
    from lastiterate.privacy.curve import PrivacyCurve
    from lastiterate.run import DPSGD
    from lastiterate.supported_runs import Support


_HOMES = {"full_batch": "last_iterate"}  # modules of analyses that are not named like their module


@dataclass(frozen=True)
class Analysis:
    """A privacy analysis of a run.

    Attributes:
        name: name in Python and JSON, and of the module. On the command line it has hyphens.
        label: name in tables and legends.
        assumes: the assumptions, in a few words.
        kind: a "heuristic" predicts, a "guarantee" holds for every attack, a "baseline" is only for comparison.
    """

    name: str
    label: str
    assumes: str
    kind: Literal["heuristic", "guarantee", "baseline"]

    @property
    def curve(self) -> Callable[[DPSGD], PrivacyCurve]:
        """The function that computes the analysis. It is imported on first use, so that this module loads quickly."""
        return cast("Callable[[DPSGD], PrivacyCurve]", getattr(self._module, self.name))

    @property
    def _module(self) -> ModuleType:
        return import_module(f"lastiterate.privacy.analyses.{_HOMES.get(self.name, self.name)}")

    @property
    def supports(self) -> Support:
        """The runs that the analysis supports, as declared in its module."""
        return cast("Support", self._module.SUPPORT)

    @property
    def is_guarantee(self) -> bool:
        """True if no attack on the run can exceed the result."""
        return self.kind == "guarantee"

    def label_of(self, run: DPSGD) -> str:
        """Return the label for this run. With Adam, the heuristic is called an approximation of a heuristic."""
        return self.label.replace("heuristic", APPROXIMATION) if run.prediction == APPROXIMATION else self.label

    def assumed_of(self, run: DPSGD) -> str:
        """Return the assumptions of the analysis for this run."""
        words = self.assumes
        if run.prediction == APPROXIMATION and self.kind != "guarantee":
            words = words.replace("losses are linear", "losses are linear, Adam's divisor is fixed")
            words = words.replace("the largest value of the heuristic", f"the largest value of the {APPROXIMATION}")
        if run.release_count == 1:
            return words
        return words.replace("the final model is", f"the {run.release_count:,} released models are")

    @property
    def option(self) -> str:
        """The name on the command line."""
        return self.name.replace("_", "-")


@dataclass(frozen=True)
class Method:
    """A method that turns scores into a lower bound on epsilon.

    Attributes:
        name: name in Python, in JSON and on the command line.
        label: name in tables and legends.
        mechanism: the assumption about the mechanism. Empty if there is no assumption.
        family: the analysis whose mechanism is assumed, with unknown noise, or None. With a family, the run is needed.
        is_assumption_free: True if the bound holds for every mechanism.
        is_one_run: True if the scores belong to many canaries in one model, instead of one canary in each of many
        models.
        has_independent_canaries: True if no canary may change the score of another one. The scores of one run are then
            treated like scores of many models.
    """

    name: str
    label: str
    mechanism: str = ""
    family: Analysis | None = None
    is_assumption_free: bool = False
    is_one_run: bool = False
    has_independent_canaries: bool = False

    @property
    def assumes(self) -> str:
        """The assumptions about the mechanism and, for one run, about the coins, in words for a table."""
        if self.is_one_run:
            return f"assumes {self.mechanism}; {OWN_COIN}" if self.mechanism else f"assumes that {OWN_COIN}"
        return f"assumes {self.mechanism or 'nothing about the mechanism'}"

    @property
    def counts_guesses(self) -> bool:
        """True if the bound counts right guesses about the coins of one run, instead of two error rates."""
        return self.is_one_run and not self.has_independent_canaries

    def assumptions(self, threshold_choice: str, validity: str = "fixed") -> tuple[str, ...]:
        """Return all assumptions of a bound by this method, in sentences."""
        conditions = [OWN_COIN] if self.is_one_run else ["models are independent of each other"]
        if not self.is_one_run and validity == "fixed":
            conditions.append("their number was fixed in advance")
        if threshold_choice == "a-priori":
            what = "the way to guess" if self.is_one_run else "the threshold"
            conditions.append(f"{what} was fixed before the scores were seen")
        *first, last = conditions
        holds = f"The bound holds only if {', '.join(first)}{' and ' if first else ''}{last}."
        return (holds, f"{self.name} assumes {self.mechanism}.") if self.mechanism else (holds,)


@dataclass(frozen=True)
class ThresholdChoice:
    """A rule that chooses the score from which on models are called "in". If not ``is_valid``, bounds prove nothing."""

    name: str
    meaning: str
    is_valid: bool = True


def kind_of_prediction(run: DPSGD) -> str:
    """Return "a heuristic", or "an approximation of a heuristic" for Adam."""
    return f"an {APPROXIMATION}" if run.prediction == APPROXIMATION else "a heuristic"


LAST_ITERATE = Analysis(
    "last_iterate",
    "last iterate (heuristic)",
    "only the final model is seen, losses are linear: predicts, does not guarantee",
    "heuristic",
)
COMPOSITION = Analysis(
    "composition", "composition (standard)", "every intermediate model is seen: a guarantee", "guarantee"
)
FULL_BATCH = Analysis(
    "full_batch",
    "full batch (baseline)",
    "all data in every step, the same noise: for comparison, not a guarantee",
    "baseline",
)
NO_AMPLIFICATION = Analysis(
    "no_amplification",
    "no amplification (bound)",
    "every intermediate model is seen, and the batches of an example are known: a guarantee",
    "guarantee",
)
CONVEX = Analysis(
    "convex",
    "last iterate, convex (guarantee)",
    "only the final model is seen, losses are convex, steps contract as stated: a guarantee",
    "guarantee",
)
MAX_OVER_STEPS = Analysis(
    "max_over_steps",
    "largest up to T (heuristic)",
    "the largest value of the heuristic if this run stops at any step",
    "heuristic",
)
_ANALYSES = LAST_ITERATE, COMPOSITION, FULL_BATCH, NO_AMPLIFICATION, CONVEX, MAX_OVER_STEPS
ANALYSES = {each.name: each for each in _ANALYSES}
SIDE_BY_SIDE = ("composition", "last_iterate", "full_batch")  # shown in every answer, in this order

PROMISES = {  # meanings of the guarantees, for people
    "composition": "for every attack, even one that sees every step",
    "no_amplification": "for every attack, even one that sees every step and all batches",
    "convex": "for the final model alone, if losses are convex and steps contract as stated",
}


def expected_of(run: DPSGD) -> str:
    """Return the meaning of the prediction, for people."""
    released = "the final model" if run.release_count == 1 else f"the {run.release_count:,} released models"
    if run.prediction == APPROXIMATION:  # first, as long lines are cut
        return f"{kind_of_prediction(run)}, no promise; from {released} alone"
    return f"from {released} alone; {kind_of_prediction(run)}, no promise"


OWN_COIN = "each canary was included by its own fair coin"
_OF_HEURISTIC = "the heuristic's mechanism, with the noise unknown"
_OF_STANDARD = "the mechanism of the standard analysis, with the noise unknown"
_METHODS = (
    Method("clopper-pearson", "Clopper-Pearson (any mechanism)", is_assumption_free=True),
    Method("gdp", "Gaussian DP family", "a Gaussian mechanism, with the noise unknown"),
    Method("last-iterate", "last-iterate family", _OF_HEURISTIC, LAST_ITERATE),
    Method("composition", "composition family", _OF_STANDARD, COMPOSITION),
    Method("one-run", "one run (any mechanism)", is_assumption_free=True, is_one_run=True),
    Method("one-run-fdp", "one run, f-DP (Gaussian family)", "Gaussian DP", is_one_run=True),
    Method(
        "one-run-last-iterate",
        "one run, last-iterate family (heuristic)",
        f"{_OF_HEURISTIC}: tests a prediction",
        LAST_ITERATE,
        is_one_run=True,
    ),
    Method("one-run-composition", "one run, composition family", _OF_STANDARD, COMPOSITION, is_one_run=True),
    Method(
        "one-run-independent",
        "one run, canaries independent",
        "that no canary changes the score of another (otherwise it is not a bound)",
        is_one_run=True,
        has_independent_canaries=True,
    ),
)
METHODS = {each.name: each for each in _METHODS}
PAIRED_METHODS = tuple(each.name for each in _METHODS if not each.is_one_run)
ONE_RUN_METHODS = tuple(each.name for each in _METHODS if each.is_one_run)
FAMILIES = tuple(name for name in PAIRED_METHODS if not METHODS[name].is_assumption_free)

_THRESHOLDS = (
    ThresholdChoice("a-priori", "chosen before training"),
    ThresholdChoice("split", "chosen by models that are not counted"),
    ThresholdChoice("corrected", "best of all thresholds, corrected for the choice"),
    ThresholdChoice("uncorrected", "best of all thresholds, uncorrected: not a valid bound", is_valid=False),
)
THRESHOLDS = {each.name: each for each in _THRESHOLDS}
VALIDITIES = {  # the numbers of models for which a bound holds
    "fixed": "for a number of models fixed in advance; stopping early because of the result invalidates the confidence",
    "anytime": "for every number of models at once; you may look at any time, stop, and continue",
}

VIOLATION, ABOVE_HEURISTIC, INCONCLUSIVE, CONSISTENT = "violation", "above heuristic", "inconclusive", "consistent"
_HEADLINES = {  # verdicts as people read them; JSON and stores keep the names
    VIOLATION: "Refuted.",
    ABOVE_HEURISTIC: "Above the prediction, below the guarantee.",
    INCONCLUSIVE: "Inconclusive: {} cannot tell.",
    CONSISTENT: "Not refuted.",
}


def headline_of(verdict: str, scores: int, one_run: bool = False) -> str:
    """Return the verdict in words. ``scores`` is the number of models, or of canaries in one run."""
    what = "canaries" if one_run else "models"
    return _HEADLINES[verdict].format(f"{scores:,} {what}")


VERDICTS = {  # with their meanings
    VIOLATION: (
        "The attack found more than the claimed guarantee allows. With the stated confidence, the training is not as "
        "private as claimed: look for a fault in its clipping, its noise, or its sampling of batches."
    ),
    ABOVE_HEURISTIC: (
        "The attack found more than the heuristic predicts, but the tests that could refute the guarantee did not. "
        "Look into it: the heuristic is too low for this training, or the training differs from its description."
    ),
    INCONCLUSIVE: (
        "This audit lacked power, or its attack did not work. It does not show whether the training is as private as "
        "claimed."
    ),
    CONSISTENT: (
        "The claim was not refuted, and this audit had the power to detect the fault named in its reason. This does "
        "not prove that the training is private: another attack, or more models, might find more."
    ),
}
