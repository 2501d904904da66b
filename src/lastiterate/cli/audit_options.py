"""Options of commands that audit or train: attack, question, claim, store and engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from lastiterate.attacks import NAMED
from lastiterate.cli.app import OptionError
from lastiterate.cli.options import Convex, Option, PerStep, Seed, parse_integer, parse_number
from lastiterate.cli.signals import leaving_with
from lastiterate.common.validation import written_integer
from lastiterate.formatting import printable
from lastiterate.labels import THRESHOLDS

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from lastiterate.auditing.engines.engine import Engine
    from lastiterate.auditing.evidence.estimates import Question


def parse_models(option: str, text: str) -> int | str:
    """Parse a whole number, or the word auto."""
    if str(text) != "auto" and written_integer(str(text)) is None:
        raise OptionError(f"{option} must be an integer in plain digits, or auto, got {text!a}")
    return "auto" if text == "auto" else parse_integer(option, text)


def parse_threshold(option: str, text: str) -> float | str:
    """Parse a threshold: a number, or the name of a rule that chooses the threshold."""
    if text in THRESHOLDS:
        return text
    return parse_number(option, text, f"a finite number or one of {', '.join(THRESHOLDS)}")


def parse_attack(option: str, text: str) -> str:
    """Parse the name of an attack, or FILE.py:CLASS."""
    if text not in NAMED and ":" not in text:
        raise OptionError(f"{option} must be FILE.py:CLASS or one of {', '.join(NAMED)}, got {text!a}")
    return text


Others = Annotated[
    Literal["natural", "blank", "zero"] | None,
    "The other examples: natural, blank images (input space), or zero gradients (all-iterates).",
]
AttackName = Annotated[
    str | None,
    Option(
        f"The attack: {', '.join(NAMED)} (default: quiet), or your own, from a file.",
        "NAME|FILE.py:CLASS",
        parse_attack,
    ),
]
Fault = Annotated[
    float, "The audit must detect training with this share of the declared noise, with power 80% (default: 0.5)."
]
Strict = Annotated[
    bool,
    "Also exit with 1 if the bound exceeds the heuristic, and with 4 if the verdict is inconclusive without a claim.",
]
Details = Annotated[bool, "Print every analysis, method and note."]
Output = Annotated[Path | None, Option("Folder for the page and the pictures (default: the store's).", "FOLDER")]
ClipNorm = Annotated[float | None, "Clipping norm (default: 1)."]


@dataclass(frozen=True)
class ClaimOptions:
    """Options for delta, the claim to judge, and the validity of bounds."""

    delta: Annotated[float, "Delta of (epsilon, delta)-DP (default: 1e-5)."] = 1e-5
    claim_epsilon: Annotated[float | None, "Judge the claim of this epsilon."] = None
    claim_noise: Annotated[float | None, "Judge the claim of this noise multiplier."] = None
    anytime: Annotated[bool, "Bounds hold for every number of models at once: look, stop and continue as you like."] = (
        False
    )

    @property
    def validity(self) -> str:
        return "anytime" if self.anytime else "fixed"


@dataclass(frozen=True)
class QuestionOptions(ClaimOptions):
    """Options for the estimation of epsilon from scores, and for the claim to judge."""

    confidence: Annotated[float, "Joint confidence in both error rates of an estimate (default: 0.95)."] = 0.95
    method: Annotated[str | None, Option("Methods of estimation (default: all that apply).", "M1,M2,...")] = None
    threshold: Annotated[
        float | str,
        Option(
            "The threshold, or how to choose it (default: a-priori).",
            "a-priori|split|corrected|uncorrected|NUMBER",
            parse_threshold,
        ),
    ] = "a-priori"
    fault: Fault = 0.5
    convex: Convex = None

    def question(self) -> Question:
        from lastiterate.auditing.evidence.estimates import Question

        methods = None if self.method in (None, "all") else self.method.split(",")
        claims = self.claim_epsilon, self.claim_noise
        asked = self.delta, self.confidence, methods, self.threshold
        return Question(*asked, *claims, self.validity, self.convex, self.fault)


@dataclass(frozen=True)
class AuditOptions:
    """Options that ``audit`` and ``audit-lm`` share: noise, clipping norm, seed, store, output and stopping."""

    noise_multiplier: Annotated[
        PerStep | None, "Noise sigma (default: composition guarantees epsilon 8 at delta 1e-5)."
    ] = None
    clip_norm: ClipNorm = None
    seed: Seed = 0
    store: Annotated[
        Path | None,
        Option("File that keeps every score. An existing store is resumed (default: in runs/).", "FILE.sqlite"),
    ] = None
    output: Output = None
    strict: Strict = False
    until: Annotated[
        str | None,
        Option("With --anytime: stop on these conditions, separated by commas.", "refuted|minutes=N|epsilon=E"),
    ] = None
    dry_run: Annotated[bool, "Only print the number of models and the time that the audit needs."] = False
    details: Details = False
    name: Annotated[str | None, "What to call this audit in lists and reports. The scores do not depend on it."] = None
    owner: Annotated[str | None, "Who is responsible for the audit."] = None
    notes: Annotated[str | None, "Remarks for the reports."] = None

    @property
    def about(self) -> dict[str, str]:
        """The name, the owner and the notes, if given."""
        from lastiterate.auditing.run_audit import about_of

        return about_of(self.name or "", self.owner or "", self.notes or "")


def find_attack(name: str, others: str | None = None) -> object:
    """Return the attack with this name, or from a user's file. ``others`` is the kind of the other examples."""
    if name not in NAMED:
        from lastiterate.auditing.audit_target import users_attack

        if others is not None:
            raise OptionError(f"--others must not be given with an attack of your own, got {others!r}")
        return users_attack(name)
    named = NAMED[name]
    if others not in (None, "natural", named.others):
        also = f" or {named.others}" if named.others else ""
        raise OptionError(f"--others must be natural{also} with {name}, got {others!r}")
    return named.make(others)


@dataclass(frozen=True)
class EngineOptions:
    """Options for the engine that trains."""

    engine: Annotated[Literal["local", "ray"], "Where to train (default: local)."] = "local"
    address: Annotated[str | None, Option("Address of the Ray cluster.", "ADDRESS")] = None
    gpus: Annotated[float, "GPUs of each Ray task (default: 0)."] = 0.0

    def find(self) -> str | Engine:
        if self.engine == "local":
            if self.address is not None or self.gpus:
                raise OptionError("--address and --gpus belong to --engine ray")
            return "local"
        from lastiterate.auditing.engines.ray_engine import Ray

        return Ray(address=self.address, gpus=self.gpus)


def resumable(store: Path) -> AbstractContextManager[None]:
    """Return a context in which Ctrl-C and SIGTERM print how to resume and end the program at once."""
    return leaving_with(f"stopped; the scores so far are in {printable(str(store))}: the same command resumes")
