"""``lastiterate.Trained``: a training that was not the declared run is refused, one that was is not."""

import numpy as np
import pytest

import lastiterate as li

RUN = li.DPSGD(steps=8, sample_rate=0.25, noise_multiplier=1.0)


def poisson_sizes(run, examples, seed=0):
    return np.random.default_rng(seed).binomial(examples, np.broadcast_to(run.sample_rate, run.steps))


@pytest.mark.parametrize("noise", [0.5, 1.001, np.linspace(0.9, 1.1, 8)])
def test_another_noise_is_refused_with_both_values(noise):
    with pytest.raises(ValueError, match=r"noise_multiplier must be that of the training, .*, but the run declares 1"):
        li.Trained(0.0, noise_multiplier=noise).check(RUN)


def test_the_declared_training_passes_whatever_is_said_of_it():
    for seed in range(20):
        sizes = poisson_sizes(RUN, 401, seed)
        said = li.Trained(0.0, steps=8, batch_sizes=sizes, noise_multiplier=np.full(8, 1.0), dataset_size=401)
        assert said.check(RUN) is None
    assert li.Trained(0.0).check(RUN) is None
    decaying = RUN.replace(noise_multiplier=np.linspace(2.0, 1.0, 8))
    li.Trained(0.0, noise_multiplier=np.linspace(2.0, 1.0, 8)).check(decaying)


def test_batches_of_one_size_are_not_poisson_and_neither_are_those_of_a_plain_loader():
    with pytest.raises(ValueError, match=r"sampling 'poisson' .* vary less, with 0 \(from 100 to 100 examples\)"):
        li.Trained(0.0, batch_sizes=[100] * 8).check(RUN)
    with pytest.raises(ValueError, match=r"sampling 'poisson' .* vary more"):
        li.Trained(0.0, batch_sizes=[100, 100, 100, 1] * 2).check(RUN)


@pytest.mark.slow
def test_correct_trainings_are_hardly_ever_refused():
    """20,000 of all shapes: at one in a million and test, none is to be expected."""
    generator = np.random.default_rng(1)
    for _ in range(20_000):
        steps, examples = int(generator.integers(1, 200)), int(generator.integers(20, 5000))
        rate = 10 ** generator.uniform(-2.5, -0.05)
        rates = rate if generator.random() < 0.7 else rate * generator.uniform(0.2, 1.0, steps)
        run = li.DPSGD(steps=steps, sample_rate=rates, noise_multiplier=1.0)
        sizes = generator.binomial(examples, np.broadcast_to(rates, steps))
        li.Trained(0.0, steps, sizes, 1.0, examples).check(run)
