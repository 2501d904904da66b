"""The guarantee for the last iterate of convex training."""

import math

import numpy as np
import pytest

import lastiterate as li
from lastiterate.privacy.convex import shifted_loss as shifted_cumulant
from lastiterate.privacy.convex.distances import geometric_sum
from tests.privacy.brute_force import mixture_of
from tests.privacy.contract import Question, violations
from tests.tools.convex_search import TOLERANCE, Setting, draw_setting, largest_ratio

RUN = li.DPSGD(10_000, 0.01, 1.0)


def split(steps: int, rate: float, sigma: float, contraction: float, length: int, share: float) -> float:
    """The bound that splits the noise: a Gaussian mechanism and the last steps, as composition evaluates them."""
    first, second = sigma * math.sqrt(share), sigma * math.sqrt(1.0 - share)
    distance = geometric_sum(contraction, steps - length)
    mu = contraction**length * distance / (first * math.sqrt(geometric_sum(contraction**2, length)))
    run = li.DPSGD(length + 1, [1.0] + [rate] * length, [1.0 / mu] + [second] * length)
    return li.composition(run).epsilon(1e-5)


def test_the_split_bound_of_the_literature_is_reproduced_and_is_never_sharper() -> None:
    assert min(split(10_000, 0.01, 1.0, 0.99, 704, share) for share in (0.02, 0.03, 0.04)) == pytest.approx(
        1.615, abs=0.01
    )
    assert li.convex(RUN, contraction=0.99).epsilon(1e-5) < 1.22


@pytest.mark.parametrize(("contraction", "most", "heuristic"), [(0.99, 0.94, 0.569), (0.999, 2.55, 1.843)])
def test_long_training_is_guaranteed_between_heuristic_and_composition(
    contraction: float, most: float, heuristic: float
) -> None:
    weights = contraction ** np.arange(10_000.0)[::-1]
    predicted = li.last_iterate(RUN.replace(weights=weights)).epsilon(1e-5)
    assert predicted == pytest.approx(heuristic, abs=1e-3)
    epsilon = li.convex(RUN, contraction=contraction).epsilon(1e-5)
    assert predicted < epsilon < most < li.composition(RUN).epsilon(1e-5)


@pytest.mark.parametrize("contraction", [0.3, 0.9, 0.999, 1.0])
def test_full_batches_are_the_heuristic_with_decaying_weights(contraction: float) -> None:
    steps, sigma = 40, 3.0
    run = li.DPSGD(steps, 1.0, sigma, sampling="full")
    guaranteed = li.convex(run, contraction=contraction)
    predicted = li.last_iterate(run.replace(weights=contraction ** np.arange(float(steps))[::-1]))
    assert guaranteed.epsilon(1e-5) == pytest.approx(predicted.epsilon(1e-5), rel=1e-9)
    if contraction < 1.0:
        power = contraction**steps
        mu = math.sqrt((1 - power) * (1 + contraction) / ((1 + power) * (1 - contraction))) / sigma
        one_step = li.DPSGD(1, 1.0, 1.0 / mu)
        assert guaranteed.epsilon(1e-5) == pytest.approx(li.composition(one_step).epsilon(1e-5), rel=1e-9)


