"""Canary gradients among natural data: what the crafter finds is true, and the score has the law that it predicts."""

import jax
import numpy as np
import pytest

import lastiterate as li
from lastiterate import data, training
from lastiterate.attacks import GradientSpace
from lastiterate.attacks.gradient_space import measure_drift
from lastiterate.privacy.mixtures.law import law_of
from lastiterate.training import problems

RUN = li.DPSGD(30, 0.05, 1.2, clip_norm=0.5, optimizer=li.SGD(0.02, momentum=0.9, weight_decay=0.01))
MODELS = 200  # a world
PROBLEM = problems.mlp(data.digits(), hidden=8)


def references(run, problem, canary=None, *, models, present=False, purpose=0):
    numbers = 2**31 + purpose * 2**24 + np.arange(models)
    return training.train(run, problem, canary, models=numbers, present=present, progress=False).parameters


@pytest.fixture(scope="module")
def drift():
    return measure_drift(RUN, PROBLEM, references, models=12)


def test_drift_is_exact_for_linear_losses():
    gradients = np.array([[0.3, 0.0], [0.0, 0.0], [0.1, 0.0]], np.float32)
    run = li.DPSGD(20, 1.0, 2.0, sampling="full", optimizer=li.SGD(0.1, momentum=0.5))
    found = measure_drift(run, problems.linear(gradients), references, models=4)
    weights = np.sum(run.effective_weights())
    np.testing.assert_allclose(found.natural, np.tile([-0.4 * weights, 0.0], (4, 1)), rtol=1e-4, atol=1e-5)


def test_quiet_parameter_is_one_that_no_image_reaches(drift):
    facts = GradientSpace("quiet").craft(RUN, PROBLEM, references)
    (index,) = facts["indices"]
    unused = np.flatnonzero(~np.any(data.digits().x_train.reshape(-1, 64) > 0, axis=0))
    weights = np.zeros(sum(np.size(leaf) for leaf in jax.tree.leaves(PROBLEM.trainable)))
    weights[index] = 1.0
    tensors = jax.tree.leaves(training.problem.unflatten(weights, PROBLEM.trainable))
    touched = [np.argwhere(np.asarray(tensor)) for tensor in tensors if np.any(tensor)]
    assert len(touched) == 1
    assert set(unused) & set(touched[0].ravel().tolist())
    assert facts["spread"] == pytest.approx(1.0, abs=1e-3)


def test_layers_put_mass_on_every_tensor():
    attack = GradientSpace("layers", references=4)
    facts = attack.craft(RUN, PROBLEM, references)
    canary = attack.arm(RUN, PROBLEM, facts).canary
    tensors = jax.tree.leaves(training.problem.unflatten(canary.gradient, PROBLEM.trainable))
    assert all(np.count_nonzero(tensor) == 1 for tensor in tensors)
    assert np.linalg.norm(canary.gradient) == pytest.approx(10.0 * RUN.clip_norm)


@pytest.mark.parametrize("direction", ["quiet", "layers"])
def test_scores_have_the_predicted_law(direction):
    attack = GradientSpace(direction, references=12)
    facts = attack.craft(RUN, PROBLEM, references)
    armed = attack.arm(RUN, PROBLEM, facts)
    inside, outside = (
        armed.score(
            training.train(RUN, armed.problem, armed.canary, models=MODELS, present=p, progress=False).parameters
        )
        for p in (True, False)
    )
    law, spread = law_of(RUN), facts["spread"]
    error = 4 * spread / np.sqrt(MODELS)
    assert outside.mean() == pytest.approx(0.0, abs=error + 0.1)
    assert outside.std() == pytest.approx(spread, abs=error)
    assert inside.mean() - outside.mean() == pytest.approx(law.mean / law.noise, abs=2 * error)
