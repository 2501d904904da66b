"""The displacement of a user's parameters along the canary, tensor by tensor."""

import numpy as np
import pytest

from lastiterate import DPSGD, SGD
from lastiterate.attacks import Displacement
from lastiterate.attacks.attack import LinearScores

RUN = DPSGD(steps=25, sample_rate=0.2, noise_multiplier=2.0, clip_norm=3.0, optimizer=SGD(0.1))
UNIT = 0.1 * 2.0 * 3.0 * 5.0  # learning rate, noise multiplier, clipping norm, root of the steps
CANARY = {"weight": np.array([[3.0, 0.0], [0.0, 4.0]]), "bias": np.array([0.0, 12.0])}  # of norm 13
START = {"weight": np.full((2, 2), 0.5), "bias": np.full(2, -0.25)}


def noisy(count: int, scales: dict[str, float], seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Parameters of models without the canary: the start and noise, of another size in each tensor."""
    generator = np.random.default_rng(seed)
    return [
        {name: start + scales[name] * UNIT * generator.standard_normal(start.shape) for name, start in START.items()}
        for _ in range(count)
    ]


def with_canary(parameters: dict[str, np.ndarray], amount: float) -> dict[str, np.ndarray]:
    """What descent makes of a canary of this length."""
    return {name: value - amount * CANARY[name] / 13.0 for name, value in parameters.items()}


def test_noise_as_the_run_says_gives_the_plain_projection():
    attack = Displacement(CANARY)
    references = noisy(32, {"weight": 1.0, "bias": 1.0})
    facts = attack.craft(RUN, references)
    np.testing.assert_allclose(facts["weights"], [5.0 / 13.0, 12.0 / 13.0])
    assert facts["spread"] == pytest.approx(1.0)
    projections = [-sum(np.vdot(CANARY[name], values[name]) for name in CANARY) / 13.0 for values in references]
    scores = [attack.score(RUN, facts, parameters) for parameters in references]
    np.testing.assert_allclose(scores, (projections - np.mean(projections)) / UNIT, atol=1e-12)


@pytest.mark.parametrize("scales", [{"weight": 1.0, "bias": 1.0}, {"weight": 0.0, "bias": 1.0}])
def test_the_canary_moves_the_score_by_its_length_in_units_of_the_noise_however_tensors_count(scales):
    attack = Displacement(CANARY)
    facts = attack.craft(RUN, noisy(32, scales))
    (without,) = noisy(1, scales, seed=1)
    moved = attack.score(RUN, facts, with_canary(without, 7.0)) - attack.score(RUN, facts, without)
    assert moved == pytest.approx(7.0 / UNIT)


@pytest.mark.parametrize("quiet", ["weight", "bias"])
def test_a_tensor_without_noise_dominates_whatever_its_share_of_the_canary(quiet):
    scales = {"weight": 1.0, "bias": 1.0} | {quiet: 0.0}
    attack = Displacement(CANARY)
    facts = attack.craft(RUN, noisy(32, scales))
    weights = dict(zip(CANARY, facts["weights"], strict=True))
    loud = "bias" if quiet == "weight" else "weight"
    assert abs(weights[quiet]) > 50.0 * abs(weights[loud])
    assert facts["spread"] < 0.15
    scores = [attack.score(RUN, facts, parameters) for parameters in noisy(200, scales, seed=1)]
    assert np.std(scores) < 0.15


def test_expected_scores_have_the_measured_spread():
    attack = Displacement(CANARY)
    facts = attack.craft(RUN, noisy(32, {"weight": 0.2, "bias": 0.2}))
    expected = attack.expected(facts)
    assert isinstance(expected, LinearScores)
    assert expected.signal == 1.0
    assert expected.spread == pytest.approx(0.2, rel=0.35)


def test_names_decide_which_tensor_is_which():
    attack = Displacement({"one": np.array([1.0, 0.0]), "two": np.array([0.0, 2.0])})
    facts = {"weights": [1.0, 10.0], "centre": 0.0}
    one, two = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    score = attack.score(RUN, facts, {"one": one, "two": two})
    assert score == attack.score(RUN, facts, {"two": two, "one": one})
    with pytest.raises(ValueError, match=r"parameters must have the names of the canary, \['one', 'two'\], got"):
        attack.score(RUN, facts, {"one": one, "three": two})


@pytest.mark.parametrize("canary", [np.zeros(3), {"weight": np.zeros((2, 2)), "bias": [0.0]}])
def test_a_canary_that_is_zero_everywhere_is_refused(canary):
    with pytest.raises(ValueError, match="canary must not be zero everywhere"):
        Displacement(canary)
