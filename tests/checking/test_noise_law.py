"""Noise that has the right variance, but another law, or numbers that are used twice."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate.checking.declared import Declared
from lastiterate.checking.noise_tests import again_row, law_row

ERROR = 0.02
ONE = Declared(li.DPSGD(1, 0.5, 1.0, optimizer=li.SGD(1.0)))
RNG = np.random.default_rng(0)


def test_normal_noise_of_any_variances_is_seldom_called_another():
    for scales in (np.ones(300), RNG.uniform(1.0, 1.1, 300), np.where(np.arange(300) < 20, 0.3, 1.0)):
        rows = [law_row(scales * RNG.standard_normal((6, 300)), ONE, ERROR) for _ in range(400)]
        assert {row.status for row in rows} <= {"ok", "fault"}
        assert np.mean([row.status == "fault" for row in rows]) <= 1.5 * ERROR


@pytest.mark.parametrize(
    "drawn",
    [
        lambda shape: RNG.uniform(-np.sqrt(3.0), np.sqrt(3.0), shape),
        lambda shape: RNG.choice([-1.0, 1.0], shape),
        lambda shape: np.clip(RNG.standard_normal(shape), -1.0, 1.0) / 0.7181,
    ],
    ids=["uniform", "two values", "cut off"],
)
def test_other_laws_of_one_step_are_told(drawn):
    assert law_row(drawn((6, 600)), ONE, 1e-5).status == "fault"


def test_what_batches_add_may_have_any_law():
    coins = RNG.choice([-1.0, 1.0], (6, 600))  # as one example that is in half of the batches
    assert law_row(RNG.standard_normal((6, 600)) + coins, ONE, ERROR).status != "fault"


def test_many_steps_hide_the_law():
    many = Declared(li.DPSGD(40, 0.5, 1.0, optimizer=li.SGD(1.0)))
    row = law_row(np.sqrt(40.0) * RNG.standard_normal((6, 600)), many, ERROR)
    assert row.status == "not checked"
    assert "one step" in row.advice


@pytest.mark.parametrize("moved", [1, 10, 299])
def test_noise_that_is_used_again_is_told_by_its_distance(moved):
    noise = RNG.standard_normal((6, 600))
    for begin in range(moved, 600, 2 * moved):
        noise[:, begin : begin + moved] = noise[:, begin - moved : begin][:, : 600 - begin]
    row = again_row(noise, ONE, 1.0, 1e-3)
    if moved == 299:
        assert row.status == "fault"
        assert "299 places" in row.advice
    else:  # every other part only: half of the correlation
        assert row.measured == pytest.approx(0.5, abs=0.1)


def test_independent_noise_is_not_used_again():
    rows = [again_row(RNG.standard_normal((5, 200)), ONE, 1.0, ERROR) for _ in range(200)]
    assert all(row.status == "ok" for row in rows)


def test_parameters_that_batches_make_alike_are_not_looked_at():
    common = 2.0 * RNG.standard_normal((6, 1))
    assert again_row(RNG.standard_normal((6, 600)) + common, ONE, 1.0, ERROR).status == "not checked"


@pytest.mark.parametrize("kind", ["gradient", "example"])
def test_a_training_with_uniform_noise_is_found_whatever_its_canary_is(kind):
    def train(seed, canary):
        rng = np.random.default_rng(seed)
        noise, drawn = rng.uniform(-np.sqrt(3.0), np.sqrt(3.0), 800), rng.random() < 0.5
        gradient = np.zeros(800) if canary is False else np.ones(800) if canary is True else canary
        return -(drawn * gradient / max(1.0, float(np.linalg.norm(gradient))) + noise)

    result = li.check(ONE.run, train, canary=kind)
    assert [row.name for row in result.faults] == ["law of the noise"]
