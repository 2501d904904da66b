"""Options of commands that audit or train: attack, question, claim, store and engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lastiterate.attacks import NAMED
from lastiterate.cli import option_values as values
from lastiterate.cli.exit_status import OptionError
from lastiterate.cli.options import Convex, PerStepOption, choice, flag, integer_option, number_option, option
from lastiterate.cli.signals import leaving_with
from lastiterate.formatting import printable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from lastiterate.auditing.engines.engine import Engine
    from lastiterate.auditing.evidence.estimates import Question

Others = Annotated[
    str | None,
    choice(
        "--others",
        ("natural", "blank", "zero"),
        "What the other examples are: blank images (input space), zero gradients (all-iterates).",
    ),
]
AttackName = Annotated[
    str | None,
    option(
        "--attack",
        values.attack,
        "NAME|FILE.py:CLASS",
        f"How to attack: {', '.join(NAMED)} (default: quiet), or your own, from a file.",
    ),
]
UsualDelta = Annotated[float, number_option("--delta", "Delta of (epsilon, delta)-DP (default: 1e-5).")]
Anytime = Annotated[
    bool, flag("--anytime", "Bounds that hold at every moment: look, stop and go on with more models as you like.")
]
ClaimEpsilon = Annotated[float | None, number_option("--claim-epsilon", "Judge the claim of this epsilon.")]
ClaimNoise = Annotated[float | None, number_option("--claim-noise", "Judge the claim of this noise multiplier.")]
Fault = Annotated[
    float,
    number_option("--fault", "Share of the declared noise that must be caught with 80%, or inconclusive (0.5)."),
]


@dataclass(frozen=True)
class QuestionOptions:
    """Options for the estimation of epsilon from scores, and for the claim to judge."""

    delta: UsualDelta = 1e-5
    confidence: Annotated[
        float, number_option("--confidence", "Of an empirical epsilon, both error rates (default: 0.95).")
    ] = 0.95
    method: Annotated[
        str | None,
        option("--method", None, "M1,M2,...", "How to get from scores to epsilon (default: all that apply)."),
    ] = None
    threshold: Annotated[
        float | str,
        option(
            "--threshold",
            values.threshold,
            "a-priori|split|corrected|uncorrected|NUMBER",
            "How to choose it (a-priori).",
        ),
    ] = "a-priori"
    claim_epsilon: ClaimEpsilon = None
    claim_noise: ClaimNoise = None
    fault: Fault = 0.5
    anytime: Anytime = False
    convex: Convex = None

    def question(self) -> Question:
        """Return the question that the options describe."""
        from lastiterate.auditing.evidence.estimates import Question

        methods = None if self.method in (None, "all") else self.method.split(",")
        claims = self.claim_epsilon, self.claim_noise
        asked = self.delta, self.confidence, methods, self.threshold
        return Question(*asked, *claims, self.validity, self.convex, self.fault)

    @property
    def validity(self) -> str:
        """The validity of the bounds: "fixed" number of models, or "anytime"."""
        return "anytime" if self.anytime else "fixed"


Strict = Annotated[
    bool, flag("--strict", "Exit with 1 above the heuristic, too, and with 4 if inconclusive without a claim.")
]
Output = Annotated[
    Path | None,
    option("--output", None, "FOLDER", "Folder for the page and the pictures (default: the store's)."),
]


@dataclass(frozen=True)
class AuditOptions:
    """Options that ``audit`` and ``audit-lm`` share: noise, clipping norm, seed, store, output and stopping."""

    noise_multiplier: Annotated[
        PerStepOption | None,
        option(
            "--noise-multiplier", values.per_step, "NUMBER", "Noise sigma (default: for composition 8 at delta 1e-5)."
        ),
    ] = None
    clip_norm: Annotated[float | None, number_option("--clip-norm", "Clipping norm (default: 1).")] = None
    seed: Annotated[int, integer_option("--seed", "Of all randomness (default: 0).")] = 0
    store: Annotated[
        Path | None,
        option("--store", None, "FILE.sqlite", "Keeps every score; resumed if it exists (default: in runs/)."),
    ] = None
    output: Output = None
    strict: Strict = False
    until: Annotated[
        str | None,
        option("--until", None, "refuted|minutes=N|epsilon=E", "Stop at that, with --anytime; several with commas."),
    ] = None
    dry_run: Annotated[bool, flag("--dry-run", "Say what would be trained, and how long it would take.")] = False


def find_attack(name: str, others: str | None = None) -> object:
    """Return the attack of this name with these other examples, or the attack from a user's file."""
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


# Training: options for the engine, and resuming after a stop.


@dataclass(frozen=True)
class EngineOptions:
    """Options for the engine that trains."""

    engine: Annotated[str, choice("--engine", ("local", "ray"), "Where to train (default: local).")] = "local"
    address: Annotated[str | None, option("--address", None, "ADDRESS", "Of the Ray cluster.")] = None
    gpus: Annotated[float, number_option("--gpus", "GPUs of each Ray task (default: 0).")] = 0.0

    def find(self) -> str | Engine:
        """Return the engine that the options name."""
        if self.engine == "local":
            if self.address is not None or self.gpus:
                raise OptionError("--address and --gpus belong to --engine ray")
            return "local"
        from lastiterate.auditing.engines.ray_engine import Ray

        return Ray(address=self.address, gpus=self.gpus)


def resumable(store: Path) -> AbstractContextManager[None]:
    """Return a context in which Ctrl-C and SIGTERM print how to resume and end the program at once."""
    return leaving_with(f"stopped; what was trained is in {printable(str(store))}: the same command resumes")
