"""The malicious data set: repeaters and canary do to every coordinate what Appendix C says, and nothing else."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom, chisquare, ks_2samp

import lastiterate as li
from lastiterate.attacks.released_iterates import sample_likelihood_ratios
from lastiterate.paper.counterexamples.malicious import DEFAULTS, Malicious, Reader, amplification, pass_rates, seen
from lastiterate.paper.counterexamples.setting import last_iterate_scores
from lastiterate.training import TrainingDiverged, train
from lastiterate.training.draws import model_keys, normals
from lastiterate.training.problem import Moment

STEPS, RATE, NOISE, MODELS = 12, 0.3, 0.8, 64
RUN = li.DPSGD(STEPS, RATE, NOISE, optimizer=li.SGD(1.0))
PRESENT = np.arange(MODELS) % 4 > 0  # a quarter of the models has no canary
MORE = 333_333_400  # repeaters, where 3,333,334 are enough
THRESHOLD = 1.2  # which bits often pass
ATTACKS = {"one-bit": Malicious("one-bit", THRESHOLD), "linear": Malicious("linear")}
BATCHES = 8e-3  # by how much batches of 1,000,000 repeaters may stray: more than eight standard deviations


@cache
def armed(encoding, run=RUN, copies=None):
    attack = ATTACKS[encoding]
    facts = attack.craft(run, None, None)
    return attack.arm(run, None, facts | ({"copies": copies} if copies else {}))


@cache
def trained(encoding, run=RUN, copies=None, models=MODELS):
    """All iterates of some models, in what the canary does to a coordinate: [models, steps + 1, parameters]."""
    ready = armed(encoding, run, copies)
    options = dict(models=models, present=PRESENT[:models], release="intermediate_iterates", progress=False)
    found = train(run, ready.problem, ready.canary, seed=3, **options)
    return np.asarray(found.iterates, np.float64) / (run.optimizer.learning_rate * run.clip_norm), found.parameters


@cache
def noise_of(step, parameters=32):
    """What the trainer's noise does to each coordinate at a step."""
    keys = model_keys(3, np.arange(MODELS), PRESENT).noise
    return -NOISE * np.asarray(jax.jit(lambda: normals(keys, jnp.int32(step), (parameters,)))(), np.float64)


def left_over(iterates, step):
    """Each coordinate after a step, without the noise of that step."""
    return (iterates[:, step + 1] - noise_of(step))[:, :STEPS]


ENCODINGS = pytest.mark.parametrize("encoding", ["one-bit", "linear"])


@ENCODINGS
def test_coordinates_hold_one_step_s_noise_until_their_step_has_passed(encoding):
    iterates, _ = trained(encoding)
    for step in range(STEPS):
        assert left_over(iterates, step)[:, step + 1 :] == pytest.approx(0.0, abs=BATCHES * 6 * NOISE)


@ENCODINGS
def test_the_canary_moves_the_coordinate_of_the_step_by_1_when_it_is_in_the_batch(encoding):
    iterates, _ = trained(encoding)
    moved = np.stack([left_over(iterates, step)[:, step] for step in range(STEPS)], axis=1)
    joined = moved > 0.5
    assert moved == pytest.approx(joined.astype(float), abs=BATCHES * 6 * NOISE)
    assert not joined[~PRESENT].any()
    here = joined[PRESENT]
    low, high = binom.ppf([5e-5, 1.0 - 5e-5], here.size, RATE)  # a false alarm in 10,000
    assert low <= here.sum() <= high


def test_values_are_enlarged_once_and_then_left_alone():
    iterates, _ = trained("linear")
    factor = amplification(RUN)
    assert factor == pytest.approx(100.0 * np.sqrt(STEPS))
    for step in range(1, STEPS):
        before, after = iterates[:, step, :step], left_over(iterates, step)[:, :step]
        assert after[:, :-1] == pytest.approx(before[:, :-1], abs=1e-3)  # rounding of numbers up to 2,000
        assert after[:, -1] == pytest.approx(factor * before[:, -1], abs=1e-3, rel=BATCHES)


