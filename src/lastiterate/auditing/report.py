"""From stored scores to a result: predictions, estimates and verdict are computed anew, and nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy.stats import norm

from lastiterate.answers import Answer, ask_all
from lastiterate.attacks.attack import Expected, Words
from lastiterate.attacks.likelihood import DRAWS, sample_likelihood_ratios, telling_threshold
from lastiterate.auditing.describe import read_run
from lastiterate.auditing.estimate import Estimate, estimate
from lastiterate.auditing.result import AuditResult
from lastiterate.auditing.score_law import score_density
from lastiterate.auditing.signal import expected_signal, failure_of, signal_of
from lastiterate.auditing.store import Store
from lastiterate.auditing.threshold import Worlds, check_threshold, predicted_threshold, threshold_of_draws
from lastiterate.auditing.verdict import Claim, check_claims, claim_of, deciding, judge, remark_on, sharing_the_error
from lastiterate.run import DPSGD
from lastiterate.values import Array, number
from lastiterate.vocabulary import METHODS, ONE_RUN_METHODS, PAIRED_METHODS
from lastiterate.wording import spell

ALL_ITERATES_METHODS = ("clopper-pearson", "composition")


@dataclass(frozen=True)
class Question:
    """What is asked of the scores. ``methods`` None: all that apply; ``threshold`` as in ``estimate``."""

    delta: float = 1e-5
    confidence: float = 0.95
    methods: Sequence[str] | None = None
    threshold: float | str = "a-priori"
    claim_epsilon: float | None = None
    claim_noise: float | None = None

    @property
    def has_claim(self) -> bool:
        """Whether a claim other than the run's own is to be judged."""
        return self.claim_epsilon is not None or self.claim_noise is not None

    def claim(self, run: DPSGD) -> Claim:
        """What is to be judged."""
        return claim_of(run, self.delta, self.claim_epsilon, self.claim_noise)

    def remark(self, run: DPSGD) -> str | None:
        """That a claim is below what the run itself guarantees or predicts."""
        return remark_on(self.claim(run), _predictions(run, self.delta)) if self.has_claim else None

    def __post_init__(self) -> None:
        check_claims(self.claim_epsilon, self.claim_noise)
        number("delta", self.delta, 0.0, 1.0, open_low=True, open_high=True)
        number("confidence", self.confidence, 0.0, 1.0, open_low=True, open_high=True)
        if sharing_the_error(self.confidence) == 1.0:
            raise ValueError(
                f"confidence must leave an error that can be shared, 1e-15 at least, got {self.confidence!r}"
            )
        check_threshold(self.threshold)
        if isinstance(self.methods, str) or self.methods == []:
            raise ValueError(f"methods must be a list of at least one method, or None for all, got {self.methods!r}")
        for method in self.methods or ():  # whether it applies shows when the attack is known
            if method not in METHODS:
                raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")


def check_question(question: Question, run: DPSGD, expected: Expected | None = None, *, one_run: bool) -> None:
    """Refuse what could not be answered for such an audit, before anything is trained.

    ``expected`` None: the attack has not said yet what scores are to be expected.
    """
    _methods(run, expected or Expected("none"), one_run, question.methods)
    if expected is None:
        claim_of(run, question.delta, question.claim_epsilon, question.claim_noise)


@lru_cache(maxsize=8)  # they are asked for before training, and after
def _predictions(run: DPSGD, delta: float) -> dict[str, Answer]:
    return ask_all(run, lambda curve: curve.epsilon(delta))


