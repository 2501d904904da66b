"""What every privacy curve must satisfy, and runs of every kind to put it to.

`violations` compares a curve with itself (inverse functions, duality, scalars and vectors, order) and with brute force.
`test_contract` and `contract_search` use it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from scipy.special import ndtr

import lastiterate as li
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.distributions import DiscretePair
from lastiterate.privacy.mixtures.law import law_of
from tests.privacy.brute_force import Mixture, all_prefixes, discrete_delta, mixture_of, told_delta, two_step_delta
from tests.shuffling import epochs_of

ANALYSES = {
    analysis.__name__: analysis
    for analysis in (li.last_iterate, li.composition, li.full_batch, li.max_over_steps, li.no_amplification)
}
KINDS = (
    "constant",
    "rare",
    "schedule",
    "weights",
    "both signs",
    "optimizer",
    "decaying momentum",
    "shuffled",
    "fixed",
    "full",
    "long",
)
SURELY_REFUSED = (
    "is not valid with sampling",
    "noise_multiplier must be larger with many different weights of both signs",
)

DeltaOf = Callable[[float], tuple[float, float]]


class Draw(Protocol):
    """Where choices come from: hypothesis, or a random generator."""

    def number(self, low: float, high: float) -> float: ...
    def integer(self, low: int, high: int) -> int: ...
    def choice(self, items: Sequence[Any]) -> Any: ...


@dataclass(frozen=True)
class Random:
    """Choices of a generator."""

    generator: np.random.Generator

    def number(self, low: float, high: float) -> float:
        return float(self.generator.uniform(low, high))

    def integer(self, low: int, high: int) -> int:
        return int(self.generator.integers(low, high + 1))

    def choice(self, items: Sequence[Any]) -> Any:
        return items[int(self.generator.integers(len(items)))]


@dataclass(frozen=True)
class Question:
    """A curve, what it is asked, and by how much its values may be off."""

    curve: PrivacyCurve
    delta: float
    epsilon: float
    fpr: float
    truth: list[DeltaOf]  # the largest of these is delta(epsilon), or at most that
    most: list[DeltaOf] | None = None  # and of these it is at most; None where the truth is all of it
    tolerance: float = 1e-9  # of log delta
    tolerance_of_fnr: float = 1e-9
    exact: bool = True  # whether delta is more than a bound where the bracket is narrow
    evaluations: int = 24  # in search of the largest advantage; none to skip it


def draw_run(draw: Draw, kind: str, longest: int = 8) -> li.DPSGD:
    """A run of one kind, small enough for brute force."""
    steps = draw.integer(1, longest)
    rate, sigma = 10.0 ** draw.number(-3.0, -0.03), 10.0 ** draw.number(-2.0, 1.3)
    match kind:
        case "constant":
            return li.DPSGD(draw.choice([steps, draw.integer(1, 400)]), rate, sigma)
        case "rare":
            steps = draw.integer(1, 100)
            return li.DPSGD(steps, 10.0 ** draw.number(-9.0, -3.0), 10.0 ** draw.number(-2.0, 0.0))
        case "long":
            return li.DPSGD(int(10.0 ** draw.number(2.6, 7.0)), 10.0 ** draw.number(-5, -0.3), max(sigma, 0.3))
        case "schedule":
            rates = [10.0 ** draw.number(-3.0, 0.0) for _ in range(steps)]
            sigmas = [sigma * 10.0 ** draw.number(0.0, 0.7) for _ in range(steps)]
            return li.DPSGD(steps, draw.choice([rates, rate]), draw.choice([sigmas, sigma]))
        case "weights":
            weights = [1.0] + [draw.choice([0.0, 1.0, draw.number(0.01, 1.0)]) for _ in range(steps - 1)]
            return li.DPSGD(steps, rate, sigma, weights=draw.choice([1.0, -1.0]) * np.array(weights))
        case "both signs":
            weights = [1.0] + [draw.choice([-1.0, 1.0]) * draw.number(0.01, 1.0) for _ in range(steps - 1)]
            rates = [draw.choice([1.0, draw.number(0.01, 0.99)]) for _ in range(steps)]
            return li.DPSGD(steps, draw.choice([rate, rate, rates]), sigma, weights=weights)
        case "optimizer":
            momentum, dampening = draw.choice([0.0, draw.number(0.1, 0.95)]), draw.choice([0.0, 0.0, 0.3])
            learning_rates = [draw.number(0.1, 1.0) for _ in range(steps)]
            optimizer = li.SGD(
                draw.choice([0.5, learning_rates]),
                momentum=momentum,
                dampening=dampening,
                nesterov=momentum > 0.0 and dampening == 0.0 and draw.choice([True, False]),
                weight_decay=draw.choice([0.0, draw.number(0.0, 0.9)]),
                decoupled=draw.choice([True, False]),
                averaging=draw.choice([None, "uniform", draw.number(0.1, 0.9)]),
            )
            return li.DPSGD(steps, rate, sigma, optimizer=optimizer)
        case "decaying momentum":
            optimizer = li.SGD(
                draw.number(0.1, 2.0), momentum=draw.number(0.5, 0.99), weight_decay=draw.number(0.1, 2.0)
            )
            return li.DPSGD(steps, rate, sigma, optimizer=optimizer)
        case "shuffled":
            steps = min(steps, 6)
            weights = [1.0] + [draw.number(-0.5, 1.0) for _ in range(steps - 1)]
            rate = draw.choice([0.5, 1.0 / 3.0, 0.4])
            return li.DPSGD(
                steps,
                rate,
                sigma,
                sampling="shuffled",
                weights=draw.choice([1.0, weights]),
                **epochs_of("shuffled", rate),
            )
        case "fixed":
            return li.DPSGD(steps, rate, sigma, sampling="fixed")
        case "full":
            return li.DPSGD(steps, 1.0, sigma, sampling="full")
    raise ValueError(kind)


def draw_question(draw: Draw, kind: str, analysis: str, longest: int = 8) -> tuple[li.DPSGD, Question] | None:
    """A run and what to ask an analysis of it; None where the analysis does not apply."""
    run = draw_run(draw, kind, min(longest, 6) if analysis == "max_over_steps" else longest)
    if analysis == "composition":
        if run.sampling not in ("poisson", "full"):
            return None
        if run.steps > 2 and draw.choice([True, False]):
            run = run.prefix(2)  # as many as brute force takes
    if analysis == "max_over_steps":
        run = run.prefix(min(run.steps, 40 if kind == "long" else 12))
    curve = ANALYSES[analysis](run)
    delta = _draw_delta(draw, float(np.max(run.sample_rate)))
    evaluations = draw.choice([24, 0, 0])
    truth, most = truth_of(run, analysis) if run.steps <= 3000 else ([], None)
    question = Question(curve, delta, 1.0, 10.0 ** draw.number(-6.0, -0.05), truth, most, evaluations=evaluations)
    if analysis == "composition":  # delta and error rates are bounds where the contour does not converge
        question = replace(question, tolerance=3e-5, tolerance_of_fnr=2e-4, exact=False, evaluations=0)
    return run, question


def _draw_delta(draw: Draw, rate: float) -> float:
    """Mostly any; now and then the rate, or next to it, where with little noise delta(epsilon) is flat."""
    beside = rate * (1.0 - draw.choice([0.0, 1e-12, 1e-9, 1e-3, 1.0]) * draw.choice([-1.0, 1.0]))
    return draw.choice([10.0 ** draw.number(-15.0, -0.31)] * 4 + [min(max(beside, 1e-15), 0.5)])


def truth_of(run: li.DPSGD, analysis: str) -> tuple[list[DeltaOf], list[DeltaOf] | None]:
    """Delta by brute force; where there is no way, what it lies between."""
    match analysis:
        case "last_iterate":
            return [mixture_of(run).delta], None
        case "max_over_steps":
            return [mixture.delta for mixture in all_prefixes(run)], None
        case "no_amplification":
            return [partial(told_delta, run)], None
        case "full_batch":
            law = law_of(run)
            return [Mixture(np.array([law.mean]), np.zeros(1), law.noise).delta], None
    rates, sigmas = (np.broadcast_to(v, (run.steps,)).tolist() for v in (run.sample_rate, run.noise_multiplier))
    if run.steps == 2 and min(sigmas) > 0.3:  # the sums are no finer
        return [partial(two_step_delta, rates, sigmas)], None
    plain = np.ptp(rates) == 0.0 or run.steps <= 10
    last = [mixture_of(run.replace(weights=None, optimizer=None)).delta] if plain else []
    return last, None if run.steps == 1 else [partial(told_delta, run)]


def draw_discrete(draw: Draw) -> tuple[str, Question]:
    """Two distributions on a few points, not all of which need occur."""
    size = draw.integer(2, 12)

    def masses() -> np.ndarray:
        raw = np.array([draw.choice([0.0, 1.0, 1.0]) * 10.0 ** draw.number(-9.0, 0.0) for _ in range(size)])
        raw[draw.integer(0, size - 1)] = 1.0
        return raw / raw.sum()

    p, q = masses(), masses()
    with np.errstate(divide="ignore"):
        curve = PrivacyCurve(DiscretePair(np.log(p), np.log(q)), "discrete", is_guarantee=False)
    delta, fpr = 10.0 ** draw.number(-15.0, -0.31), draw.number(0.01, 0.9)
    # Between points the error rates have corners, which golden sections approach more slowly than a rounded top.
    question = Question(curve, delta, 1.0, fpr, [lambda e: discrete_delta(p, q, e)], evaluations=60)
    return f"p = {p.tolist()}, q = {q.tolist()}", question


def violations(question: Question) -> Iterator[str]:
    """Everything about a curve that is not as it must be, a sentence each."""
    curve, delta, off = question.curve, question.delta, question.tolerance
    epsilon, (lower, upper) = curve.epsilon(delta), curve.bracket(delta)
    if not lower * (1.0 - 1e-12) <= epsilon <= upper * (1.0 + 1e-12):
        yield f"bracket({delta!r}) = {(lower, upper)!r} does not hold epsilon = {epsilon!r}"
    yield from _inverse(question, epsilon, lower, upper)
    yield from _against_brute_force(question, lower, upper)
    epsilons = np.array([0.0, 0.3 * epsilon, 0.9 * epsilon, epsilon, 1.1 * epsilon + 0.1])
    epsilons = epsilons[np.isfinite(epsilons)]
    yield from _scalars_and_vectors("delta", curve.delta, epsilons, off)
    deltas = np.array([min(3.0 * delta, 0.9), delta, 1e-3 * delta])
    yield from _scalars_and_vectors("epsilon", curve.epsilon, deltas, off)
    yield from _scalars_and_vectors("bracket", lambda d: curve.bracket(d)[1], deltas, off)
    yield from _duality(question, epsilons)


def _inverse(question: Question, epsilon: float, lower: float, upper: float) -> Iterator[str]:
    curve, delta, off = question.curve, question.delta, question.tolerance
    slack = off + 3e-15 * abs(math.log(delta))
    if np.isfinite(upper) and curve.delta(upper) > delta * (1.0 + slack):
        yield f"delta({upper!r}) = {curve.delta(upper)!r} at the bracket's upper end exceeds {delta!r}"
    if 0.0 < lower < math.inf and curve.delta(lower) < delta * (1.0 - slack):
        yield f"delta({lower!r}) = {curve.delta(lower)!r} at the bracket's lower end is below {delta!r}"
    back = curve.delta(0.7 * epsilon) if np.isfinite(epsilon) else 0.0
    if 1e-300 < back < 0.999:
        low, high = curve.bracket(back * (1.0 + slack))[0], curve.bracket(back * (1.0 - slack))[1]
        room = max(off, 1e-9) * max(1.0, epsilon)
        if not (low - room <= 0.7 * epsilon <= high + room):
            yield f"bracket(delta({0.7 * epsilon!r})) = {(low, high)!r} does not hold that epsilon"


def _against_brute_force(question: Question, lower: float, upper: float) -> Iterator[str]:
    curve, delta, off = question.curve, question.delta, question.tolerance
    least, most = question.truth, question.truth if question.most is None else question.most
    if least and np.isfinite(upper):
        value, error = _largest(least, upper)
        if value - error > delta * (1.0 + 1e-9):
            yield f"the bracket's upper end {upper!r} is too low: there delta is {value!r}, not {delta!r}"
    if most and 0.0 < lower < math.inf:
        value, error = _largest(most, lower)
        if value + error < delta * (1.0 - 1e-9):
            yield f"the bracket's lower end {lower!r} is too high: there delta is {value!r}, not {delta!r}"
    narrow = upper - lower < 1e-6 * max(1.0, upper)
    for epsilon in (0.0, question.epsilon, 0.5 * (lower + upper)):
        if not np.isfinite(epsilon):
            continue
        computed = curve.delta(epsilon)
        value, error = _largest(least, epsilon) if least else (0.0, 0.0)
        if computed < value * (1.0 - off) - error - 1e-300:
            yield f"delta({epsilon!r}) = {computed!r} is too low: brute force gives {value!r}"
        value, error = _largest(most, epsilon) if most and narrow else (1.0, 0.0)
        if question.exact and computed > value * (1.0 + 1e-7) + error + 1e-14:
            yield f"delta({epsilon!r}) = {computed!r} is too high: brute force gives {value!r}"


def _largest(deltas: list[DeltaOf], epsilon: float) -> tuple[float, float]:
    values = [of(epsilon) for of in deltas]
    return max(value for value, _ in values), max(error for _, error in values)


def _scalars_and_vectors(name: str, function: Callable[[Any], Any], values: np.ndarray, off: float) -> Iterator[str]:
    """The same one by one and together, and in order (all of them fall along the values, or rise)."""
    together, one_by_one = np.asarray(function(values)), np.array([function(float(value)) for value in values])
    room = off * np.maximum(one_by_one, 1e-300 if name == "delta" else 1.0)
    with np.errstate(invalid="ignore"):
        same = (together == one_by_one) | (np.abs(together - one_by_one) <= room)
    if not np.all(same):
        yield f"{name}({values.tolist()!r}) is {together.tolist()!r} together and {one_by_one.tolist()!r} one by one"
    falls = one_by_one if name == "delta" else one_by_one[::-1]
    if np.any(falls[1:] > falls[:-1] + room.max(where=np.isfinite(room), initial=0.0)):
        yield f"{name}({values.tolist()!r}) = {one_by_one.tolist()!r} is not monotone"


def _duality(question: Question, epsilons: np.ndarray) -> Iterator[str]:
    """A test with these error rates is an attack on delta; and the best such attack attains it at epsilon = 0."""
    curve, fpr = question.curve, question.fpr
    rates = np.array([fpr, 0.5 * (1.0 + fpr)])
    missed = np.asarray(curve.fnr(rates))
    room = question.tolerance_of_fnr
    if np.any(np.abs(missed - [curve.fnr(float(rate)) for rate in rates]) > room):
        yield f"fnr({rates.tolist()!r}) is not the same one by one"
    if missed[1] > missed[0] + room or np.any(missed > 1.0 - rates + room):
        yield f"fnr({rates.tolist()!r}) = {missed.tolist()!r} is not a trade-off function"
    for epsilon, delta in zip(epsilons, np.asarray(curve.delta(epsilons)), strict=True):
        with np.errstate(over="ignore", invalid="ignore"):
            factor = np.exp(epsilon)
            attacks = np.append(1.0 - missed - factor * rates, 1.0 - rates - factor * missed)
        reached = np.max(attacks[np.isfinite(attacks) & (factor < 1e12)], initial=0.0)  # a rate of 0 is one below 1e-16
        if reached > delta + room + 1e-15 * factor:
            attack = f"fnr({rates.tolist()!r}) = {missed.tolist()!r}"
            yield f"{attack} shows delta({epsilon!r}) >= {reached!r}, not {delta!r}"
    advantage = curve.advantage()
    if advantage != curve.delta(0.0):
        yield f"advantage() = {advantage!r} is not delta(0) = {curve.delta(0.0)!r}"
    best = _best_advantage(curve, question.evaluations) if question.evaluations else advantage
    if not abs(best - advantage) <= 1e-6:
        yield f"advantage() = {advantage!r}, but the error rates give {best!r}"


def _best_advantage(curve: PrivacyCurve, evaluations: int) -> float:
    """The largest 1 - fpr - fnr, which is concave in fpr; sought along the normal quantile."""
    low, high = -8.5, 8.5
    golden = 0.5 * (math.sqrt(5.0) - 1.0)

    def gain(x: float) -> float:
        fpr = float(ndtr(x))
        return 1.0 - fpr - curve.fnr(fpr)

    a, b = high - golden * (high - low), low + golden * (high - low)
    at_a, at_b = gain(a), gain(b)
    for _ in range(evaluations):
        if at_a >= at_b:
            high, b, at_b = b, a, at_a
            a = high - golden * (high - low)
            at_a = gain(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + golden * (high - low)
            at_b = gain(b)
    return max(at_a, at_b, 0.0)
