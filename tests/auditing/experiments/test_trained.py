"""``lastiterate.Trained``: a training that was not the declared run is refused, one that was is not."""

import numpy as np
import pytest

import lastiterate as li

RUN = li.DPSGD(steps=8, sample_rate=0.25, noise_multiplier=1.0)
LONG = li.DPSGD(steps=400, sample_rate=0.1, noise_multiplier=1.0)


def poisson_sizes(run, examples, seed=0):
    return np.random.default_rng(seed).binomial(examples, np.broadcast_to(run.sample_rate, run.steps))


def shuffled_sizes(examples, batch, epochs):
    """As a plain loader has them, the last batch of an epoch being what is left."""
    return [min(batch, examples - begin) for _ in range(epochs) for begin in range(0, examples, batch)]


def test_401_examples_in_batches_of_100_are_five_batches_an_epoch():
    sizes = shuffled_sizes(401, 100, epochs=2)
    with pytest.raises(ValueError, match=r"made 10 steps, but the run declares 8"):
        li.Trained(0.0, steps=len(sizes)).check(RUN)
    with pytest.raises(ValueError, match=r"made 10 batches, but the run declares 8"):
        li.Trained(0.0, batch_sizes=sizes).check(RUN)


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


def test_the_rate_itself_shows_once_the_number_of_examples_is_told():
    sizes = poisson_sizes(LONG.replace(sample_rate=0.11), 1000)
    li.Trained(0.0, batch_sizes=sizes).check(LONG)
    with pytest.raises(ValueError, match=r"a rate of 0\.1\d+, but the run declares 0\.1$"):
        li.Trained(0.0, batch_sizes=sizes, dataset_size=1000).check(LONG)


def test_a_rate_that_is_far_off_shows_in_the_spread_alone():
    sizes = poisson_sizes(LONG.replace(sample_rate=0.5), 1000)
    with pytest.raises(ValueError, match="vary less"):
        li.Trained(0.0, batch_sizes=sizes).check(LONG)


@pytest.mark.parametrize("sampling", ["fixed", "full", "shuffled"])
def test_other_samplings_have_batches_of_one_size(sampling):
    run = RUN.replace(sampling=sampling, sample_rate=1.0 if sampling == "full" else 0.25)
    whole = 400 if sampling == "full" else 100
    li.Trained(0.0, batch_sizes=[whole] * 8, dataset_size=400).check(run)
    with pytest.raises(ValueError, match=r"a rate of .*, but the run declares"):
        li.Trained(0.0, batch_sizes=[whole // 2] * 8, dataset_size=400).check(run)
    if sampling != "shuffled":
        with pytest.raises(ValueError, match=f"sampling '{sampling}' has batches of one size"):
            li.Trained(0.0, batch_sizes=[whole, whole // 2] * 4).check(run)


def test_a_batch_may_be_empty_and_tiny_batches_are_not_judged_by_their_spread():
    rare = li.DPSGD(steps=50, sample_rate=0.001, noise_multiplier=1.0)
    li.Trained(0.0, batch_sizes=np.zeros(50, int), dataset_size=100).check(rare)
    assert li.Trained(0.0, batch_sizes=[1] * 50).check(rare) is None


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


@pytest.mark.parametrize(
    ("said", "name"),
    [({"steps": 8.0}, "Trained.steps"), ({"batch_sizes": ["x"] * 8}, "Trained.batch_sizes"),
     ({"batch_sizes": [-1.0] * 8}, "Trained.batch_sizes"), ({"noise_multiplier": "none"}, "noise_multiplier"),
     ({"batch_sizes": [100] * 8, "dataset_size": 0}, "Trained.dataset_size")],
)  # fmt: skip
def test_what_is_no_description_of_a_training_is_refused_by_name(said, name):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        li.Trained(0.0, **said).check(RUN)