def report(store: Store, question: Question = Question()) -> AuditResult:  # noqa: B008 - it is frozen
    """What the trials in a store say."""
    specification, facts = store.specification, store.facts
    if facts is None:
        raise ValueError(
            f"the store {str(store.path)!r} has no trial yet: its audit was stopped before the first model"
        )
    run, expected, words = read_run(specification["run"]), Expected(**facts["expected"]), Words(**facts["words"])
    trials = store.scores()
    scores_in, scores_out = trials.scores[trials.present], trials.scores[~trials.present]
    if not len(scores_in) or not len(scores_out):
        raise ValueError(f"the store {str(store.path)!r} has no trial in one of the worlds yet: finish its audit first")
    methods = _methods(run, expected, bool(facts["one_run"]), question.methods)
    kind = "one-run" if facts["one_run"] else expected.kind
    estimates = Estimates(run, expected, scores_in, scores_out, question)
    found = {method: estimates(method, question.confidence) for method in methods}
    predictions = dict(_predictions(run, question.delta))
    claim = question.claim(run)
    verdict, reason = verdict_on(claim, kind, estimates)
    done, planned = len(trials.scores), specification["models"] * (1 if facts["one_run"] else 2)
    remark = question.remark(run)
    caveats = [] if remark is None else [remark]
    if done < planned:
        caveats.append(
            f"Only {done} of {planned} trials are done: who stops when it looks good has no confidence left."
        )
    heuristic = None if kind == "likelihood-ratio" else predictions["last_iterate"].value
    caveats += _limits(found, heuristic)
    is_text = "perplexity_before" in facts
    before, after = facts.get("perplexity_before"), _perplexity(trials.accuracies) if is_text else None
    if before is not None and after is not None and after > before:
        caveats.append(
            f"The models are worse on held-out text than before training (perplexity {spell(after)}, {spell(before)} "
            "before): more texts, a smaller learning rate or less noise would make them useful."
        )
    return AuditResult(
        run=run,
        attack=words.attack,
        data=specification["data"],
        caveats=(*words.caveats, *caveats),
        delta=question.delta,
        confidence=question.confidence,
        predictions=predictions,
        estimates=found,
        scores_in=scores_in,
        scores_out=scores_out,
        score_unit=words.unit,
        score_density=_density(run, expected, scores_in, scores_out),
        signal=signal_of(scores_in, scores_out),
        ideal_signal=expected_signal(run) if expected.kind == "linear" else None,
        accuracy=None if is_text else _mean(trials.accuracies),
        models=specification["models"],
        store=store.path,
        seconds=store.seconds,
        verdict=verdict,
        reason=reason,
        perplexity=after,
        perplexity_before=before,
    )


class Estimates:
    """Bounds from one set of scores, by method and confidence, each at the threshold that was asked for."""

    def __init__(self, run: DPSGD, expected: Expected, scores_in: Array, scores_out: Array, question: Question) -> None:
        self.question = question
        self._run, self._expected = run, expected
        self._scores = scores_in, scores_out
        self._known: dict[tuple[str, float], Estimate] = {}

    def deciding(self) -> Estimates:
        """The same at the threshold that decides about a claim."""
        threshold = deciding(self.question.threshold)
        if threshold == self.question.threshold:
            return self
        return Estimates(self._run, self._expected, *self._scores, replace(self.question, threshold=threshold))

    def failure(self) -> str | None:
        """Why the attack, not the training, gave scores that tell nothing; None: it did its work."""
        signal = None
        if self._expected.kind == "linear":
            signal = expected_signal(self._run, self._expected.signal, self._expected.spread)
        elif self._expected.kind == "likelihood-ratio":
            drawn = _likelihood_ratios(self._run)
            signal = signal_of(drawn.inside, drawn.outside)
        return failure_of(*self._scores, signal)

    def __call__(self, method: str, confidence: float) -> Estimate:
        if (method, confidence) not in self._known:
            threshold = self._threshold(method, confidence)
            found = estimate(*self._scores, self.question.delta, confidence, method, threshold, self._run)
            self._known[method, confidence] = found
        return self._known[method, confidence]

    def _threshold(self, method: str, confidence: float) -> float | str:
        asked = self.question.threshold
        if asked != "a-priori":
            return asked
        if method in ONE_RUN_METHODS:
            return asked
        expected, sizes = self._expected, tuple(map(len, self._scores))
        if expected.kind == "none":
            return "split"
        if expected.kind == "linear" and method == "composition":  # nearly the same, and far quicker to find
            method = "last-iterate"
        return _a_priori(self._run, expected, sizes, self.question.delta, confidence, method)