def test_older_values_carry_the_stated_extra_noise():
    iterates, _ = trained("linear", RUN, MORE)  # so many repeaters that their own sampling does not show
    extra = np.sqrt(seen(RUN).noise_multiplier ** 2 - NOISE**2)
    assert extra[-1] == 0.0
    original = np.stack([iterates[:, step + 1, step] for step in range(STEPS)], axis=1)
    scaled = (iterates[:, -1, : STEPS - 1] / amplification(RUN) - original[:, :-1]) / extra[:-1]
    # 704 squared normals: their mean is within 4 standard deviations but once in 10,000 times.
    assert np.mean(scaled**2) == pytest.approx(1.0, abs=4.0 * np.sqrt(2.0 / scaled.size))


@pytest.mark.parametrize(("encoding", "noise"), [("one-bit", NOISE), ("linear", NOISE), ("linear", 100.0)])
def test_no_repeater_is_clipped(encoding, noise):
    run = RUN.replace(noise_multiplier=noise)
    ready = armed(encoding, run)
    iterates = trained(encoding, run)[0][:, :-1].astype(np.float32)

    def norm(parameters, step):
        return jnp.linalg.norm(ready.problem.gradient(parameters, None, Moment(step, None)))

    norms = np.asarray(jax.jit(jax.vmap(jax.vmap(norm), (0, None)))(iterates, jnp.arange(STEPS)))
    assert np.all(norms > 0.0)
    assert np.all(norms < run.clip_norm)


def test_a_clipped_repeater_stops_the_training():
    with pytest.raises(TrainingDiverged, match="not finite after step 1 of 12"):
        trained("one-bit", RUN, 3000, models=2)


def test_batches_that_vary_more_than_they_should_are_noticed():
    few = 20_000
    _, parameters = trained("one-bit", RUN, few, models=16)
    facts = armed("one-bit", RUN, few).score.facts
    assert Reader(RUN, facts)(parameters).shape == (16,)
    with pytest.raises(
        ArithmeticError, match=r"number of malicious examples .* standard deviations from its expectation"
    ):
        Reader(RUN, facts | {"copies": 100 * few})(parameters)


@pytest.fixture(scope="module")
def many():
    """Scores of models with the canary, and without, by encoding."""
    setting = replace(DEFAULTS, models=4000, seed=5)
    return {encoding: last_iterate_scores(setting, RUN, attack, encoding) for encoding, attack in ATTACKS.items()}


def test_bits_have_the_law_of_two_binomials(many):
    without, together = pass_rates(RUN, THRESHOLD)
    for counts, rate in zip(many["one-bit"], (together, without), strict=True):
        expected = 4000 * binom.pmf(np.arange(STEPS + 1), STEPS, rate)
        last = int(np.flatnonzero(expected >= 10.0)[-1])  # larger counts are too rare to be compared one by one
        found = np.bincount(np.minimum(counts.astype(int), last), minlength=last + 1)
        expected = np.append(expected[:last], expected[last:].sum())
        assert chisquare(found, expected).pvalue > 1e-3


def test_values_have_the_law_of_all_iterates(many):
    for world, scores in zip((True, False), many["linear"], strict=True):
        drawn = sample_likelihood_ratios(seen(RUN), np.full(50_000, world), np.random.default_rng(1))
        assert ks_2samp(scores, drawn).pvalue > 1e-3


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (RUN.replace(sample_rate=1e-5), r"sample_rate must be at least 0\.00047 .* of 12 steps, got 1e-05"),
        (RUN.replace(sample_rate=0.0), "sample_rate must be at least"),
        (RUN.replace(optimizer=li.SGD(1.0, momentum=0.9)), "momentum must be 0 for counterexamples, got 0.9"),
        (RUN.replace(optimizer=li.SGD(1.0, averaging="uniform")), "averaging must be None for counterexamples"),
        (RUN.replace(optimizer=None), "optimizer must be"),
        (RUN.replace(sample_rate=0.25, sampling="shuffled"), "sampling must be 'poisson' or 'full'"),
        (RUN.replace(sampling="fixed"), "sampling must be 'poisson' or 'full'"),
        (RUN.replace(noise_multiplier=np.linspace(1.0, 2.0, STEPS)), "noise_multiplier must be"),
    ],
)
def test_runs_for_which_the_encoding_does_not_work_are_refused(run, words):
    with pytest.raises(ValueError, match=words):
        Malicious("linear").craft(run, None, None)