@pytest.mark.parametrize("contraction", [0.05, 0.5, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("distance", [0.0, 0.3, 40.0])
def test_shifts_of_a_canary_in_every_batch_never_exceed_the_distance(contraction: float, distance: float) -> None:
    for steps in (1, 2, 7, 60):
        weights = contraction ** np.arange(float(steps))[::-1]
        total = contraction**steps * distance + geometric_sum(contraction, steps)
        shifts = total / geometric_sum(contraction**2, steps) * weights
        left = distance
        for shift in shifts:
            left = contraction * left + 1.0 - shift
            assert left >= -1e-12 * total
        assert left == pytest.approx(0.0, abs=1e-12 * total)


def test_no_small_training_leaks_more_than_is_guaranteed() -> None:
    generator = np.random.default_rng(3)
    # In the first setting a shift must not be hidden before the canary was there: that would be a hundredth too low.
    settings = [Setting(3, 0.05, 1.6121266090767699, 0.95), Setting(5, 0.2, 0.8, 0.6), draw_setting(generator)]
    ratios = [largest_ratio(setting, 60 if setting.steps == 3 else 20, generator) for setting in settings]
    assert max(ratios) <= 1.0 + TOLERANCE
    assert max(ratios) > 0.5


@pytest.mark.parametrize("seed", range(2))
def test_linear_trainings_of_any_length_leak_less(seed: int) -> None:
    generator = np.random.default_rng(seed)
    steps, rate = int(generator.integers(50, 800)), float(10.0 ** generator.uniform(-2.5, -0.5))
    contraction, sigma = 1.0 - float(10.0 ** generator.uniform(-3.0, -0.7)), float(generator.uniform(0.6, 3.0))
    run = li.DPSGD(steps, rate, sigma)
    curve = li.convex(run, contraction=contraction)
    exact = li.last_iterate(run.replace(weights=contraction ** np.arange(float(steps))[::-1]))
    for delta in (1e-3, 1e-6):
        assert exact.epsilon(delta) <= curve.epsilon(delta) <= li.composition(run).epsilon(delta) * (1.0 + 1e-9)


@pytest.mark.parametrize(
    ("run", "contraction", "delta", "fpr"),
    [
        (li.DPSGD(6, 0.3, 0.9), 0.7, 1e-3, 0.05),
        (li.DPSGD(10, 0.05, 2.0), 0.9, 1e-9, 0.3),
        (li.DPSGD(12, 0.6, 4.0), 1.0, 0.02, 0.2),
        (li.DPSGD(20, 1.0, 4.0, sampling="full"), li.Contraction(0.7, failure=1e-4), 1e-3, 0.05),
        (li.DPSGD(5, 1.0, 2.0, sampling="full"), li.Contraction(0.9, failure=0.01), 1e-6, 0.3),
    ],
)
def test_the_contract_of_curves_holds(
    run: li.DPSGD, contraction: float | li.Contraction, delta: float, fpr: float
) -> None:
    factor, failure = (
        (contraction.value, contraction.failure) if isinstance(contraction, li.Contraction) else (contraction, 0.0)
    )
    linear = mixture_of(run.replace(weights=factor ** np.arange(float(run.steps))[::-1]))
    question = Question(
        li.convex(run, contraction=contraction),
        delta,
        1.0,
        fpr,
        truth=[linear.delta],
        most=[lambda epsilon: (float(li.composition(run).delta(epsilon)), 0.0)],
        tolerance=2e-4,
        tolerance_of_fnr=2e-3 + failure,  # where it fails, nothing is taken to be missed
        exact=False,
        evaluations=0,
    )
    assert not list(violations(question))


@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_bracket_has_room_for_the_errors_of_interpolation(delta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    run, contraction = li.DPSGD(60, 0.2, 1.5), 0.8
    curve = li.convex(run, contraction=contraction)
    lower, upper = curve.bracket(delta)
    assert lower < curve.epsilon(delta) <= upper < lower * (1.0 + 2e-4)
    monkeypatch.setattr(shifted_cumulant, "_NODES", 16)
    monkeypatch.setattr(shifted_cumulant, "_ERROR", 1e-9)
    monkeypatch.setattr(shifted_cumulant, "_ERROR_ALONG", 1e-8)
    monkeypatch.setattr("lastiterate.privacy.convex.windows.ALLOWANCE", 0.0)
    finer = li.convex(run, contraction=contraction).epsilon(delta)
    assert lower < finer < upper
    assert abs(finer - curve.epsilon(delta)) > 1e-8  # so that it matters


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sampling": "fixed"}, "sampling"),
        ({"sampling": "shuffled"}, "sampling"),
        ({"optimizer": li.SGD(0.1, momentum=0.9)}, "momentum"),
        ({"optimizer": li.SGD(0.1, averaging="uniform")}, "averaging"),
        ({"optimizer": li.SGD([0.1] * 10)}, "learning_rate"),
        ({"noise_multiplier": [1.0] * 5 + [2.0] * 5}, "noise_multiplier"),
        ({"sample_rate": [0.1] * 5 + [0.2] * 5}, "sample_rate"),
        ({"weights": np.linspace(0.1, 1.0, 10)}, "weights"),
        ({"releases": 2}, "releases"),
        ({"noise_filter": (1.0, 0.5)}, "noise_filter"),
        ({"group_size": 2}, "group_size"),
        ({"neighbours": "replace"}, "neighbours"),
    ],
)
def test_what_is_not_proved_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        li.convex(li.DPSGD(10, 0.1, 1.0).replace(**changes), contraction=0.9)
