"""What ``train`` promises: randomness by address, chunks that do not matter, canaries, and failures that speak."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.training import ExampleCanary, GradientCanary, Problem, TrainingDiverged, train

RUN = li.DPSGD(20, 0.2, 1.0, optimizer=li.SGD(0.1, momentum=0.5))
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(60, 8)).astype(np.float32)
Y = GENERATOR.integers(0, 3, 60).astype(np.int32)


def loss(parameters, example, moment):
    x, label = example
    logits = jnp.tanh(x @ parameters["w1"]) @ parameters["w2"]
    return jax.nn.logsumexp(logits) - logits[label]


PARAMETERS = {
    "w1": GENERATOR.normal(size=(8, 6)).astype(np.float32),
    "w2": GENERATOR.normal(size=(6, 3)).astype(np.float32),
}
PROBLEM = Problem(PARAMETERS, (X, Y), loss)
CANARY = ExampleCanary((10 * X[0], np.int32(2)))


@pytest.mark.parametrize("sampling", ["poisson", "shuffled"])
def test_another_chunk_size_gives_the_same_models_up_to_rounding(sampling):
    run = RUN.replace(sampling=sampling)
    first, second = (train(run, PROBLEM, models=7, chunk_size=size).flat() for size in (1, 4))
    assert first == pytest.approx(second, abs=1e-5)


def test_a_model_does_not_depend_on_which_others_are_trained_or_on_the_number_of_workers():
    present = np.arange(9) % 2 == 0
    everything = train(RUN, PROBLEM, CANARY, models=9, present=present, seed=1, chunk_size=2, workers=2)
    some = train(RUN, PROBLEM, CANARY, models=[8, 3], present=present[[8, 3]], seed=1, chunk_size=2, workers=1)
    assert np.array_equal(some.flat(), everything.flat()[[8, 3]])


def test_models_worlds_and_seeds_all_have_randomness_of_their_own():
    def first_weights(**options):
        return train(RUN, PROBLEM, CANARY, chunk_size=2, **options).flat()

    base = first_weights(models=2, present=False, seed=1)
    others = first_weights(models=2, present=True, seed=1), first_weights(models=2, present=False, seed=2)
    everything = np.concatenate([base, *others])
    distances = np.linalg.norm(everything[:, None] - everything[None], axis=2)
    assert (distances + 10 * np.eye(6) > 1.0).all()  # noise alone has norm about 0.1 * sqrt(20 * 66) = 3.6


def test_a_regulariser_with_a_gradient_that_is_none_is_applied_unclipped():
    """The paper's pathological regulariser shifts coordinates: m'_1 = 0, m'_(i+1) = v m_i."""

    def shift(parameters, step):
        return parameters - jnp.concatenate([jnp.zeros(1), 3.0 * parameters[:-1]])

    problem = Problem(jnp.array([1.0, 2.0, 4.0]), regulariser_gradient=shift)
    run = li.DPSGD(2, 0.5, 1e-9, optimizer=li.SGD(1.0))
    canary = GradientCanary(np.array([1.0, 0.0, 0.0], np.float32))
    released = train(run, problem, canary, models=3, present=False).flat()
    assert released == pytest.approx(np.tile([0.0, 0.0, 9.0], (3, 1)), abs=1e-6)


def test_divergence_names_model_step_and_learning_rate():
    rates = np.full(20, 0.1)
    rates[11] = 3e38
    run = RUN.replace(optimizer=li.SGD(rates))
    with pytest.raises(
        TrainingDiverged, match=r"model 4 \(with canary\).* after step 12 of 20, at learning rate 3e\+38"
    ):
        train(run, PROBLEM, CANARY, models=[4], present=True)


def test_a_gradient_too_large_to_be_clipped_is_reported_and_not_left_out():
    huge = Problem(np.zeros(2, np.float32), np.full((50, 2), 1e25, np.float32), gradient=lambda p, e, m: e)
    with pytest.raises(TrainingDiverged, match="after step 1 of 20"):
        train(RUN.replace(sampling="full", sample_rate=1.0), huge, models=2)
    large = Problem(np.zeros(2, np.float32), np.full((50, 2), 1e15, np.float32), gradient=lambda p, e, m: e)
    released = train(li.DPSGD(1, 1.0, 1e-6, optimizer=li.SGD(1.0)), large, models=2).flat()
    assert released == pytest.approx(-50 / np.sqrt(2), rel=1e-4)
