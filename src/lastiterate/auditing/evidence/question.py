"""What is asked of an audit's scores, checked before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from lastiterate.answers import Answer, ask_all
from lastiterate.auditing.evidence.claims import (
    Claim,
    check_claims,
    check_fault,
    claim_of,
    remark_on,
    sharing_the_error,
)
from lastiterate.auditing.evidence.kinds import Kind
from lastiterate.auditing.evidence.threshold import check_threshold, check_validity
from lastiterate.contraction import Contraction
from lastiterate.privacy.analyses.convex import convex
from lastiterate.run import DPSGD
from lastiterate.values import number, one_of, told
from lastiterate.vocabulary import COMPOSITION, CONVEX, METHODS, ONE_RUN_METHODS, PAIRED_METHODS

METHODS_OF = {
    Kind.LAST_ITERATE: PAIRED_METHODS,
    Kind.ALL_ITERATES: ("clopper-pearson", "composition"),
    Kind.ONE_MODEL: ONE_RUN_METHODS,
}


@dataclass(frozen=True)
class Question:
    """What is asked of the scores. ``methods`` None: all that apply; ``threshold``, ``validity`` as in ``estimate``.

    With a ``contraction`` there is also what ``lastiterate.convex`` guarantees for the last iterate. ``fault`` is the
    noise of the training that an audit must be able to refute, as a share of the declared noise.
    """

    delta: float = 1e-5
    confidence: float = 0.95
    methods: Sequence[str] | None = None
    threshold: float | str = "a-priori"
    claim_epsilon: float | None = None
    claim_noise: float | None = None
    validity: str = "fixed"
    contraction: float | Contraction | None = None
    fault: float = 0.5

    @property
    def has_claim(self) -> bool:
        """Whether a claim other than the run's own is to be judged."""
        return self.claim_epsilon is not None or self.claim_noise is not None

    def claim(self, run: DPSGD) -> Claim:
        """What is to be judged."""
        return claim_of(run, self.delta, self.claim_epsilon, self.claim_noise)

    def remark(self, run: DPSGD) -> str | None:
        """That a claim is below what the run itself guarantees or predicts."""
        return remark_on(self.claim(run), predictions_of(run, self.delta, self.contraction)) if self.has_claim else None

    def __post_init__(self) -> None:
        check_claims(self.claim_epsilon, self.claim_noise)
        for name in ("delta", "confidence"):  # plain numbers, as they are looked up by value
            plain = number(name, getattr(self, name), 0.0, 1.0, open_low=True, open_high=True)
            object.__setattr__(self, name, plain)
        object.__setattr__(self, "fault", check_fault(self.fault))
        if sharing_the_error(self.confidence) == 1.0:
            raise ValueError(
                f"confidence must leave an error that can be shared, 1e-15 at least, got {self.confidence!r}"
            )
        check_validity(self.validity, check_threshold(self.threshold))
        if self.methods is None:
            return
        if not isinstance(self.methods, (list, tuple)) or not self.methods:
            given = "an empty one" if isinstance(self.methods, (list, tuple)) else told(self.methods)
            raise ValueError(f"methods must be a list of at least one method, or None for all, got {given}")
        for method in self.methods:  # whether it applies shows when the attack is known
            one_of("method", method, METHODS)

    def check(self, run: DPSGD, kind: Kind) -> None:
        """Refuse what could not be answered for such an audit."""
        self.methods_for(run, kind)
        self.check_validity(kind)
        self.check_contraction(run, kind)
        self.claim(run)

    def check_contraction(self, run: DPSGD, kind: Kind) -> None:
        """Refuse a guarantee that does not hold for the run, or for what the attack sees."""
        if self.contraction is None:
            return
        if kind is Kind.ALL_ITERATES:
            raise ValueError("contraction must be None where an attack sees all iterates: it is for the last one")
        convex(run, contraction=self.contraction)

    def check_validity(self, kind: Kind) -> None:
        """Refuse to look at any time where there is one training, and so one look."""
        if kind is Kind.ONE_MODEL and self.validity == "anytime":
            raise ValueError("validity must be 'fixed' for canaries of one training, got 'anytime': it is one look")

    def methods_for(self, run: DPSGD, kind: Kind) -> list[str]:
        """The methods that apply to such scores, or those that were asked for."""
        apply = METHODS_OF[kind]
        if not run.amplifies:
            apply = tuple(method for method in apply if METHODS[method].family is not COMPOSITION)
        if self.methods is None:
            return list(apply)
        for method in self.methods:
            if method not in apply:
                raise ValueError(f"method must be one of {', '.join(apply)} for this audit, got {method!r}")
        return list(self.methods)


@lru_cache(maxsize=8)  # they are asked for before training, and after
def predictions_of(run: DPSGD, delta: float, contraction: float | Contraction | None = None) -> dict[str, Answer]:
    """What each analysis says of the run; with a contraction, the convex guarantee too."""
    curves = {} if contraction is None else {CONVEX.name: partial(convex, contraction=contraction)}
    return ask_all(run, lambda curve: curve.epsilon(delta), curves=curves)