def verdict_on(claim: Claim, kind: str, estimates: Estimates) -> tuple[str, str]:
    """The verdict on a claim, and its reason; ``kind`` as in ``judge``."""
    bound = estimates.deciding()
    question = bound.question
    return judge(claim, kind, bound, question.confidence, question.threshold, bound.failure())


@lru_cache(maxsize=256)
def _a_priori(
    run: DPSGD, expected: Expected, sizes: tuple[int, int], delta: float, confidence: float, method: str
) -> float:
    if expected.kind == "linear":
        return predicted_threshold(
            run, *sizes, delta, confidence, method, spread=expected.spread, signal=expected.signal
        )
    if method == "composition":
        return telling_threshold(run)
    return threshold_of_draws(_likelihood_ratios(run), run, *sizes, delta, confidence, method)


@lru_cache(maxsize=8)
def _likelihood_ratios(run: DPSGD) -> Worlds:
    """Likelihood ratios over all steps, drawn as they would be if nothing but canary and noise moved the model."""
    drawn = sample_likelihood_ratios(run, np.arange(2 * DRAWS) % 2 == 0, np.random.default_rng(0))
    return Worlds(np.sort(drawn[::2]), np.sort(drawn[1::2]))


def _methods(run: DPSGD, expected: Expected, one_run: bool, asked: Sequence[str] | None) -> list[str]:
    """The methods that apply to the attack, or those that were asked for."""
    apply: tuple[str, ...] = PAIRED_METHODS
    if one_run:
        apply = ONE_RUN_METHODS
    elif expected.kind == "likelihood-ratio":
        apply = ALL_ITERATES_METHODS
    if not run.amplifies:
        apply = tuple(method for method in apply if method != "composition")
    if asked is None:
        return list(apply)
    for method in asked:
        if method not in apply:
            raise ValueError(f"method must be one of {', '.join(apply)} for this audit, got {method!r}")
    return list(asked)


def _limits(found: dict[str, Estimate], predicted: float | None) -> list[str]:
    """What these estimates cannot say, however they came out."""
    sentences = []
    for method, each in found.items():
        most = each.largest if METHODS[method].is_assumption_free else None
        if most is not None and predicted is not None and most < predicted:
            sentences.append(
                f"{each.models_in:,} and {each.models_out:,} scores show at most epsilon {spell(most)} without "
                f"assumptions, which is below the heuristic's {spell(predicted)}: they could not have refuted it so."
            )
        if each.threshold_choice == "split":
            sentences.append("Half of the models chose the threshold, and only the other half is counted.")
        if each.threshold_choice == "uncorrected":
            sentences.append(
                f"{METHODS[method].label}: the threshold is the best of all, uncorrected for that choice: not a valid "
                "bound."
            )
        sentences += each.caveats
    return list(dict.fromkeys(sentences))


def _density(run: DPSGD, expected: Expected, scores_in: Array, scores_out: Array) -> Array | None:
    """The densities that the linear analysis predicts, over the range of the scores."""
    finite = np.concatenate([scores_in, scores_out])
    finite = finite[np.isfinite(finite)]
    if expected.kind != "linear" or not finite.size:
        return None
    low, high = min(finite.min(), -3.5 * expected.spread), max(finite.max(), 3.5 * expected.spread)
    at = np.linspace(low, high, 160)
    without = norm.pdf(at, scale=expected.spread)
    return np.stack([at, without, score_density(run, at, spread=expected.spread, signal=expected.signal)], axis=1)


def _mean(values: Array) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None


def _perplexity(chances: Array) -> float | None:
    """Of all models together, from the geometric mean of 1 / perplexity: one that is useless does not hide the rest."""
    known = chances[chances > 0.0]
    return float(np.exp(-np.log(known).mean())) if known.size else None


def read(path: str | Path, question: Question = Question()) -> AuditResult:  # noqa: B008 - it is frozen
    """The result of the audit in a store, which may still be running."""
    with Store.read(path) as store:
        return report(store, question)
